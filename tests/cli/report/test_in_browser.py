"""The pages in a headless Chromium: all figures drawn, a silent console, nothing too wide, tables by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raygpu.records.run_directory import RunDirectory
from raygpu.write_report import main
from tests.measured_cases import balance_folder, pack_folder, place_folder
from tests.report_cases import sweep_folder, training_folder
from tests.services.chromium import Tab, chromium, program, visit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(program() is None, reason="no Chromium here; Debian's package is `chromium`"),
]
FOLDERS = {
    "sweep": sweep_folder,
    "train": training_folder,
    "pack": pack_folder,
    "place": place_folder,
    "balance": balance_folder,
}
OF_THE_MACHINE = ("GL Driver Message", "software WebGL", "GPU stall")
"""What Chromium itself writes where there is no graphics card."""
DRAWN = "Object.keys(figures).every((name) => document.getElementById(name).querySelector('svg, canvas'))"


@pytest.fixture(scope="module")
def browser() -> Iterator[str]:
    """The address of a browser."""
    with chromium() as address:
        yield address


@pytest.fixture(params=FOLDERS)
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The report of a run of each kind."""
    make: Callable[[Path], RunDirectory] = FOLDERS[request.param]
    run = make(tmp_path / request.param)
    assert main([str(run.path)]) == 0
    return run.report


async def look(tab: Tab) -> dict[str, Any]:
    """Wait until the page has drawn its figures; return what is to be seen."""
    await tab.until(DRAWN)
    found: dict[str, Any] = await tab.value(
        """({
            figures: Object.keys(figures).length,
            empty: Object.keys(figures).filter((name) => document.getElementById(name).clientHeight < 100),
            wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
            ground: getComputedStyle(document.body).backgroundColor,
            sends: [...document.querySelectorAll(".modebar-btn")]
                .filter((button) => /share|cloud/i.test(button.getAttribute("data-title"))).length,
        })"""
    )
    said = [line for line in tab.said if not any(known in line for known in OF_THE_MACHINE)]
    return found | {"said": said, "requests": [url for url in tab.requests if not url.startswith(("file:", "data:"))]}


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_a_page_is_whole(browser: str, page: Path, width: int, scheme: str) -> None:
    found = visit(browser, page, look, width, scheme)
    assert found["figures"] > 1
    assert found["empty"] == []
    assert found["said"] == []
    assert found["requests"] == []
    assert found["wider"] == 0, "no scroll bar below the page"
    assert found["ground"] == ("rgb(244, 246, 248)" if scheme == "light" else "rgb(17, 22, 27)")
    assert found["sends"] == 0, "no button sends the run's numbers to a server"


def test_the_keyboard_reaches_the_tables(browser: str, tmp_path: Path) -> None:
    run = sweep_folder(tmp_path / "run")
    assert main([str(run.path)]) == 0

    async def walk(tab: Tab) -> list[str]:
        """Press the tabulator; return what has the focus, one after the other."""
        await tab.until(DRAWN)
        reached = []
        for _ in range(60):
            await tab.press("Tab")
            label = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
            reached.append(await tab.value(label))
        return reached

    reached = visit(browser, run.report, walk)
    assert reached[0] == "To the content"
    for name in (
        "by score",
        "plan and outcome",
        "validation/accuracy: the numbers",
        "Timeline of the GPUs: the numbers",
    ):
        assert name in reached
