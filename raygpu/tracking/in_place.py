"""A SQLite store that is worked on in place, where a Slurm job may carry it: its copy then takes the place of the file.

What was committed after the job had made its copy is gone with the old file. So nothing is written while a job has the
store; and what a journal holds is forgotten only while no job has it, and the file is the one that was opened. Every
later copy then has it.
"""

from __future__ import annotations

from raygpu.errors import TrackingError
from raygpu.tracking import carried_store, client, sqlite_file
from raygpu.tracking.stores import scheme, sqlite_path


class InPlace:
    """The file of a store that is worked on in place. Any other store is always whole, and no job carries it."""

    def __init__(self, uri: str) -> None:
        """uri: of any store."""
        self._uri = uri
        path = sqlite_path(uri) if scheme(uri) == "sqlite" else None
        node_disk = carried_store.folder()
        is_copy = path is not None and node_disk is not None and path.is_relative_to(node_disk)
        self._path = path if not is_copy else None
        self.take()

    def take(self) -> None:
        """Take the present file for the one that was opened."""
        self._inode = self._present

    @property
    def _present(self) -> int | None:
        return sqlite_file.inode(self._path) if self._path is not None else None

    @property
    def is_free(self) -> bool:
        """Return whether no job carries the store."""
        return self._path is None or carried_store.holder_of(self._path) is None

    @property
    def is_another(self) -> bool:
        """Return whether another file has taken the place of the one that was opened."""
        present = self._present
        return present is not None and self._inode is not None and present != self._inode

    @property
    def is_replaced(self) -> bool:
        """Return whether another file has taken the place of the one that was opened, and no job carries it."""
        return self.is_another and self.is_free

    @property
    def is_whole(self) -> bool:
        """Return whether the file, and every copy that is made of it from now on, has all that was committed."""
        return self.is_free and not self.is_another

    def fault(self, error: Exception) -> TrackingError:
        """Return a failure of the store as an error of one line: Refused if another try cannot help.

        A file that has taken the other's place refuses a run that it lacks: that is no Refused.
        """
        fault = client.fault(self._uri, error)
        return TrackingError(str(fault)) if isinstance(fault, client.Refused) and self.is_another else fault

    def require_free(self) -> None:
        """Raise TrackingError while a job carries the store."""
        if self._path is not None:
            carried_store.require_free(self._path)

    def require_whole(self) -> None:
        """Raise TrackingError if the file may lack what was committed."""
        self.require_free()
        if self.is_another:
            raise TrackingError(f"tracking: the copy of a Slurm job took the place of {self._path}; it may lack writes")
