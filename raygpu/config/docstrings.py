"""The docstring under each field of a schema, read from the source when a person asks for help.

pydantic can read them too, but while it makes the classes: a tenth of a second of every command and every worker.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise

from pydantic import BaseModel

from raygpu.config.sections import Section


def meaning(schema: type[BaseModel], name: str) -> str:
    """Return the docstring of a field, by its dotted name; empty without one."""
    first, dot, rest = name.partition(".")
    if not dot:
        return _docstrings(schema).get(name, "")
    table = schema.model_fields[first].annotation
    assert isinstance(table, type)
    return meaning(table, rest)


@cache
def _docstrings(schema: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a schema's fields by name, with those of the schemas that it extends."""
    docstrings: dict[str, str] = {}
    for base in reversed(schema.__bases__):
        if issubclass(base, Section):
            docstrings |= _docstrings(base)
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(schema))).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in pairwise(definition.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                docstrings[name] = inspect.cleandoc(docstring)
    return docstrings
