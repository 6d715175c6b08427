"""A torch model cut into the stages of a pipeline by tracing, and what a cut does not allow, in one line each."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from raygpu.errors import BadInput, one_line
from raygpu.training.torch.data import Tensors

INNER = "model"
"""Name of the model inside `_OfPositions`, which begins the names of a stage's parameters."""
PASSES_INTEGERS = torch.__version__ >= "2.13"
"""Whether a stage can read integers of an earlier one: torch 2.11 asks for their gradients, and raises."""
SHOWN = 20
"""Largest number of a model's submodules in a message."""


def cut_model(model: nn.Module, inputs: Tensors, stages: Sequence[str]) -> Any:
    """Cut a model before each of the submodules `stages`; return torch's `Pipe`, with len(stages) + 1 stages.

    inputs: a micro-batch, on the model's device; all micro-batches must have its shape. The model is of no use
    afterwards. Raises BadInput if it cannot be cut so.
    """
    from torch.distributed.pipelining import SplitPoint, pipeline  # imports torch's compiler, which takes seconds

    require_submodules(model, stages)
    names = tuple(inputs) if isinstance(inputs, dict) else None
    arguments = tuple(inputs.values()) if isinstance(inputs, dict) else (inputs,)
    spec = {f"{INNER}.{name}": SplitPoint.BEGINNING for name in stages}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)  # torch's tracer, of torch's own calls
            pipe = pipeline(_OfPositions(model, names), arguments, split_spec=spec)
    except Exception as error:  # what the user's code and the tracer raise
        raise BadInput(
            f"stages: the model cannot be traced: {one_line(_first_cause(error))}; keep Python's if, .item() and"
            " data-dependent shapes out of forward(), or place parts without a pipeline"
        ) from error
    _require_sound(pipe, stages)
    _copy_for_readers(pipe)
    return pipe


def require_submodules(model: nn.Module, stages: Sequence[str]) -> None:
    """Raise BadInput with a line for each name that is no submodule of the model, or named twice."""
    names = [name for name, _ in model.named_modules() if name]
    some = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    faults = [
        f"stages: the model has no submodule {name!r}; it has: {some or 'none'}" for name in stages if name not in names
    ]
    faults += [f"stages: {name!r} is named twice" for name in sorted(set(stages)) if list(stages).count(name) > 1]
    if faults:
        raise BadInput(faults)


def notes(model: nn.Module) -> list[str]:
    """Return lines for a person on what micro-batches change in the training of a model."""
    if any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
        return [
            "BatchNorm: its statistics are those of each micro-batch, not of the whole batch; one that is"
            " smaller than the others counts some of its samples twice"
        ]
    return []


class _OfPositions(nn.Module):
    """A model whose inputs are all positional and all arrive at the first stage.

    torch hands a pipeline's inputs to its first stage alone. A copy made there is a value like any other, which it
    sends to the stage that reads it.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...] | None) -> None:
        super().__init__()
        self.model = model
        self._names = names

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call the model with its inputs by their positions."""
        copies = [tensor.clone() for tensor in inputs]
        return self.model(*copies) if self._names is None else self.model(**dict(zip(self._names, copies, strict=True)))


def _first_cause(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _first_cause(error.__cause__)


def _require_sound(pipe: Any, stages: Sequence[str]) -> None:
    """Raise BadInput for a cut that torch makes but cannot train, or would train otherwise."""
    if pipe.num_stages != len(stages) + 1:
        raise BadInput(
            f"stages: {', '.join(stages)} cut the model into {pipe.num_stages} stages, not {len(stages) + 1}: each must"
            " be called once, and not be the first or begin where another one does"
        )
    first = pipe.get_stage_module(0).graph.nodes
    if all(node.op in ("placeholder", "output") or node.target is torch.ops.aten.clone.default for node in first):
        raise BadInput(
            f"stages: a stage of {', '.join(stages)} begins where the model does: nothing is left for stage 0"
        )
    if pipe.replicated_params:
        name = next(iter(pipe.replicated_params[0].values())).removeprefix(f"{INNER}.")
        raise BadInput(f"stages: several stages read the parameter {name}; cut the model so that one of them does")
    nodes = _stages(pipe)
    output = next(node for node in pipe.split_gm.graph.nodes if node.op == "output")
    if output.args[0] is not nodes[-1] and output.args[0] != (nodes[-1],):
        raise BadInput("stages: the model's output is not a single tensor that the last stage makes")
    if not PASSES_INTEGERS:
        _require_floats(pipe)


def _require_floats(pipe: Any) -> None:
    """Raise BadInput where a stage reads integers or booleans of an earlier one."""
    for place in range(1, pipe.num_stages):
        read = [node.meta["val"] for node in pipe.get_stage_module(place).graph.nodes if node.op == "placeholder"]
        dtypes = [str(value.dtype).removeprefix("torch.") for value in read if not value.is_floating_point()]
        if dtypes:
            raise BadInput(
                f"stages: stage {place} reads {dtypes[0]} values of an earlier stage, which torch {torch.__version__}"
                " cannot pass; install torch 2.13 or newer, or cut the model where floating-point numbers pass"
            )


def _copy_for_readers(pipe: Any) -> None:
    """Have each stage make its values once for each stage that reads them, in the order in which that one does.

    torch sends a value to several stages, but takes a gradient back from one alone. Of copies it takes all.
    """
    nodes = _stages(pipe)
    for place, node in enumerate(nodes):
        values = [user for user in node.users if user.target is operator.getitem] or [node]
        wanted = [(reader, value) for reader in nodes[place + 1 :] for value in reader.args if value in values]
        if len(wanted) > len(values):
            _rebuild_outputs(pipe, place, wanted)
        elif [value for _, value in wanted] != values and place < len(nodes) - 1:
            raise BadInput(f"stages: stage {place} makes its values in another order than they are read; cut elsewhere")
    pipe.split_gm.graph.lint()


def _rebuild_outputs(pipe: Any, place: int, wanted: list[tuple[Any, Any]]) -> None:
    """Let a stage return these values, each for one reader. wanted: stage that reads, and value: nodes of the whole."""
    pipe_graph, node, module = pipe.split_gm.graph, _stages(pipe)[place], pipe.get_stage_module(place)
    output = next(each for each in module.graph.nodes if each.op == "output")
    before = output.args[0] if isinstance(output.args[0], list | tuple) else [output.args[0]]
    sources: list[Any] = []
    last = node
    for reader, value in wanted:
        source = before[value.args[1] if value is not node else 0]
        if source in sources:
            with module.graph.inserting_before(output):
                source, meta = module.graph.call_function(torch.ops.aten.clone.default, (source,)), source.meta
                source.meta = dict(meta)
        with pipe_graph.inserting_after(last):
            last = pipe_graph.call_function(operator.getitem, (node, len(sources)))
        sources.append(source)
        reader.args = tuple(last if each is value else each for each in reader.args)
    output.args = (tuple(sources),)
    for user in [user for user in node.users if not user.users]:
        pipe_graph.erase_node(user)
    module.graph.lint()
    module.recompile()


def _stages(pipe: Any) -> list[Any]:
    return [node for node in pipe.split_gm.graph.nodes if node.op == "call_module"]
