"""Write docs/reference/: every configuration key from the schemas, and the Python names from their docstrings.

    python docs/write_reference.py

tests/docs/test_reference.py fails where a page is not what this program writes.
"""

from __future__ import annotations

import ast
import json
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import raygpu
from raygpu.config import BalanceConfig, PackConfig, PlaceConfig, SubmitConfig, SweepConfig, TrainConfig
from raygpu.config.docstrings import meaning
from raygpu.config.loading import TABLES_OF_VALUES
from raygpu.config.sections import Section

FOLDER = Path(__file__).parent / "reference"
SCHEMAS: dict[str, type[BaseModel]] = {
    "sweep": SweepConfig,
    "pack": PackConfig,
    "train": TrainConfig,
    "balance": BalanceConfig,
    "place": PlaceConfig,
    "submit": SubmitConfig,
}
WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "table"}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
RESULTS = "workflow.opened_run"
"""Module of the classes that the commands return."""
ERRORS = ("RaygpuError", "BadInput", "UnknownMetric", "TrackingError")
LONGEST = 100
"""Characters of a signature on one line."""
COMMAND = re.compile(r"\bpython -m raygpu\.(\w+)")
"""A command as docstrings name it; the pages name it `raygpu sweep`."""

CONFIGURATION = """# Configuration keys

Every key of the configuration files, written from the schemas by `docs/write_reference.py`. A key is also a flag,
but for tables whose names are yours, as `[space]`: `trials` is `--trials`, and `fraction` of `[gpu]` is
`--gpu.fraction`. [Configuration](../configuration.md) has the files that come with raygpu.
[Sweeps](../sweeps.md#search-space) has the distributions of `[space]`.

"Commands" names the commands that know the key. A command leaves out the tables, and the keys at the top, that only
other commands know, so `raygpu pack` reads the file of a sweep too, and `raygpu balance` that of a training. Within a
table that it shares with others, as `[gpu]`, a key that it does not know is a fault; so is `[space]` for
`raygpu train`, and any key that no command knows.
"""
PYTHON = """# Python reference

The public names of raygpu, written from their docstrings by `docs/write_reference.py`.
[From Python and notebooks](../python.md) shows them in use.
"""


@dataclass(slots=True)
class Key:
    """A key of a table, as one or several commands have it."""

    name: str
    values: str
    default: str
    meaning: str
    commands: list[str] = field(default_factory=list)

    @property
    def row(self) -> str:
        """The key as a row of a table in Markdown."""
        cells = (f"`{self.name}`", self.values, self.default, self.meaning, ", ".join(self.commands))
        return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def configuration() -> str:
    """Return the page of all keys: those of no table first, then each table."""
    tables: dict[str, list[Key]] = {}
    titles: dict[str, str] = {}
    for command, schema in SCHEMAS.items():
        for table, title, name, text, info in _keys(schema):
            titles.setdefault(table, title)
            found = Key(name, _values(info), _default(info), _meaning(text))
            rows = tables.setdefault(table, [])
            same = next((row for row in rows if _same(row, found)), None)
            if same is None:
                rows.append(same := found)
            same.commands.append(command)
    parts = [CONFIGURATION]
    for table, rows in tables.items():
        parts.append(f"## {f'[{table}]' if table else 'Top of the file'}\n")
        parts += [f"{titles[table]}\n"] if table else []
        parts.append("| key | values | default | meaning | commands |\n|---|---|---|---|---|")
        parts.append("\n".join(row.row for row in rows) + "\n")
    return "\n".join(parts)


def _keys(schema: type[BaseModel]) -> Iterator[tuple[str, str, str, str, FieldInfo]]:
    """Yield each key's table, the table's title, the key's name, its docstring, and what pydantic knows of it."""
    for name, info in schema.model_fields.items():
        table = info.annotation
        if isinstance(table, type) and issubclass(table, Section):
            title = " ".join((table.__doc__ or "").split())
            for inner, its in table.model_fields.items():
                yield name, title, inner, meaning(table, inner), its
        else:
            yield "", "", f"[{name}]" if name in TABLES_OF_VALUES else name, meaning(schema, name), info


def _same(one: Key, other: Key) -> bool:
    return (one.name, one.values, one.default, one.meaning) == (other.name, other.values, other.default, other.meaning)


def _values(info: FieldInfo) -> str:
    return _words(info.annotation, info.metadata)


