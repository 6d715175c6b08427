"""A script's command line with the hyper-parameters of a trial in it.

words = filled("python train.py --lr {lr}", trial, epochs=5)     # ["python", "train.py", "--lr", "0.1"]
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Mapping
from typing import Any

from raygpu.errors import BadInput
from raygpu.search.trials import Trial

FOLD_PLACEHOLDERS = ("fold", "folds")
"""Names in braces that a command has in a cross-validation: the fold that validates the trial, from 0, and their
number."""
OWN_PLACEHOLDERS = ("trial_id", "seed", "epochs", *FOLD_PLACEHOLDERS)
"""Names in braces that every command has, beside the hyper-parameters."""


def placeholders(command: str) -> set[str]:
    """Return the names in braces in a command line. Raises BadInput if it cannot be split or has stray braces."""
    try:
        names = {name for word in shlex.split(command) for _, name, _, _ in string.Formatter().parse(word)} - {None}
    except ValueError as error:
        raise BadInput(f"command: read {command!r}; {error}") from error
    if "" in names:
        raise BadInput(
            f"command: read {command!r}; {{}} names no hyper-parameter; literal braces are doubled: {{{{}}}}"
        )
    return {str(name) for name in names}


def render(command: str, values: Mapping[str, Any]) -> list[str]:
    """Return the command's words with hyper-parameters filled in.

    A word whose hyper-parameter this trial does not have is left out, and so is an option right before it.
    """
    words: list[str] = []
    after_option = False
    for word in shlex.split(command):
        names = [name for _, name, _, _ in string.Formatter().parse(word) if name]
        is_given = all(name in values for name in names)
        if is_given:
            words.append(_filled_word(word, values))
        elif word == f"{{{names[0]}}}" and after_option:
            words.pop()
        after_option = is_given and word.startswith("-")
    return words


def filled(command: str, trial: Trial, epochs: int | None, folds: int | None = None) -> list[str]:
    """Return the words of the command line that trains a trial. epochs, folds: numbers of the sweep's."""
    trial_values = {"trial_id": trial.trial_id, "seed": trial.seed, "epochs": epochs}
    if trial.fold is not None:
        trial_values |= {"fold": trial.fold, "folds": folds}
    return render(command, {**trial_values, **trial.hyperparameters})


def _filled_word(word: str, values: Mapping[str, Any]) -> str:
    """Replace the placeholders of a word; names are taken whole: `{net.lr}` is the hyper-parameter `net.lr`."""
    parts = string.Formatter().parse(word)
    return "".join(text + (format(values[name], spec or "") if name else "") for text, name, spec, _ in parts)
