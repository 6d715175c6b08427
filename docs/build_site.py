"""Build the documentation's site into site/, strictly: a link, an anchor or an image that leads nowhere ends the build.

    python docs/build_site.py        as `make docs` does

MkDocs takes pages from one folder, and these pages link to files all over the repository. So they are copied to
build/pages, at the same places, with the files that they link to, and every link is the one that works on GitHub.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LISTING = "README.md"


def main() -> int:
    """Copy the pages, and build the site. Return the exit code of MkDocs."""
    shutil.rmtree(PAGES, ignore_errors=True)
    to_copy = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    copied: set[Path] = set()
    while to_copy:
        file = to_copy.pop()
        if file in copied:
            continue
        copied.add(file)
        target = PAGES / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text, linked = _page(file)
            target.write_text(text)
            to_copy += linked
        else:
            shutil.copy(file, target)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    # The theme's notice about a coming MkDocs 2 is no fault of these pages.
    return subprocess.run(command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False).returncode


def _page(file: Path) -> tuple[str, list[Path]]:
    """Return a page's text, with links to folders led to a list of their files, and the files that it links to."""
    linked: list[Path] = []

    def lead(link: re.Match[str]) -> str:
        name = link[2]
        target = (file.parent / name).resolve()
        if "://" in name or name.startswith("mailto:") or not target.exists():
            return link[0]  # MkDocs tells of those that lead nowhere
        if not target.is_dir():
            linked.append(target)
            return link[0]
        page = target / LISTING
        if page.exists():
            linked.append(page)
        else:
            linked.extend(_listing(target))
        return f"{link[1]}{name.rstrip('/')}/{LISTING}{link[3]}"

    parts, end = [], 0
    text = file.read_text()
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(lead, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(lead, text[end:])]), linked


def _listing(folder: Path) -> list[Path]:
    """Write a page that lists a folder's files; return the files."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    page = PAGES / folder.relative_to(ROOT) / LISTING
    page.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# {folder.relative_to(ROOT)}", "", *(f"- [{path.name}]({path.name})" for path in files), ""]
    page.write_text("\n".join(lines))
    return files


if __name__ == "__main__":
    sys.exit(main())
