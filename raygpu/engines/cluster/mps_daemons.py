"""CUDA MPS for packed trials: one daemon for each of the sweep's GPUs on this machine, for the whole sweep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from raygpu.devices.mps import Access, Mps, NoMps
from raygpu.records.device import Device

END_S = 20.0
"""Seconds for trials to end by themselves: a killed client can take the server and its neighbours along."""
POLL_S = 0.2
WATCH_S = 5.0


class Daemons:
    """Running MPS daemons of a sweep; empty where MPS is absent, refused or not wanted."""

    def __init__(self, running: Mapping[str, Mps]) -> None:
        self._running = running

    @property
    def access(self) -> dict[str, Access]:
        """Return the address of each daemon for its clients, by the GPU's UUID."""
        return {uuid: mps.access for uuid, mps in self._running.items()}

    def unattached(self, pids: Collection[int]) -> list[int]:
        """Return the pids of the given processes that are attached to no daemon, sorted; empty without daemons."""
        if not self._running:
            return []
        attached = {pid for mps in self._running.values() for pid in mps.clients()}
        return sorted(set(pids) - attached)

    @contextmanager
    def watched(self, pids: Callable[[], Collection[int]], say: Callable[[str], None]) -> Iterator[None]:
        """Check every WATCH_S seconds that the given processes are attached; report the first that is not, once.

        pids: called for the pids of the trials' processes, in a thread. say: called with the line.
        """
        end = threading.Event()

        def watch() -> None:
            """Check the processes until one is not attached or the context ends."""
            while not end.wait(WATCH_S):
                if stray := self.unattached(pids()):
                    say(f"MPS: process {stray[0]} is not attached to it: its trial takes turns with the others")
                    return

        thread = threading.Thread(target=watch, name="mps", daemon=True)
        if self._running:
            thread.start()
        try:
            yield
        finally:
            end.set()
            if thread.is_alive():
                thread.join(END_S)

    def wait_for_clients(self) -> None:
        """Wait at most END_S seconds until the trials' processes have ended by themselves."""
        end = time.monotonic() + END_S
        while any(mps.clients() for mps in self._running.values()) and time.monotonic() < end:
            time.sleep(POLL_S)


@contextmanager
def daemons(devices: Sequence[Device], say: Callable[[str], None], *, wanted: bool) -> Iterator[Daemons]:
    """Run an MPS daemon on each device or, if one fails, on none: `say` gets the reason, and trials take turns.

    wanted: whether MPS is to run at all. At the exit, waits for the trials' processes before the daemons end.
    """
    running: dict[str, Mps] = {}
    with ExitStack() as stack:
        try:
            for device in devices if wanted else ():
                if device.uuid is not None:
                    running[device.uuid] = stack.enter_context(Mps.start(device.uuid))
        except NoMps as reason:
            say(f"no MPS: {reason}; packed trials take turns on the GPU")
            stack.close()
            running = {}
        mps_daemons = Daemons(running)
        try:
            yield mps_daemons
        finally:
            mps_daemons.wait_for_clients()
