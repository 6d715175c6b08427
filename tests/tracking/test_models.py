"""What a finished model's way to MLflow imports."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from raygpu.tracking.models import without_lightning
sys.meta_path.insert(0, type("No", (), {"find_spec": staticmethod(lambda name, *_: 1 / 0 if name == LOOKED else None)}))
LOOKED = "pytorch_lightning"
with without_lightning():
    import mlflow.pytorch
assert callable(mlflow.pytorch.log_model) and LOOKED not in sys.modules
sys.modules[LOOKED] = theirs = object()
with without_lightning():
    assert sys.modules[LOOKED] is theirs
assert sys.modules[LOOKED] is theirs
"""


def test_lightning_is_not_imported_and_stays_where_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
