"""What tests have written and imported."""

from __future__ import annotations

import sys
from pathlib import Path


def forget(folder: Path) -> None:
    """Let the modules in a folder be imported anew: the next test, or the next block of a page, may write others."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
