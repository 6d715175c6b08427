"""The search space: `[space]` of a configuration, parsed; trials drawn from it.

    lr     = { loguniform = [1e-3, 1.0] }
    layers = { choice = [1, 2] }
    width2 = { choice = [32, 64], when = { layers = 2 } }     # only in trials of two layers
    epochs = 5                                                # a constant

The distributions carry Ray Tune's names and meanings (docs.ray.io, "Tune Search Space API"). A parameter's value in a
trial depends on the seed, the trial's place and the parameter's name alone: more trials, or another parameter, leave
the rest as it was.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from reprlib import repr as shortened
from typing import Any

import numpy as np

from raygpu.config import literal
from raygpu.config.sections import LEARNING
from raygpu.errors import BadInput, suggestion
from raygpu.search.trials import Trial

Draw = Callable[[np.random.Generator, tuple[Any, ...]], Any]


def quantized(value: float, step: float) -> float:
    """Return the multiple of a step that lies nearest to a value."""
    # Rounding to the step's own decimals turns 0.30000000000000004 into 0.3.
    return round(round(value / step) * step, max(12, 12 - math.floor(math.log10(step))))


def stepped(value: float, low: float, high: float, step: float) -> float:
    """Return the multiple of a step that lies nearest to a value, or the end of the range if it lies outside."""
    return min(max(quantized(value, step), low), high)


def _loguniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


_DRAWS: dict[str, Draw] = {
    "uniform": lambda rng, a: float(rng.uniform(a[0], a[1])),
    "quniform": lambda rng, a: stepped(rng.uniform(a[0], a[1]), *a),
    "loguniform": lambda rng, a: _loguniform(rng, a[0], a[1]),
    "qloguniform": lambda rng, a: stepped(_loguniform(rng, a[0], a[1]), *a),
    "randn": lambda rng, a: float(rng.normal(a[0], a[1])),
    "qrandn": lambda rng, a: quantized(rng.normal(a[0], a[1]), a[2]),
    "randint": lambda rng, a: int(rng.integers(a[0], a[1])),
    "qrandint": lambda rng, a: int(a[0] + a[2] * rng.integers(0, (a[1] - a[0]) // a[2] + 1)),
    "lograndint": lambda rng, a: min(int(_loguniform(rng, a[0], a[1])), a[1] - 1),
    "qlograndint": lambda rng, a: int(stepped(_loguniform(rng, a[0], a[1]), *a)),
    "choice": lambda rng, a: a[int(rng.integers(len(a)))],
}
_NUM_ARGUMENTS = {name: 3 if name.startswith("q") else 2 for name in _DRAWS if name != "choice"}
LARGEST = 2**62
"""Largest absolute value of a number in a distribution."""
MOST_COMBINATIONS = 100_000
"""Largest number of combinations of a grid."""
KINDS = (*_DRAWS, "grid_search")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One hyper-parameter: a distribution, and the values of other parameters for which it exists."""

    name: str
    kind: str
    """Name of the distribution, one of KINDS, or "constant"."""
    arguments: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]]

    def active(self, values: Mapping[str, Any]) -> bool:
        """Return whether the parameter exists beside these values of the parameters that it depends on."""
        return all(parent in values and values[parent] in allowed for parent, allowed in self.when.items())

    def draw(self, seed: int, index: int) -> Any:
        """Draw the parameter's value in trial `index`."""
        if self.kind == "constant":
            return self.arguments[0]
        rng = np.random.default_rng([seed, index, zlib.crc32(self.name.encode())])
        return _DRAWS[self.kind](rng, self.arguments)

    def from_text(self, text: str, kept: Callable[[Any], str] = str) -> Any:
        """Return the value of which a file or a tracking server has the text, in its own type: "1" may be text.

        kept: gives a value's text there, which may be cut. Raises BadInput if the space lists two values with this
        text, as 1 and "1".
        """
        listed = self.arguments if self.kind in ("constant", "choice", "grid_search") else ()
        for form in (str, _with_lists):
            matches = [value for value in listed if form(kept(value)) == form(text)]
            if len({repr(value) for value in matches}) > 1:
                raise BadInput(
                    f"space.{self.name}: {' and '.join(map(shortened, matches))} are both kept as {shortened(text)},"
                    " which tells one from the other no more; best.toml in the sweep's folder has its best trial's own"
                )
            if matches:
                return matches[0]
        return literal(text)

    def ends(self) -> tuple[Any, ...]:
        """Return the listed values of a parameter, or the smallest and the largest one; empty if it has no bounds."""
        if self.kind in ("constant", "choice", "grid_search"):
            return self.arguments
        return () if self.kind.endswith("randn") else self.arguments[:2]

    def options(self) -> Sequence[Any] | None:
        """Return every value of a parameter with finitely many, which may be very many; None for a continuous one."""
        match self.kind:
            case "constant" | "choice" | "grid_search":
                return self.arguments
            case "randint":
                return range(*self.arguments)
            case "qrandint":
                low, high, step = self.arguments
                return range(low, high + 1, step)
        return None

    def may_be(self, values: Sequence[Any]) -> bool:
        """Return whether the parameter can have one of these values, as far as that is known."""
        options = self.options()
        return options is None or any(value in options for value in values)


