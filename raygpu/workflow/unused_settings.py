"""Settings of a sweep that have no effect beside its other ones."""

from __future__ import annotations

from collections.abc import Iterator

from raygpu.config import SweepConfig
from raygpu.config.sections import Section
from raygpu.search.command_line import placeholders
from raygpu.search.space import Space, varied
from raygpu.search.stopping import too_late

USED_BY: dict[str, tuple[str, ...]] = {
    "grace_epochs": ("halving", "hyperband", "median"),
    "reduction": ("halving", "hyperband"),
    "brackets": ("hyperband",),
    "min_trials": ("median",),
}
"""The stopping rules that read a setting."""


def unused_settings(config: SweepConfig, space: Space) -> list[str]:
    """Return a line for each setting that differs from its default, or hyper-parameter of a script, that nothing
    reads."""
    settings = [f"{name} has no effect {why}" for name, why in (*_of_stopping(config), *_of_the_rest(config))]
    return settings + _of_the_script(config, space)


def _of_the_script(config: SweepConfig, space: Space) -> list[str]:
    if config.command is None:
        return []
    used = {*placeholders(config.command), *(parent for each in space.parameters for parent in each.when)}
    return [
        f"space.{name}: command has no {{{name}}}, so only a script that reads the variable RAYGPU_HYPERPARAMETERS sees"
        " it"
        for name in varied(config.space)
        if name not in used
    ]


def _of_stopping(config: SweepConfig) -> Iterator[tuple[str, str]]:
    stopping = config.stopping
    rule, patience = stopping.algorithm, stopping.patience is not None
    why = "without stopping.algorithm" if rule == "none" else f'beside stopping.algorithm = "{rule}"'
    for name, rules in USED_BY.items():
        used = rule in rules or (name == "grace_epochs" and patience)
        if not used and _is_set(stopping, name):
            yield f"stopping.{name}", why
    if not patience and _is_set(stopping, "min_delta"):
        yield "stopping.min_delta", "without stopping.patience"
    for name, epoch in too_late(config).items():
        yield f"stopping.{name}", f"where epochs = {config.epochs}: it could first stop a trial after epoch {epoch}"


def _of_the_rest(config: SweepConfig) -> Iterator[tuple[str, str]]:
    if config.start_from is None and _is_set(config, "start_best"):
        yield "start_best", "without start_from"
    if not config.search.learns and _is_set(config.search, "generation"):
        yield "search.generation", f'beside search.algorithm = "{config.search.algorithm}"'
    if config.gpu.mode == "process" and config.gpu.width != "auto":
        yield "gpu.width", 'beside gpu.mode = "process"'


def _is_set(section: Section, name: str) -> bool:
    """Return whether a setting differs from its default."""
    return bool(getattr(section, name) != type(section).model_fields[name].default)
