"""The address of Ray's dashboard. That of a local Ray starts beside the run, which waits for none of its processes.

dashboard = Dashboard.starting()
dashboard.then(print)        # once it has started, from another thread; at once if its address is known
dashboard.close()            # before Ray's end
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.ray_private_api import DashboardAddress

logger = logging.getLogger(__name__)
LOOK_S = 0.25
START_S = 180.0
"""Seconds after which a dashboard that has not started is given up: a cold machine of two cores takes its time."""


class Dashboard:
    """URL of a dashboard, known now or later."""

    def __init__(self, address: str | None = None) -> None:
        """Take a dashboard that runs. address: HOST:PORT, or a URL; None for no dashboard."""
        self._url: Future[str | None] = Future()
        self._closing = Event()
        self._thread: Thread | None = None
        self._url.set_result(url(address))

    @classmethod
    def starting(cls) -> Dashboard:
        """Return the dashboard of the Ray that this process has just started."""
        from raygpu.engines.cluster.ray_private_api import DashboardAddress

        dashboard = cls()
        dashboard._url = Future()
        dashboard._thread = Thread(target=dashboard._look, args=(DashboardAddress(),), name="dashboard", daemon=True)
        dashboard._thread.start()
        return dashboard

    def _look(self, starting: DashboardAddress) -> None:
        address, until = None, time.monotonic() + START_S
        while address is None and time.monotonic() < until and not starting.is_lost:
            try:
                address = starting.look()
            except Exception:  # of a head that is slow to answer, or has ended, as whoever trains says
                logger.debug("the dashboard's address", exc_info=True)
            if address is not None or self._closing.wait(LOOK_S):
                break
        self._url.set_result(url(address))

    def then(self, take: Callable[[str | None], object]) -> None:
        """Hand on the URL once it is known, None for no dashboard; nothing after `close`."""
        self._url.add_done_callback(lambda future: None if self._closing.is_set() else take(future.result()))

    def wait(self) -> str | None:
        """Return the URL, once it is known; None for no dashboard."""
        return self._url.result()

    def close(self) -> None:
        """Wait for the dashboard no longer: a thread that calls Ray while it shuts down may end this process."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()


def url(address: str | None) -> str | None:
    """Return the URL of a HOST:PORT address; None for no address."""
    return f"http://{address}" if address and "://" not in address else address or None
