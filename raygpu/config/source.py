"""From the name of an experiment in a configuration to the user's code: a class, a function or a script.

source, code = locate("train.py:Mine", Path.cwd())
code = source.resolve()      # again, in a worker
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pickle
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raygpu.config.constants import Constants, constants, differing
from raygpu.config.generators import same_draws
from raygpu.config.imported_files import forget_file, note_files
from raygpu.config.kept_devices import devices_kept
from raygpu.config.sections import ScriptSection
from raygpu.errors import BadInput, one_line, suggestion
from raygpu.experiment import Experiment
from raygpu.storage import BEGUN_IN

SHOWN = 8
"""Number of names of a module in a message."""
IMPORTED, CONSTRUCTED = 3, 4
"""Stages by which the random generators are seeded for the user's code; those below are of its data."""
_compared: set[tuple[str, str]] = set()
"""Names and folders of the experiments whose arrays are compared in this process: trainings may change them later."""
PICKLED = ".pkl"
"""Ending of the file of an experiment that was pickled by value."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a trial's code: picklable, and resolved again in each worker.

    kind: "torch" and "keras" name an `Experiment`, "function" a function of one dict, "command" a script.
    name: `package.module:Name` or `path/to/file.py:name`, the file of a pickled experiment, or the command line itself.
    folder: the start of relative paths, and importable. Absolute, or relative to a worker's first working directory; an
    unpickled source has an absolute one.
    script: settings of a command.
    constants: arrays of an experiment in the process that located it.
    pickled: content of the file of a pickled experiment, for nodes that cannot read it; else empty.
    """

    kind: str
    name: str
    folder: str
    script: ScriptSection = field(default_factory=ScriptSection)
    constants: Constants = field(default_factory=dict, repr=False, compare=False)
    pickled: bytes = field(default=b"", repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.kind, self.name, self.folder, self.script, self.constants, self.pickled)

    def resolve(self) -> Experiment | Callable[[dict[str, Any]], Any]:
        """Return the user's object: an `Experiment` instance or a function. Raises BadInput, also where arrays of an
        experiment are others than in the process that located it.

        A function's module may seed the generators for its trainings, so they are left as the import leaves them.
        """
        with nullcontext() if self.kind == "function" else same_draws(IMPORTED):
            code = resolve(self.name, Path(self.folder), self.pickled)
        if self.constants and (self.name, self.folder) not in _compared:
            if (name := next(differing(self.constants, _constants(code, self.name)), None)) is not None:
                raise BadInput(
                    f"experiment: {self.name}: {name} is not the same array in all processes, so that their models"
                    " would differ: draw it by a generator with a seed, as np.random.default_rng(0), and make what is"
                    " written later by np.zeros"
                )
            _compared.add((self.name, self.folder))
        return code

    def reported(self, metric: str) -> str:
        """Return the name by which its trainings report the metric that a configuration names."""
        is_full_name = self.kind in ("function", "command") or "/" in metric
        return metric if is_full_name else f"validation/{metric}"


def _arrived(
    kind: str, name: str, folder: str, script: ScriptSection, located: Constants, pickled: bytes = b""
) -> Source:
    """Unpickle a source: make its folder absolute in the process that receives it."""
    return Source(kind, name, str(BEGUN_IN / folder), script, located, pickled)


def _constants(code: Any, name: str) -> Constants:
    """Return the arrays of an experiment; none of a function. Those of a pickled one's module stay where it is."""
    return constants(code, with_module=not name.endswith(PICKLED)) if isinstance(code, Experiment) else {}


def locate(name: str, folder: Path) -> tuple[Source, Experiment | Callable[[dict[str, Any]], Any]]:
    """Return the source that `name` stands for, and the user's object. Raises BadInput."""
    with same_draws(IMPORTED):
        code = resolve(name, folder)
    kind = code.framework if isinstance(code, Experiment) else "function"
    _compared.add((name, str(folder)))
    return Source(kind=kind, name=name, folder=str(folder), constants=_constants(code, name)), code


def require_there(name: str | None, folder: Path) -> None:
    """Raise BadInput if `name` stands for nothing; import only where its source does not show it. None: no
    experiment."""
    if name is not None and not name.endswith(PICKLED) and not _is_defined(name, folder):
        with same_draws(IMPORTED):  # a module that is imported now is not imported again by `locate`
            resolve(name, folder)


