"""What raygpu may be installed with."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def test_no_release_with_a_known_hole_is_allowed() -> None:
    """Those of SECURITY.md's table."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = chain(project["dependencies"], *project["optional-dependencies"].values())
    found = {wanted.name: wanted.specifier for wanted in map(Requirement, lines)}
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \| CVE-", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert {package for package, _ in rows} >= {"ray", "mlflow", "torch"}
    for package, fixed in rows:
        (floor,) = (spec for spec in found[package] if spec.operator == ">=")
        assert Version(floor.version) >= Version(fixed), package
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for package, fixed in rows:
        assert Version(pins[package]) >= Version(fixed), package
