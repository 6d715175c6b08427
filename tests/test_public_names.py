from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import raygpu


def test_no_public_name_is_hidden_by_a_submodule() -> None:
    for module in pkgutil.iter_modules(raygpu.__path__):
        if module.name in raygpu.__all__:
            with pytest.raises(ImportError, match=f"raygpu.{module.name} is a function"):
                importlib.import_module(f"raygpu.{module.name}")
    importlib.import_module("raygpu.reporting")
    importlib.import_module("raygpu.experiment")
    for name in raygpu.__all__:
        assert callable(getattr(raygpu, name))
    assert set(raygpu.__all__) <= set(dir(raygpu))


def test_importing_raygpu_loads_nothing_heavy() -> None:
    heavy = "('torch', 'tensorflow', 'ray', 'mlflow', 'keras', 'numpy', 'pydantic')"
    code = f"import sys, raygpu; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_digits_experiments_load_no_framework_until_one_is_used() -> None:
    code = "import sys, experiments.digits; print([n for n in ('torch', 'tensorflow', 'keras') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