def _is_defined(name: str, folder: Path) -> bool:
    """Return whether the source that `name` names can be read, and defines or imports the name at its top level."""
    module_name, attribute = _parts(name)
    if module_name.endswith(".py"):
        paths = [folder / module_name]
    else:
        stems = [Path(base, *module_name.split(".")) for base in (*sys.path, str(folder))]
        paths = [path for stem in stems for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))]
    source = next((path for path in paths if path.is_file()), None)
    try:
        statements = ast.parse(source.read_bytes()).body if source is not None else []
    except (OSError, SyntaxError, ValueError):
        return False
    return any(attribute in _names(statement) for statement in statements)


def _names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module's top level binds, of the usual kinds."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return {name}
        case ast.ImportFrom(names=aliases):
            return {alias.asname or alias.name for alias in aliases}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


def _parts(name: str) -> tuple[str, str]:
    """Return the module or file, and the name in it. Raises BadInput."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        raise BadInput(f'experiment: read {name!r}; write "package.module:Name" or "path/to/file.py:name"')
    return module_name, attribute


def resolve(name: str, folder: Path, pickled: bytes = b"") -> Experiment | Callable[[dict[str, Any]], Any]:
    """Import the object that `module:Name` or `file.py:name` names, or read a pickled one; instantiate it if it is an
    experiment class.

    folder: the start of relative paths, and a place to look up modules. pickled: content of a pickled one's file, which
    is read if this is empty. Raises BadInput.
    """
    try:
        with devices_kept(name):
            return _resolved(name, folder, pickled)
    finally:
        note_files()


def _resolved(name: str, folder: Path, pickled: bytes) -> Experiment | Callable[[dict[str, Any]], Any]:
    if name.endswith(PICKLED):
        return _object(_unpickled(folder / name, pickled), name)
    module_name, attribute = _parts(name)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    if module_name.endswith(".py"):
        module = _import_file(folder / module_name, name)
    else:
        module = _import_module(module_name, name, folder)
    try:
        named_object = getattr(module, attribute)
    except AttributeError:
        names = _candidates(module)
        shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        alternatives = f"it has: {shown or 'nothing callable'}{suggestion(attribute, names)}"
        raise BadInput(f"experiment: {module_name} has no {attribute!r}; {alternatives}") from None
    return _object(named_object, name)


def _object(found: Any, name: str) -> Experiment | Callable[[dict[str, Any]], Any]:
    """Return an experiment, instantiated if it is a class, or a function. Raises BadInput for anything else."""
    if isinstance(found, type) and issubclass(found, Experiment):
        try:
            with same_draws(CONSTRUCTED):  # whether or not the module has drawn right before
                return found()
        except (Exception, SystemExit) as error:  # the user's constructor: whatever it raises is the message
            raise BadInput(f"experiment: {name} cannot be constructed: {one_line(error)}") from error
    if isinstance(found, Experiment) or (callable(found) and not isinstance(found, type)):
        return found
    raise BadInput(f"experiment: {name} is neither a TorchExperiment, a KerasExperiment nor a function")


def _unpickled(path: Path, content: bytes = b"") -> Any:
    """Read an experiment that was pickled by value, which runs what the pickle says. content: of the file, if known."""
    try:
        return pickle.loads(content or path.read_bytes())
    except Exception as error:
        raise BadInput(f"experiment: {path} cannot be read: {one_line(error)}") from error


def _import_module(module_name: str, name: str, folder: Path) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise BadInput(
                f"experiment: no module {module_name!r} (from {name!r}), looked in {folder} and the Python path"
            ) from error
        raise BadInput(f"experiment: {module_name} cannot be imported: {one_line(error)}") from error
    except (Exception, SystemExit) as error:  # the user's module: whatever it raises is the message
        raise BadInput(f"experiment: {module_name} cannot be imported: {one_line(error)}") from error


def _import_file(path: Path, name: str) -> Any:
    if not path.is_file():
        raise BadInput(f"experiment: {path}: no such file (from {name!r})")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module_name = f"_raygpu_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    forget_file(str(path))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file: whatever it raises is the message
        raise BadInput(f"experiment: {path} cannot be imported: {one_line(error)}") from error
    return module


def _candidates(module: Any) -> list[str]:
    """Return the names of a module's own callables, in alphabetical order, to suggest in a message."""
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(names)
