"""A model whose parameters are sharded over the ranks by FSDP2, and this rank's part of each parameter.

A part is a plain tensor in the memory of FSDP2's own: what changes it, as an optimizer does, changes the parameter.
Parameters that FSDP2 cannot shard (scalars, empty and complex ones) are whole on each rank.
"""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.utils._pytree import tree_leaves

from raygpu.training.distributed.sharded.blocks import blocks, has_forward
from raygpu.training.distributed.sharded.fsdp_private_api import late_gradient, make_root, undone_freezing
from raygpu.training.distributed.sharded.lockstep import WITHOUT, CheckedAllGather, CheckedReduceScatter, Lockstep
from raygpu.training.torch.optimizers import real
from raygpu.training.torch.parameter_traits import sharing
from raygpu.training.torch.reduction import dense

REFROZEN = (
    "the model freezes or unfreezes parameters inside its forward pass, or training_step() after it, which a sharded"
    f" model undoes: do it before the forward pass, or {WITHOUT}"
)
UNFROZEN = (
    "{name} was frozen when the training began, and now requires a gradient: several devices do not sum it; train on"
    " one"
)


class Shards:
    """The parameters of a model over all ranks. All ranks make the same calls."""

    def __init__(self, model: nn.Module, ranks: Any, device: torch.device) -> None:
        """Shard a model, which is on the CPU and the same on all ranks; block by block it comes to the device.

        ranks: `TorchRanks`. Raises ValueError for a model that cannot be trained so.
        """
        require_shardable(model)
        self.model, self.device, self._ranks = model, device, ranks
        self.lockstep = Lockstep(ranks, [name for name, _ in model.named_parameters()])
        attributes = [dict(vars(parameter)) for parameter in model.parameters()]
        sharded = [weakref.ref(parameter) for parameter in model.parameters() if not _stays_whole(parameter)]
        self._shard(blocks(model))
        make_root(model)
        self.parameters = list(model.parameters())
        for parameter, each in zip(self.parameters, attributes, strict=True):
            vars(parameter).update(each)
        self._require_no_other_owner(sharded)
        self.locals = [_local(parameter) for parameter in self.parameters]
        """This rank's part of each parameter, whose `grad` is the part of its gradient."""
        self._frozen = [place for place, parameter in enumerate(self.parameters) if not parameter.requires_grad]
        self._places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        self._whole = [place for place, parameter in enumerate(self.parameters) if not isinstance(parameter, DTensor)]
        """Indices of the parameters that each rank has whole."""
        self._listen()

    def _shard(self, chosen: Sequence[nn.Module]) -> None:
        model, device = self.model, self.device
        mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
        whole_parameters = {parameter for parameter in model.parameters() if _stays_whole(parameter)}
        for parameter in whole_parameters:
            parameter.data = parameter.data.to(device)
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()
        names = {id(module): name for name, module in model.named_modules()}
        for module in (*chosen, model):
            half = next((p.dtype for p in module.parameters() if p.is_floating_point() and p.itemsize < 4), None)
            policy = MixedPrecisionPolicy(reduce_dtype=None if half is None else torch.float32,
                                          cast_forward_inputs=False)  # fmt: skip
            fully_shard(module, mesh=mesh, mp_policy=policy, ignored_params=whole_parameters)
            assert isinstance(module, FSDPModule)
            name = names[id(module)] or "the model's root"
            module.set_custom_all_gather(CheckedAllGather(self.lockstep, name))
            module.set_custom_reduce_scatter(CheckedReduceScatter(self.lockstep, name))
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def _require_no_other_owner(self, earlier: Sequence[weakref.ref[nn.Parameter]]) -> None:
        """Raise ValueError if something still holds a parameter as it was, whole: what it reads would not train."""
        parameter = next(_alive(earlier), None)
        if parameter is not None:  # by a cycle, perhaps, which the collector takes the better part of a second to find
            del parameter
            gc.collect()
            parameter = next(_alive(earlier), None)
        if parameter is not None:
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} is held outside the modules of the model (a list, or an"
                f" attribute of the experiment), and would not be the one that is trained: {WITHOUT}"
            )

    def _listen(self) -> None:
        for place, parameter in enumerate(self.parameters):
            if parameter.requires_grad and place not in self._whole:
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, place))
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.register_forward_hook(self._guard)
                module.register_forward_hook(_require_kept_freezing, prepend=True)  # its parameters are gathered still

    def _arrived(self, place: int, parameter: nn.Parameter) -> None:
        self.lockstep.arrived.append(place)

    def _guard(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Have the outputs of a block tell when a gradient flows back to them."""
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._flows)

    def require_kept_freezing(self) -> None:
        """Raise ValueError if parameters have been unfrozen since the beginning, or frozen where that is undone."""
        for place in self._frozen:
            if self.parameters[place].requires_grad:
                raise ValueError(UNFROZEN.format(name=self.lockstep.names[place]))
        _require_kept_freezing(self.model)

    def _flows(self, gradient: torch.Tensor) -> None:
        self.lockstep.require_outside_loss()

    # Gradients

    @torch.no_grad()
    def collect(self) -> bool:
        """Add the gradients of a backward pass, summed over the ranks, to those of the parts.

        Returns whether each has been summed at once. Raises RuntimeError if ranks have gradients of other parameters.
        """
        arrived = self.lockstep.end()
        if (late := late_gradient(self.model)) is not None:
            raise RuntimeError(
                f"{late}: its parameters get a gradient from outside its forward pass, after the gradients of the block"
                f" were summed: {WITHOUT}"
            )
        for place in sorted(set(arrived)):
            parameter = self.parameters[place]
            assert isinstance(parameter.grad, DTensor)
            self._add(place, parameter.grad.to_local())
            parameter.grad = None
        self._collect_whole()
        assert all(parameter.grad is None for parameter in self.parameters), "a gradient that no rank was told of"
        return len(set(arrived)) == len(arrived)

    def _collect_whole(self) -> None:
        """Sum the gradients of the parameters that are whole on each rank; one that no rank has stays None."""
        lockstep = self.lockstep
        for place in self._whole:
            parameter = self.parameters[place]
            if not parameter.requires_grad:
                continue
            gradient, parameter.grad = parameter.grad, None
            dense_gradient = torch.zeros_like(parameter) if gradient is None else dense(gradient).clone()
            (flat,) = real(dense_gradient)
            weighted = flat.double().reshape(-1) * lockstep.weight
            if lockstep.square is not None:
                lockstep.square += weighted.square().sum()
            mark = torch.full((), float(gradient is not None), dtype=torch.float64, device=flat.device)
            sent = torch.cat([weighted, mark[None]])
            dist.all_reduce(sent)
            if sent[-1]:
                flat.copy_(sent[:-1].view(flat.shape))
                self._add(place, dense_gradient)

    def _add(self, place: int, gradient: torch.Tensor) -> None:
        local = self.locals[place]
        local.grad = gradient if local.grad is None else local.grad.add_(gradient)

    def norm(self, most: float | None) -> torch.Tensor:
        """Return the norm of the whole gradient, after clipping it. most: its largest value; None to clip nothing."""
        square = torch.zeros((), dtype=torch.float64, device=self.device)
        whole_square = square.clone()
        for place, local in enumerate(self.locals):
            if local.grad is not None:
                norm = torch.linalg.vector_norm(local.grad).double()
                (whole_square if place in self._whole else square).add_(norm.square())
        dist.all_reduce(square)
        norm = (square + whole_square).sqrt()
        if most is not None:
            factor = (most / (norm + 1e-6)).clamp(max=1.0)
            for local in self.locals:
                if local.grad is not None:
                    local.grad.mul_(factor.to(local.grad.dtype.to_real()))
        return norm

    def reshard(self) -> None:
        """Free the root's gathered parameters, which an evaluation leaves."""
        self.model.reshard()

    # Whole tensors

    def index(self, parameter: Any) -> int | None:
        """Return the index of a parameter of the model; None of another tensor."""
        return self._places.get(id(parameter))

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the whole of a sharded tensor on the CPU of rank 0, and None on the others; of another one a copy.

        All ranks call it. Raises ValueError for a tensor that is sharded in another way than parameters are.
        """
        if not isinstance(tensor, DTensor):
            return tensor.detach().to("cpu", copy=True) if not self._ranks.rank else None
        if tuple(tensor.placements) != (Shard(0),):
            raise ValueError(f"a tensor of the optimizer is kept as {tensor.placements}, not as parameters are")
        return self.whole_of(tensor.to_local().detach(), tensor.shape)

    def whole_of(self, local: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
        """Return the whole tensor of this shape on the CPU of rank 0, of each rank's local part; None on the others."""
        ranks, sent = self._ranks, local.cpu().contiguous()
        if ranks.rank:
            if sent.numel():
                dist.send(sent.reshape(-1).view(torch.uint8), 0, group=ranks.group)
            return None
        whole_tensor = torch.empty(shape, dtype=local.dtype)
        for rank in range(ranks.world):
            first, size = _rows(shape[0], ranks.world, rank)
            part = whole_tensor[first : first + size]
            if rank and part.numel():
                dist.recv(part.reshape(-1).view(torch.uint8), rank, group=ranks.group)
            elif not rank:
                part.copy_(sent)
        return whole_tensor

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a whole tensor, as a view."""
        first, size = _rows(whole.shape[0], self._ranks.world, self._ranks.rank)
        return whole[first : first + size]

    def like(self, parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a tensor as a sharded one, sharded as a parameter is; it keeps the memory."""
        if not isinstance(parameter, DTensor):
            return local
        return DTensor.from_local(
            local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
            stride=parameter.stride(),
        )  # fmt: skip

    def cut(self, parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return a whole tensor of a parameter's shape as one that is sharded as the parameter is, on its device."""
        if not isinstance(parameter, DTensor):
            return whole.clone()
        return self.like(parameter, self.part_of(whole).to(self.device, copy=True))

    def model_state(self) -> dict[str, Any]:
        """Return the model's state dict with whole tensors on the CPU on rank 0, and an empty one on the others."""
        state = self.model.state_dict(keep_vars=True)
        whole_state, tensors = _empty_state(state), dict[int, Any]()
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                if id(value) not in tensors:  # tied parameters have one
                    tensors[id(value)] = self.gathered(value.detach() if not isinstance(value, DTensor) else value)
                value = tensors[id(value)]
            whole_state[name] = value
        return {} if self._ranks.rank else whole_state

    def load_model_state(self, state: Mapping[str, Any]) -> None:
        """Load a state dict of whole tensors, of which this rank takes its parts. Raises RuntimeError as torch does."""
        sharded_state = self.model.state_dict(keep_vars=True)
        cut = _empty_state(state)
        for name, value in state.items():
            mine = sharded_state.get(name)
            if isinstance(mine, DTensor) and value.shape == mine.shape:
                value = self.cut(mine, value)
            cut[name] = value
        self.model.load_state_dict(cut)


def _require_kept_freezing(module: nn.Module, *_: Any) -> None:
    """Raise ValueError if gathered parameters of a module have been frozen or unfrozen; a hook of a forward pass."""
    if undone_freezing(module):
        raise ValueError(REFROZEN)


def require_shardable(model: nn.Module) -> None:
    """Raise ValueError, with one line, for a model that cannot be trained in parts."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ValueError(f"a scripted module cannot be sharded: {WITHOUT}")
    if (shared := sharing(model)) is not None:
        raise ValueError(f"{shared}, which parts of them would not: {WITHOUT}")
    if not has_forward(model):
        raise ValueError(f"{type(model).__name__} has no forward(), by which a sharded model is called: {WITHOUT}")
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ValueError(f"the hook of {name} would not see its gradient in a sharded model: {WITHOUT}")
        if parameter.is_sparse or parameter.layout is not torch.strided:
            raise ValueError(f"{name} is no dense tensor, and cannot be sharded: {WITHOUT}")
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(f"{name or 'the embedding'} has a sparse gradient, which cannot be sharded: {WITHOUT}")
    chosen = blocks(model)
    for module in (*chosen, model):
        inner = {id(p) for each in chosen if each is not module and _within(each, module) for p in each.parameters()}
        trained = (p for p in module.parameters() if p.requires_grad and not _stays_whole(p) and id(p) not in inner)
        if len(dtypes := {str(parameter.dtype) for parameter in trained}) > 1:
            raise ValueError(
                f"{type(module).__name__} has parameters of {' and '.join(sorted(dtypes))}, which cannot be sharded"
                f" together: {WITHOUT}"
            )


def _within(inner: nn.Module, outer: nn.Module) -> bool:
    return any(module is inner for module in outer.modules())


def _empty_state(state: Any) -> dict[str, Any]:
    """Return an empty state dict with the versions of modules that another one has."""
    empty_state: OrderedDict[str, Any] = OrderedDict()
    if hasattr(state, "_metadata"):
        vars(empty_state)["_metadata"] = state._metadata
    return empty_state


def _stays_whole(parameter: nn.Parameter) -> bool:
    return parameter.dim() == 0 or parameter.numel() == 0 or parameter.is_complex()


def _local(parameter: nn.Parameter) -> torch.Tensor:
    """Return this rank's part of a parameter as a leaf in the same memory."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return local.detach().requires_grad_(parameter.requires_grad)


def _rows(count: int, world: int, rank: int) -> tuple[int, int]:
    """Return the first row and the number of rows of a rank's part, as `torch.chunk` cuts them."""
    size = -(-count // world)
    first = min(rank * size, count)
    return first, min(size, count - first)


def _alive(parameters: Sequence[weakref.ref[nn.Parameter]]) -> Iterator[nn.Parameter]:
    return (parameter for each in parameters if (parameter := each()) is not None)
