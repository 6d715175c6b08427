"""raygpu's wheel, built and installed in an environment of its own, outside of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def install(folder: Path) -> Path:
    """Build the wheel and install it in a new environment, whose other packages are this one's; return its programs."""
    source, home = folder / "source", folder / "env"
    for name in ("raygpu", "experiments", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "benchmarks"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    venv.create(home)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", home / "bin" / "python", "install", "--no-deps", "--no-index", wheel], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"
