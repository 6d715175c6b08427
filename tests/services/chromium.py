"""A headless Chromium, spoken to by its DevTools protocol: what a page draws, what it says on the console, its size."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S = 60.0
T = TypeVar("T")


def program() -> str | None:
    """Return the path of an installed Chromium; None without one."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@contextmanager
def chromium() -> Iterator[str]:
    """Start a browser; yield the address of its DevTools. It ends with the block."""
    found = program()
    assert found is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = ["--headless", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen([found, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield _address(Path(folder) / "DevToolsActivePort", process)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _address(file: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait for the file in which the browser tells its port; return the address."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        if file.is_file() and (lines := file.read_text().split()):
            return f"http://127.0.0.1:{lines[0]}"
        time.sleep(0.05)
    raise RuntimeError(f"Chromium has not started within {START_S:g} s")


@dataclass(slots=True)
class Tab:
    """An open page."""

    socket: aiohttp.ClientWebSocketResponse
    said: list[str] = field(default_factory=list)
    """What the page has written to the console, and its uncaught errors."""
    requests: list[str] = field(default_factory=list)
    """Addresses that it asked for."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; return its result."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, START_S)

    async def value(self, expression: str) -> Any:
        """Evaluate JavaScript in the page, promises included; return its value."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + START_S
        while not await self.value(expression):
            assert time.monotonic() < end, f"not within {START_S:g} s: {expression}"
            await asyncio.sleep(0.05)

    async def open(self, page: Path, width: int, scheme: str) -> None:
        """Open a file in a window of this width. scheme: light or dark."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await self.call("Page.navigate", url=page.as_uri())
        await self.until("location.protocol == 'file:' && document.readyState == 'complete'")

    async def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    async def listen(self) -> None:
        """Take what the browser tells, until the connection ends."""
        async for message in self.socket:
            told = message.json()
            if "id" in told:
                answer = self._waiting.pop(told["id"])
                if not answer.done():
                    answer.set_result(told.get("result", {}))
                continue
            values = told["params"]
            match told["method"]:
                case "Runtime.consoleAPICalled":
                    self.said.append(" ".join(str(each.get("value", "")) for each in values["args"]))
                case "Runtime.exceptionThrown":
                    self.said.append(str(values["exceptionDetails"]))
                case "Log.entryAdded":
                    self.said.append(values["entry"]["text"])
                case "Network.requestWillBeSent":
                    self.requests.append(values["request"]["url"])


KEYS = {"Tab": 9}


def visit(address: str, page: Path, look: Callable[[Tab], Awaitable[T]], width: int = 1400, scheme: str = "light") -> T:
    """Open a file in a tab of its own, and return what `look` finds there."""

    async def in_tab() -> T:
        async with aiohttp.ClientSession() as session:
            async with session.put(f"{address}/json/new?about:blank") as answer:
                target = await answer.json()
            socket = await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
            tab = Tab(socket)
            listening = asyncio.ensure_future(tab.listen())
            try:
                await tab.open(page, width, scheme)
                return await look(tab)
            finally:
                listening.cancel()
                await socket.close()
                await (await session.get(f"{address}/json/close/{target['id']}")).release()

    return asyncio.run(in_tab())
