"""Gradients summed over the leaves in one fixed tree, whatever the number of processes.

1. Each backward ends in FSDP2's reduce-scatter. `TreeReduceScatter` takes its place: every process
   receives its part from all others (all-to-all) and adds the parts up in the order of the fan-ins
   across processes. On several nodes in two stages: within the node, then across.
2. `take_gradients` takes the result out of the model. Left there, FSDP2 would add the next
   microbatch to it from the left, which is another tree.
3. `Counter` adds up the microbatches in the order of the own fan-ins, and holds at most one
   partial sum per level beside the incoming one.
4. With whole sums a backward reduces nothing: whole gradients are taken and added up, and `spread`
   sends each process its part of the total, once, through the same exchange and tree.

Nothing is divided inside the sum: the loss of a leaf carries 1/V. An absent gradient is a zero
leaf, because (-0.0) + (+0.0) is +0.0 and not what skipping gives.
Only gloo on CPU has been run; NCCL uses the same calls.

>>> tree_sum([torch.tensor([x]) for x in (1.0, 2.0, 3.0, 4.0)], (2, 2))
tensor([10.])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.tensor import DTensor

from bitstep.errors import LayoutError, RecipeError
from bitstep.faults import Fault
from bitstep.train.layout import Layout


def tree_sum(leaves: Sequence[Tensor], fan_ins: Sequence[int]) -> Tensor:
    """Sum of product(fan_ins) tensors of one shape: level by level, children in index order.

    Sums in place: the result is leaves[0], and the other leaves are left with partial sums.
    """
    nodes = list(leaves)
    for fan_in in fan_ins:
        nodes = [_fold(nodes[first : first + fan_in]) for first in range(0, len(nodes), fan_in)]
    assert len(nodes) == 1, (len(leaves), fan_ins)
    return nodes[0]


def _fold(children: Sequence[Tensor]) -> Tensor:
    total = children[0]
    for child in children[1:]:
        total.add_(child)
    return total


class TreeReduceScatter(ReduceScatter):
    """FSDP2's reduce-scatter, with the order of summation fixed by the layout.

    To be made by all processes at once: on several nodes it makes process groups. FSDP2 does not
    call it where W is 1; it copies, which is the tree of one leaf.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._node, self._across = _node_groups(layout) if layout.nodes > 1 else (None, None)

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """The buffers that FSDP2 asks for: [padded gradients of a unit], then [a part of them]."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """input_tensor [W * n] of this process -> output_tensor [n], its part of the sum.

        Raises RecipeError unless both are float32.
        """
        assert op == dist.ReduceOp.SUM, op
        assert not async_op, "the sum follows the exchange at once"
        _require_float32(input_tensor.dtype)
        layout = self._layout
        if self._node is None:
            parts = _exchange(input_tensor, group)
            output_tensor.copy_(tree_sum(parts.view(layout.processes, -1).unbind(), layout.across))
            return
        # Part j goes to process j in the end. Within the node it first goes to the local process
        # with j's place on its node, so that each then holds the parts of its peers on all nodes.
        by_node = input_tensor.view(layout.nodes, layout.local_processes, -1)
        received = _exchange(by_node.transpose(0, 1).contiguous(), self._node)
        of_node = tree_sum(received.unbind(), layout.within_node)
        received = _exchange(of_node, self._across)
        output_tensor.copy_(tree_sum(received.unbind(), layout.across_nodes))


def _exchange(sent: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Row i of `sent` goes to member i of the group; row i of the result came from it."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


def _node_groups(layout: Layout) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    size, world = layout.local_processes, layout.processes
    nodes = [list(range(first, first + size)) for first in range(0, world, size)]
    across = [list(range(place, world, size)) for place in range(size)]
    return _own_group(nodes), _own_group(across)


def _own_group(partition: list[list[int]]) -> dist.ProcessGroup | None:
    own, _ = dist.new_subgroups_by_enumeration(partition)  # type: ignore[no-untyped-call]
    return cast(dist.ProcessGroup | None, own)


class Counter:
    """Sum over the microbatches of one step, in the order of the own fan-ins.

    Like a counter whose digits have the fan-ins as bases: a full digit is carried to the next.
    With the fault "left-fold" or "stock-reduction", one digit takes everything.
    """

    def __init__(self, layout: Layout, fault: Fault | None = None) -> None:
        self._fan_ins = layout.own
        if fault is not None and fault.kind in ("left-fold", "stock-reduction"):
            self._fan_ins = (layout.microbatches,)
        self._partial: list[list[Tensor]] = [[] for _ in self._fan_ins]
        self._counts = [0] * len(self._fan_ins)
        self._total: list[Tensor] | None = None

    def push(self, gradients: list[Tensor]) -> None:
        """Add the gradients of the next microbatch. They belong to the counter from now on."""
        assert self._total is None, "more microbatches than the layout has"
        for level, fan_in in enumerate(self._fan_ins):
            if self._counts[level] == 0:
                self._partial[level] = gradients
            elif gradients:
                torch._foreach_add_(self._partial[level], gradients)
            self._counts[level] += 1
            if self._counts[level] < fan_in:
                return
            gradients, self._partial[level], self._counts[level] = self._partial[level], [], 0
        self._total = gradients

    def result(self) -> list[Tensor]:
        """The sum over all microbatches, in the order of the pushed lists."""
        assert self._total is not None, "fewer microbatches than the layout has"
        return self._total


def prepare(
    model: nn.Module, layout: Layout, fault: Fault | None = None
) -> TreeReduceScatter | None:
    """Set the tree on every FSDP2 module of the model, after fully_shard and before a forward.

    Gives back the tree, or None where FSDP2 keeps its own reduction or there is one process.

    Raises RecipeError for a reduction that is not in float32, LayoutError for HSDP and for whole
    sums without the tree that they are spread by. Every unit
    must take part in every forward: its parameters may get no gradient, but a unit that is not
    called gathers nothing, and the other processes wait for it.
    """
    _refuse_other_parameters(model)
    stock = fault is not None and fault.kind == "stock-reduction"
    if stock and _sums_whole(layout):
        raise LayoutError("stock-reduction has no whole sums: leave --sums whole out")
    tree = None if stock or layout.processes == 1 else TreeReduceScatter(layout)
    for module in _units(model):
        _refuse_other_reductions(module)
        if tree is not None:
            module.set_custom_reduce_scatter(tree)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        module.set_reduce_scatter_unused_params(True)
        if _sums_whole(layout):
            module.set_requires_gradient_sync(False)
    return tree


def _sums_whole(layout: Layout) -> bool:
    # One process has nothing to exchange: both ways are the counter alone.
    return layout.whole_sums and layout.processes > 1


def _units(model: nn.Module) -> Iterator[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _refuse_other_parameters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise LayoutError(f"parameter {name} is in no FSDP2 unit: apply fully_shard to all")
        if parameter.device_mesh.ndim > 1:
            raise LayoutError(
                f"parameter {name} is on a mesh of {parameter.device_mesh.ndim} dimensions: the "
                "all-reduce of replicated (HSDP) parameters bypasses the tree; use a mesh of one"
            )
        if parameter.dtype != torch.float32:
            raise RecipeError(
                f"parameter {name} is {_name(parameter.dtype)}: masters are float32; compute in "
                "another dtype by the param_dtype of the policy"
            )


def _refuse_other_reductions(module: FSDPModule) -> None:
    # The policy is not public; a missing attribute is an error here, before any wrong bit.
    policy = module._get_fsdp_state()._mp_policy
    _require_float32(policy.reduce_dtype or policy.param_dtype or torch.float32)


def _require_float32(dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        raise RecipeError(
            f"gradients would be reduced in {_name(dtype)}: set reduce_dtype to float32"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def take_gradients(model: nn.Module, layout: Layout) -> list[Tensor]:
    """The gradient of each trainable parameter, in the order of model.parameters().

    The local part of each, or with whole sums all of it. Takes them out of the model: every p.grad
    is None afterwards. One that is absent is zeros.
    """
    if _sums_whole(layout):
        return _take_whole_gradients(model)
    gradients = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        gradient = parameter.grad
        if gradient is None:
            gradients.append(torch.zeros_like(cast(DTensor, parameter.detach()).to_local()))
        else:
            gradients.append(cast(DTensor, gradient).to_local())
        parameter.grad = None
    return gradients


def _take_whole_gradients(model: nn.Module) -> list[Tensor]:
    # FSDP2 keeps what it was not asked to reduce beside the sharded parameter, in names of its own;
    # a missing one is an error here, before any wrong bit.
    groups = (unit._get_fsdp_state()._fsdp_param_group for unit in _units(model))
    held = {id(p.sharded_param): p for group in groups if group for p in group.fsdp_params}
    gradients = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        whole = held[id(parameter)]
        gradient = whole.unsharded_accumulated_grad
        if gradient is None:
            gradient = whole._unsharded_param.grad
        if gradient is None:
            gradient = torch.zeros(parameter.shape, device=parameter.device)
        whole.unsharded_accumulated_grad = whole._unsharded_param.grad = None
        gradients.append(gradient)
    return gradients


def spread(
    gradients: list[Tensor], model: nn.Module, layout: Layout, tree: TreeReduceScatter | None
) -> list[Tensor]:
    """The local part of each total, from the totals of all processes: with whole sums one exchange.

    With sharded sums the gradients are local parts already.
    """
    if not _sums_whole(layout) or tree is None:
        return gradients
    world = layout.processes
    chunks = [_chunks(gradient, world) for gradient in gradients]
    sent = torch.cat([chunk.view(world, -1) for chunk in chunks], dim=1)
    part = tree.allocate([sent.shape[1]], dtype=sent.dtype, device=sent.device)
    tree(part, sent.view(-1), _world(), dist.ReduceOp.SUM)
    pieces = torch.split(part, [chunk[0].numel() for chunk in chunks])
    parameters = (p for p in model.parameters() if p.requires_grad)
    return [
        piece.view_as(chunk[0])[: cast(DTensor, parameter.detach()).to_local().shape[0]]
        for piece, chunk, parameter in zip(pieces, chunks, parameters, strict=True)
    ]


def _chunks(gradient: Tensor, world: int) -> Tensor:
    """[n, ...] -> [world, ceil(n / world), ...], padded with zeros: the cut of FSDP2."""
    rows = -(-gradient.shape[0] // world)
    padded = gradient.new_zeros(world * rows, *gradient.shape[1:])
    padded[: gradient.shape[0]] = gradient
    return padded.view(world, rows, *gradient.shape[1:])


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "no process group"
    return group
