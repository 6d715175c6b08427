"""The SQLite stores of MLflow that a Slurm job claims, carries on its node's disk, brings back and releases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from raygpu.engines.slurm import commands
from raygpu.errors import RaygpuError, one_line
from raygpu.tracking import carried_store


class JobStores:
    """The stores of one job."""

    def __init__(self, expected: str, number: str, node_disk: Path, say: Callable[[str], None]) -> None:
        """expected: the file that the job was submitted with; empty for none. number: Slurm's id of the job.

        node_disk: the job's folder on the node's disk. say: takes lines for a person.
        """
        self._expected = Path(expected) if expected else None
        self._number, self._node_disk, self._say = number, node_disk, say

    def variables(self) -> dict[str, str]:
        """Return the variables that say where the store of MLflow is, if that is a file: on this node, or nowhere."""
        if self._expected is None:
            return {}
        if "SLURM_ARRAY_JOB_ID" in os.environ:
            return {carried_store.SPOOL_VARIABLE: "1"}
        try:
            holder = self._claimed(self._expected)
        except OSError as error:
            why = f"{self._expected} cannot be claimed ({error.strerror})"
        else:
            if holder is None:
                disk, owner = str(self._node_disk), self._number
                return {carried_store.FOLDER_VARIABLE: disk, carried_store.OWNER_VARIABLE: owner}
            claim = carried_store.claim_of(self._expected)
            why = f"{self._expected} is in use by Slurm job {holder} ({claim})"
        self._say(f"{why}, so what is for MLflow waits in the run's folder")
        return {carried_store.SPOOL_VARIABLE: "1"}

    def claimed(self) -> set[Path]:
        """Return the files that this job may have claimed: the command may have named another than its job."""
        expected = [self._expected] if self._expected is not None else []
        return {*expected, *carried_store.carried(self._node_disk)}

    def bring_back(self) -> None:
        """Bring the stores back from this node's disk."""
        for store in self.claimed():
            try:
                if carried_store.holder_of(store) == self._number:
                    carried_store.bring_back(store, self._node_disk)
            except Exception as error:  # noqa: BLE001 - the run's own files are complete without it
                self._say(f"{store} could not be brought back ({one_line(error)}); raygpu deliver repairs it")

    def release(self, stores: Iterable[Path]) -> None:
        """Give up the claims of this job."""
        for store in stores:
            carried_store.release(store, self._number)

    def _claimed(self, shared: Path) -> str | None:
        """Claim a store, also from a job that has ended; return None, or the job that has it. Raises OSError."""
        holder = carried_store.claim(shared, self._number)
        if holder is None or holder == carried_store.UNKNOWN or _lives(holder):
            return holder
        carried_store.release(shared, holder)
        return carried_store.claim(shared, self._number)


def _lives(number: str) -> bool:
    try:
        state = commands.state(number)
    except RaygpuError:
        return True
    return state is not None and state.is_live
