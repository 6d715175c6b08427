"""State that a model keeps outside its parameters: the files that are the user's own."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from raygpu.training.torch.python_state import _constant_text
from raygpu.training.users_files import in_users_file


def test_files_of_installed_packages_are_not_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, project = tmp_path / "target", tmp_path / "project"
    for folder in (target / "numpy-9.9.dist-info", target / "numpy", project / "mine.egg-info"):
        folder.mkdir(parents=True)
    (target / "numpy-9.9.dist-info" / "RECORD").write_text("numpy/matrix.py,sha256=x,1\nsix.py,,\n")
    monkeypatch.syspath_prepend(f"{target}/")
    monkeypatch.syspath_prepend(str(project))
    assert in_users_file(str(project / "mine.py"))
    assert not in_users_file(str(target / "numpy" / "matrix.py")), "installed by pip install --target"
    assert not in_users_file(str(target / "six.py"))
    assert in_users_file(str(target / "mine.py")), "beside them"
    assert not in_users_file(np.__file__)
    assert not in_users_file(f"{sysconfig.get_path('stdlib')}{os.sep}random.py")


def test_functions_that_differ_in_a_constant_alone_have_other_texts() -> None:
    one, other = (lambda x: x.amax((1, 2))), (lambda x: x.amax((2, 3)))
    assert _constant_text(one) != _constant_text(other)
    assert _constant_text(lambda x: [y for y in x if y in {"a", "b"}]) != _constant_text(
        lambda x: [y for y in x if y in {"a", "c"}]
    )
