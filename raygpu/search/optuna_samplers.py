"""Optuna's samplers by name, with raygpu's search space: what each can draw, and how a value is asked for.

    require("gp", space, several=False)
    study = optuna.create_study(sampler=optuna_sampler("gp", space, seed=0, generation=8, several=False))
    values = suggest_all(space, study.ask())

Optuna's own documentation says how each sampler works: optuna.readthedocs.io, "optuna.samplers".
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raygpu.errors import BadInput
from raygpu.search.space import Parameter, Space, stepped

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

NEEDS = {"gp": "torch", "cmaes": "cmaes"}
"""Package that a sampler imports beside Optuna."""
FEWEST_NUMBERS = 2
"""Fewest dimensions of CMA-ES."""


def require(algorithm: str, space: Space, *, several: bool) -> None:
    """Raise BadInput if a sampler cannot search this space, or if its package is missing. several: whether the sweep
    has several metrics."""
    package = NEEDS.get(algorithm, "optuna")
    if importlib.util.find_spec(package) is None:
        raise BadInput(f"search.algorithm: {algorithm} needs a package that is not installed: pip install {package}")
    if algorithm != "cmaes":
        return
    if several:
        raise BadInput("search.algorithm: cmaes takes one metric; several: tpe, gp, nsgaii, random, qmc or grid")
    if len(numbers := _numbers(space)) < FEWEST_NUMBERS:
        raise BadInput(
            f"search.algorithm: cmaes searches at least {FEWEST_NUMBERS} numbers that every trial has; [space] has"
            f" {', '.join(numbers) or 'none'}; tpe searches any space"
        )


def optuna_sampler(algorithm: str, space: Space, *, seed: int, generation: int, several: bool) -> BaseSampler:
    """Make the sampler. generation: number of trials of a generation, for samplers that compare them. several: whether
    the sweep has several metrics."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = optuna.samplers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `group` and GPSampler are called experimental
        match algorithm:
            case "gp":
                return samplers.GPSampler(seed=seed, warn_independent_sampling=False)
            case "cmaes":
                popsize = _cmaes_generation(len(_numbers(space)), generation)
                return samplers.CmaEsSampler(
                    seed=seed, popsize=popsize, warn_independent_sampling=False, n_startup_trials=1
                )
            case "nsgaii":
                return samplers.NSGAIISampler(seed=seed, population_size=max(2, generation))
        # constant_liar: trials that are under way together keep away from each other. Optuna searches several metrics
        # one hyper-parameter at a time.
        grouped = not several and any(parameter.when for parameter in space.parameters)
        return samplers.TPESampler(seed=seed, constant_liar=True, multivariate=not several, group=grouped)


def _cmaes_generation(num_numbers: int, generation: int) -> int:
    """Return the number of trials that CMA-ES learns from together: whole generations of the search, as near to its own
    default as they come.

    What it has been given beyond that number is thrown away, and what is drawn before is of the same distribution.
    """
    default = 4 + math.floor(3 * math.log(num_numbers))
    return generation * max(1, round(default / generation))


def notes(algorithm: str, space: Space) -> list[str]:
    """Return a line on the hyper-parameters that a sampler leaves to chance, as Optuna does; empty if there are
    none."""
    varied = [parameter for parameter in space.parameters if parameter.kind != "constant"]
    conditional = [parameter.name for parameter in varied if parameter.when]
    chosen = [p.name for p in varied if p.kind == "choice" and not p.when]
    reasons = {"cmaes": [(chosen, "of choices"), (conditional, "that not every trial has")]}
    reasons["gp"] = [(conditional, "that not every trial has")]
    omissions = [f"{', '.join(names)} ({why})" for names, why in reasons.get(algorithm, []) if names]
    return [f"search: {algorithm} leaves to chance: {'; '.join(omissions)}"] if omissions else []


def suggest_all(space: Space, asked: Any) -> dict[str, Any]:
    """Return the hyper-parameters of an Optuna trial."""
    values: dict[str, Any] = {}
    for parameter in space.parameters:
        if parameter.active(values):
            values[parameter.name] = _suggest(asked, parameter.name, parameter.kind, parameter.arguments)
    return values


def enqueued(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters as Optuna's `enqueue_trial` takes them."""
    by_name = {parameter.name: parameter for parameter in space.parameters if parameter.kind != "constant"}
    return {name: _asked(by_name[name], value) for name, value in values.items() if name in by_name}


def _asked(parameter: Parameter, value: Any) -> Any:
    if parameter.kind != "choice":
        return value
    return list(map(repr, parameter.arguments)).index(repr(value))  # 1 equals true


def _numbers(space: Space) -> list[str]:
    """Return the names of the numbers that every trial has."""
    return [p.name for p in space.parameters if p.kind not in ("constant", "choice") and not p.when]


def _suggest(asked: Any, name: str, kind: str, a: tuple[Any, ...]) -> Any:
    """Draw one parameter by Optuna, with the meaning that Ray Tune gives its distribution."""
    match kind:
        case "constant":
            return a[0]
        case "choice":  # by place, since Optuna's categories must be scalars
            return a[asked.suggest_categorical(name, list(range(len(a))))]
        case "uniform" | "loguniform":
            return asked.suggest_float(name, a[0], a[1], log=kind == "loguniform")
        case "quniform":
            return stepped(asked.suggest_float(name, a[0], a[1], step=a[2]), *a)
        case "qloguniform":
            return stepped(asked.suggest_float(name, a[0], a[1], log=True), *a)
        case "randint" | "lograndint":  # the upper bound is excluded
            return asked.suggest_int(name, a[0], a[1] - 1, log=kind == "lograndint")
        case "qrandint":
            return asked.suggest_int(name, a[0], a[1], step=a[2])
        case "qlograndint":
            return int(stepped(asked.suggest_int(name, a[0], a[1], log=True), *a))
    raise AssertionError(kind)