def listed(value: Any) -> str | None:
    """Return advice on a constant that is a list, as somebody writes who wants to try each; None for another value."""
    if not isinstance(value, list | tuple):
        return None
    return f"{list(value)!r} is one value of every trial; to try each: {{ choice = {list(value)!r} }}"


def _with_lists(value: Any) -> str:
    """Return a value's text with tuples written as lists, as a configuration file has them."""
    return str(value).replace("(", "[").replace(",)", "]").replace(")", "]")


@dataclass(frozen=True, slots=True)
class Space:
    """Parameters, each after the ones that it depends on."""

    parameters: tuple[Parameter, ...]

    def draw(self, seed: int, index: int, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Draw the hyper-parameters of trial `index` of a random search. given: values that are not drawn."""
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.active(values):
                is_given = given is not None and parameter.name in given
                values[parameter.name] = given[parameter.name] if is_given else parameter.draw(seed, index)  # type: ignore[index]
        return values

    def from_texts(self, text_of: Callable[[str], str | None], kept: Callable[[Any], str] = str) -> dict[str, Any]:
        """Return a trial's hyper-parameters by the texts that a file or a tracking server has of them.

        text_of: gives a hyper-parameter's text by its name, in the space's order and for those alone that the trial
        has; None if there is none. kept: as for `Parameter.from_text`. Raises BadInput for a text of two values.
        """
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if not parameter.active(values):
                continue
            text = text_of(parameter.name)
            if text or (text == "" and "" in parameter.ends()):
                values[parameter.name] = parameter.from_text(text, kept)
        return values

    def grid(self) -> Iterator[dict[str, Any]]:
        """Yield every combination; an inactive parameter is left out and multiplies nothing."""

        def extend(values: dict[str, Any], rest: tuple[Parameter, ...]) -> Iterator[dict[str, Any]]:
            """Yield every extension of these values by the remaining parameters."""
            if not rest:
                yield values
                return
            first, *others = rest
            if not first.active(values):
                yield from extend(values, tuple(others))
                return
            for option in first.options() or ():
                yield from extend({**values, first.name: option}, tuple(others))

        return extend({}, self.parameters)


def trial_seed(seed: int, index: int) -> int:
    """Return the seed of trial `index`, below 2**31 so that every framework takes it."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0] >> 1)


def random_trials(space: Space, count: int, seed: int, starts: Sequence[Mapping[str, Any]] = ()) -> list[Trial]:
    """Draw the trials of a random search: the same for the same seed, and the first ones of any larger count.

    starts: values of the first trials; what one leaves open is drawn.
    """
    all_starts = [*starts[:count], *({} for _ in range(count - len(starts)))]
    return [Trial(Trial.name(i), trial_seed(seed, i), space.draw(seed, i, start)) for i, start in enumerate(all_starts)]


def grid_trials(
    space: Space,
    count: int | None,
    seed: int,
    starts: Sequence[Mapping[str, Any]] = (),
    begun: int | None = None,
) -> list[Trial]:
    """Return the trials of a grid search: all combinations in the grid's order, or a sample of `count`.

    A sample is in the order of its seeded draw: the first ones of any larger sample. starts: the combinations that have
    these values come first. begun: number of trials with which a search began that goes on; None for a new one. One
    that began as a sample keeps the sample's order, up to all combinations.
    """
    points = list(space.grid())
    first = count if begun is None else begun
    if first is not None and first < len(points):
        points = [points[i] for i in np.random.default_rng(seed).permutation(len(points))]

    def place(point: Mapping[str, Any]) -> int:
        """Return the number of the first start that a combination agrees with."""
        agree = (i for i, start in enumerate(starts) if all(point.get(name) == value for name, value in start.items()))
        return next(agree, len(starts))

    points = sorted(points, key=place)[:count]
    return [Trial(Trial.name(i), trial_seed(seed, i), point) for i, point in enumerate(points)]


def parse(table: Mapping[str, Any], algorithm: str = "random") -> Space:
    """Parse a `[space]` table. Raises BadInput with a line for each fault."""
    if not table:
        raise BadInput("space: empty; give at least one hyper-parameter, as in lr = { loguniform = [1e-4, 1e-1] }")
    faults: list[str] = []
    parameters: dict[str, Parameter] = {}
    for name, value in table.items():
        try:
            parameters[name] = _parameter(name, value, algorithm)
        except ValueError as error:
            faults.append(f"space.{name}: {error}")
    for parameter in parameters.values():
        whens = (_when_fault(parent, allowed, parameters, table) for parent, allowed in parameter.when.items())
        faults += [f"space.{parameter.name}: when: {fault}" for fault in whens if fault is not None]
    if faults:
        raise BadInput(faults)
    space = Space(_in_order(parameters))
    if algorithm == "grid" and next(itertools.islice(space.grid(), MOST_COMBINATIONS, None), None) is not None:
        raise BadInput(
            f'space: a grid of more than {MOST_COMBINATIONS:,} combinations; search.algorithm = "random" draws some'
        )
    return space


def _when_fault(
    parent: str, allowed: Sequence[Any], parameters: Mapping[str, Parameter], table: Mapping[str, Any]
) -> str | None:
    """Return why a condition can never hold; None if it may."""
    if parent not in table:
        return f"no hyper-parameter {parent!r}{suggestion(parent, list(table))}"
    entry = parameters.get(parent)
    if entry is None or entry.may_be(allowed):
        return None
    return (
        f"{parent} is never {' or '.join(map(repr, allowed)) or 'nothing'}; it is {entry.kind} {list(entry.arguments)}"
    )


def varied(table: Mapping[str, Any]) -> list[str]:
    """Return the names of a `[space]` table's hyper-parameters that are not the same in every trial."""
    return [name for name, value in table.items() if isinstance(value, Mapping) and "constant" not in value]


def _parameter(name: str, value: Any, algorithm: str) -> Parameter:
    if not isinstance(value, Mapping):
        return Parameter(name, "constant", _constant(value), {})
    when = value.get("when", {})
    kinds = [key for key in value if key != "when"]
    if len(kinds) != 1 or kinds[0] not in (*KINDS, "constant"):
        read = ", ".join(map(repr, kinds)) or "nothing"
        hint = suggestion(kinds[0], list(KINDS)) if len(kinds) == 1 else ""
        raise ValueError(f"read {read}{hint}; one distribution of: {', '.join(KINDS)}")
    kind = kinds[0]
    arguments = _constant(value[kind]) if kind == "constant" else _arguments(kind, value[kind])
    parameter = Parameter(name, kind, arguments, _conditions(when))
    if algorithm == "grid" and kind in ("randint", "qrandint"):
        low, high, step = (*arguments, 1)[:3]
        if (high - low) // step > MOST_COMBINATIONS:
            raise ValueError(f"{kind}: more than {MOST_COMBINATIONS:,} values are no grid")
    elif algorithm == "grid" and parameter.options() is None:
        raise ValueError(f"{kind} has no end of values; a grid takes choice, grid_search, randint and qrandint")
    if algorithm != "grid" and kind == "grid_search":
        raise ValueError('grid_search needs search.algorithm = "grid"; otherwise write choice')
    if algorithm in LEARNING and kind in ("randn", "qrandn"):
        raise ValueError(f"{algorithm} has no {kind}; write uniform or quniform")
    return parameter


def _constant(value: Any) -> tuple[Any, ...]:
    if _has_none(value):
        read = "read None, which" if value is None else f"read {value!r}, whose None"
        raise ValueError(f"{read} cannot be written to a file; leave it out")
    return (value,)


def _has_none(value: Any) -> bool:
    """Return whether a value is None, or a list or a table with one in it."""
    if isinstance(value, Mapping):
        return any(map(_has_none, value.values()))
    return value is None or (isinstance(value, list | tuple) and any(map(_has_none, value)))


def _arguments(kind: str, value: Any) -> tuple[Any, ...]:
    """Return the options of a choice, or the bounds of a range; of one with a step, its first and last multiple."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{kind}: read {value!r}; a list is wanted")
    if kind in ("choice", "grid_search"):
        if not value:
            raise ValueError(f"{kind}: the list is empty")
        if any(map(_has_none, value)):
            raise ValueError(f"{kind}: None cannot be written to a file; use text, or leave it out by `when`")
        return tuple(value)
    _require_range(kind, value)
    if not kind.startswith("q") or kind == "qrandn":
        return tuple(value)
    low, high, step = value
    first, last = _multiples(low, high, step, whole="int" in kind)
    if "log" in kind:
        first = max(first, quantized(step, step))
    if first > last:
        raise ValueError(f"{kind}: read {list(value)!r}; there is no multiple of {step} from {low} to {high}")
    return first, last, step


def _require_range(kind: str, value: Sequence[Any]) -> None:
    """Raise ValueError unless these are the finite numbers that a kind of range takes."""
    count = _NUM_ARGUMENTS[kind]
    meaning = "mean, deviation" if "randn" in kind else "low, high"
    shape = f"[{meaning}{', step' if count == 3 else ''}]"
    if len(value) != count or not all(_is_number(number) for number in value):
        raise ValueError(f"{kind}: read {list(value)!r}; {shape} is wanted, {count} finite numbers")
    if "int" in kind and not all(isinstance(number, int) for number in value):
        raise ValueError(f"{kind}: read {list(value)!r}; whole numbers are wanted")
    if max(map(abs, value)) > LARGEST:
        raise ValueError(f"{kind}: read {list(value)!r}; numbers up to {LARGEST:g} are wanted")
    if count == 3 and value[2] <= 0:
        raise ValueError(f"{kind}: step {value[2]!r} is not above 0")
    if "randn" in kind:
        if value[1] <= 0:
            raise ValueError(f"{kind}: deviation {value[1]!r} is not above 0")
    elif value[0] >= value[1]:
        raise ValueError(f"{kind}: low {value[0]!r} is not below high {value[1]!r}")
    elif "log" in kind and value[0] <= 0:
        raise ValueError(f"{kind}: low {value[0]!r} is not above 0, and its logarithm is needed")


def _multiples(low: float, high: float, step: float, *, whole: bool) -> tuple[float, float]:
    """Return the first and the last multiple of a step between two bounds. whole: whether all are whole numbers, which
    floats would round."""
    if whole:
        return -(-low // step) * step, high // step * step
    first, last = quantized(low, step), quantized(high, step)
    near = partial(math.isclose, rel_tol=1e-12, abs_tol=1e-9 * step)
    if first < low and not near(first, low):
        first = quantized(first + step, step)
    if last > high and not near(last, high):
        last = quantized(last - step, step)
    return first, last


def _conditions(when: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(when, Mapping):
        raise ValueError(f"when: read {when!r}; a table is wanted, as in when = {{ layers = [2, 3] }}")
    if _has_none(when):
        raise ValueError(f"when: read {dict(when)!r}; None cannot be written to a file, and no hyper-parameter is None")
    return {parent: tuple(allowed) if isinstance(allowed, list) else (allowed,) for parent, allowed in when.items()}


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (isinstance(value, int) or math.isfinite(value))


def _in_order(parameters: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    """Sort each parameter after the ones that it depends on, otherwise constants first and the others as written: a
    run's own file has the constants first. Raises BadInput for a cycle."""
    placed: dict[str, Parameter] = {}
    waiting = dict(sorted(parameters.items(), key=lambda entry: entry[1].kind != "constant"))
    while waiting:
        ready = [name for name, parameter in waiting.items() if all(parent in placed for parent in parameter.when)]
        if not ready:
            raise BadInput(f"space: {' and '.join(waiting)} depend on each other through when")
        # One at a time, in the file's order: a grid then counts like nested loops as written.
        placed[ready[0]] = waiting.pop(ready[0])
    return tuple(placed.values())