def _words(annotation: Any, metadata: Any = ()) -> str:
    """Return the values of a type in words, with the bounds of numbers."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        details = [each for detail in arguments[1:] for each in (getattr(detail, "metadata", None) or [detail])]
        return _words(arguments[0], [*details, *metadata])
    if origin in (Union, types.UnionType):
        return " or ".join(_words(argument, metadata) for argument in arguments if argument is not type(None))
    if origin in (tuple, list):
        return f"list: {_words(arguments[0])}"
    if origin is not None and origin is not dict:
        return ", ".join(f"`{value}`" for value in arguments)
    bounds = [
        f"{word} {getattr(each, name):,}" for each in metadata for name, word in BOUNDS.items() if hasattr(each, name)
    ]
    word = WORDS[origin or annotation]
    return f"{word}, {' and '.join(bounds)}" if bounds and annotation in (int, float) else word


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True)
    return "" if value is None or value == {} else f"`{json.dumps(value)}`"


def _meaning(docstring: str) -> str:
    text = " ".join(docstring.split())
    return COMMAND.sub(r"raygpu \1", text).replace("<", "&lt;")


def python() -> str:
    """Return the page of all public names, grouped by the module that they live in."""
    package = Path(raygpu.__file__).parent
    homes: dict[str, list[str]] = {}
    for name in raygpu.__all__:
        homes.setdefault(raygpu._HOMES[name], []).append(name)  # the one list of where they live
    order = (
        "api",
        "experiment",
        "training.torch.experiment",
        "training.keras.experiment",
        "reporting",
        "search.distributions",
        "search.trials",
    )
    titles = {
        "api": "Commands",
        "experiment": "Data, losses and metrics",
        "training.data.dataset_splits": "Data sets that do not fit in memory",
        "engines.cluster.ray_rows": "Rows of Ray Data",
        "training.torch.experiment": "Experiments in PyTorch",
        "training.keras.experiment": "Experiments in Keras",
        "reporting": "Functions and scripts",
        "search.distributions": "Distributions",
        "search.trials": "Trials",
        "training.fused.fuse": "Arrays without a sweep",
        "training.keras.multi_gpu": "Several GPUs in a Keras script",
    }
    parts = [PYTHON]
    for home in sorted(homes, key=lambda home: (order.index(home) if home in order else len(order), home)):
        parts.append(f"## {titles[home]}\n")
        tree = _parsed(package, home)
        for name in homes[home]:
            parts += _entry(_found(package, tree, name), "raygpu.", tree)
        if home == "api":
            results = _parsed(package, RESULTS)
            public = [node for node in results.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
            parts += [part for node in public for part in _entry(node, "", results)]
    parts.append("## Errors\n")
    tree = _parsed(package, "errors")
    parts += [part for name in ERRORS for part in _entry(_node(tree, name), "raygpu.errors.", tree)]
    return "\n".join(parts)


def _parsed(package: Path, module: str) -> ast.Module:
    return ast.parse((package / f"{module.replace('.', '/')}.py").read_text())


def _found(package: Path, tree: ast.Module, name: str) -> Any:
    """Return the definition of a name; where the module only imports it, that of the module it comes from."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            return _node(_parsed(package, node.module.removeprefix("raygpu.")), name)
    return _node(tree, name)


def _node(tree: ast.Module, name: str) -> Any:
    return next(node for node in tree.body if getattr(node, "name", None) == name)


def _entry(node: Any, prefix: str, tree: ast.Module) -> Iterator[str]:
    """Yield the heading, signature and docstring of a function, or of a class and of its public methods."""
    yield f"### {prefix}{node.name}\n"
    if not isinstance(node, ast.ClassDef):
        yield _signature(node, prefix)
        yield f"{_docstring(node)}\n"
        return
    yield f"{_docstring(node)}\n"
    if fields := list(_fields(node)):
        yield "\n".join(fields) + "\n"
    for method in _methods(node, tree):
        yield f"#### {node.name}.{method.name}\n"
        is_property = any(isinstance(each, ast.Name) and "property" in each.id for each in method.decorator_list)
        if not is_property:
            yield _signature(method, "")
        yield f"{_docstring(method)}\n"


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields of a dataclass as a list, each with the docstring below it."""
    if not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return
    for place, each in enumerate(node.body):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            below = node.body[place + 1] if place + 1 < len(node.body) else None
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            about = " ".join(str(text).split())
            yield f"- `{each.target.id}: {ast.unparse(each.annotation)}`" + (f": {about}" if about else "")


def _methods(node: ast.ClassDef, tree: ast.Module) -> Iterator[Any]:
    """Yield public methods and properties, those of a private base class and of `Experiment` too."""
    for base in node.bases:
        if isinstance(base, ast.Name) and (base.id.startswith("_") or base.id == "Experiment"):
            above = _found(Path(raygpu.__file__).parent, tree, base.id)
            yield from (each for each in _methods(above, tree) if not _overrides(node, each.name))
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and ast.get_docstring(each):
            yield each


def _overrides(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(each, ast.FunctionDef) and each.name == name for each in node.body)


def _signature(node: ast.FunctionDef, prefix: str) -> str:
    """Return a function's signature as a block of code, an argument a line where one line does not hold it."""
    whole = ast.unparse(node.args)
    arguments = [part for part in _arguments(node) if part not in ("self", "cls")]
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{prefix}{node.name}({', '.join(arguments)}){result}"
    if len(line) > LONGEST and whole:
        line = f"{prefix}{node.name}(\n" + "".join(f"    {part},\n" for part in arguments) + f"){result}"
    return f"```text\n{line}\n```\n"


def _arguments(node: ast.FunctionDef) -> Iterator[str]:
    own = node.args
    plain = [*own.posonlyargs, *own.args]
    missing = len(plain) - len(own.defaults)
    for place, each in enumerate(plain):
        yield _argument(each, own.defaults[place - missing] if place >= missing else None)
    if own.vararg is not None:
        yield f"*{_argument(own.vararg, None)}"
    elif own.kwonlyargs:
        yield "*"
    for each, default in zip(own.kwonlyargs, own.kw_defaults, strict=True):
        yield _argument(each, default)
    if own.kwarg is not None:
        yield f"**{_argument(own.kwarg, None)}"


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    text = node.arg + (f": {ast.unparse(node.annotation)}" if node.annotation is not None else "")
    equals = " = " if node.annotation is not None else "="
    return text + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def _docstring(node: Any) -> str:
    """Return a docstring as Markdown: indented lines after an empty one are code already."""
    text = (ast.get_docstring(node) or "").replace("validation/<name>", "validation/NAME")
    return COMMAND.sub(r"raygpu \1", text)


PAGES = {"configuration.md": configuration, "python.md": python}


def main() -> None:
    """Write both pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
        print(FOLDER / name)


if __name__ == "__main__":
    main()
