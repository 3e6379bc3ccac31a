"""Collectives and point to point, as PyTorch dispatches them: kind, members, what goes in and out.

1. `describe` reads one call of `c10d` or `_c10d_functional`: kind, members, inputs, outputs. The
   schemas of c10d do not say what they write; the table here does.
2. Its inputs are hashed before it is launched. Its outputs have no bits then: `pending` keeps them
   until they are waited for.

No collective is added and none is changed; a process group is only asked for its ranks.

    collective = describe(func, args, kwargs)
    ...hash collective.inputs...
    result = func(*args, **kwargs)
    pending.add(results_of(collective, result), result, emit)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch.distributed as dist
from torch import Tensor

Named = tuple[tuple[str, Tensor], ...]
"""Slots and tensors: ("in.0", tensor)."""


class Collective(NamedTuple):
    """One call of a collective in this process."""

    op: str
    """As in a trace: "c10d.allreduce_"."""
    kind: str
    """The phase of its rows: reduce, gather or exchange."""
    members: tuple[int, ...]
    """Global ranks of the group; of a point to point the sender and the receiver, in that order.
    Empty where the group does not say."""
    inputs: Named
    outputs: Named
    """Those of a functional collective are its results, known after the launch."""


NOTHING: Final = "-"


class _Entry(NamedTuple):
    """What one collective does with its arguments."""

    kind: str
    reads: str
    writes: str = ""
    """Empty: its results are what it writes."""
    only_root_reads: bool = False
    only_root_writes: bool = False


_C10D: Final = {
    "allreduce_": _Entry("reduce", "tensors", "tensors"),
    "allreduce_coalesced_": _Entry("reduce", "tensors", "tensors"),
    "reduce_": _Entry("reduce", "tensors", "tensors", only_root_writes=True),
    "reduce_scatter_": _Entry("reduce", "input_tensors", "output_tensors"),
    "_reduce_scatter_base_": _Entry("reduce", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": _Entry("reduce", "inputs", "outputs"),
    "broadcast_": _Entry("gather", "tensors", "tensors", only_root_reads=True),
    "allgather_": _Entry("gather", "input_tensors", "output_tensors"),
    "_allgather_base_": _Entry("gather", "input_tensor", "output_tensor"),
    "allgather_coalesced_": _Entry("gather", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": _Entry("gather", "inputs", "outputs"),
    "gather_": _Entry("gather", "input_tensors", "output_tensors"),
    "scatter_": _Entry("exchange", "input_tensors", "output_tensors"),
    "alltoall_": _Entry("exchange", "input_tensors", "output_tensors"),
    "alltoall_base_": _Entry("exchange", "input", "output"),
    "send": _Entry("exchange", "tensors", NOTHING),
    "recv_": _Entry("exchange", NOTHING, "tensors"),
    "recv_any_source_": _Entry("exchange", NOTHING, "tensors"),
}
_FUNCTIONAL: Final = {
    "all_reduce": _Entry("reduce", "input"),
    "all_reduce_": _Entry("reduce", "input", "input"),
    "all_reduce_coalesced": _Entry("reduce", "inputs"),
    "all_reduce_coalesced_": _Entry("reduce", "inputs", "inputs"),
    "reduce_scatter_tensor": _Entry("reduce", "input"),
    "reduce_scatter_tensor_coalesced": _Entry("reduce", "inputs"),
    "reduce_scatter_tensor_out": _Entry("reduce", "input", "out"),
    "broadcast": _Entry("gather", "input", only_root_reads=True),
    "broadcast_": _Entry("gather", "input", "input", only_root_reads=True),
    "all_gather_into_tensor": _Entry("gather", "input"),
    "all_gather_into_tensor_coalesced": _Entry("gather", "inputs"),
    "all_gather_into_tensor_out": _Entry("gather", "input", "out"),
    "all_to_all_single": _Entry("exchange", "input"),
    "isend": _Entry("exchange", "tensor", NOTHING),
    "irecv": _Entry("exchange", NOTHING),
}
_WITHOUT_DATA: Final = frozenset(
    ("barrier", "monitored_barrier_", "check_for_nan", "wait_tensor", "_wrap_tensor_autograd")
)
"""Private names of torch used in this file: ProcessGroup.unbox and
torch.distributed.distributed_c10d._resolve_process_group; without them members are unknown."""


def describe(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Collective | None:
    """What a call of a collective gets and gives; None for one that moves no data."""
    space, base = func._schema.name.split("::")
    if base in _WITHOUT_DATA:
        return None
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    entry = _entry(space, base, given)
    members = _members(given)
    root = given.get("root_rank", given.get("src") if entry.only_root_reads else None)
    rooted = root is None or members[root : root + 1] in ((), (dist.get_rank(),))
    reads = _flat(given.get(entry.reads) if rooted or not entry.only_root_reads else None)
    writes = _flat(given.get(entry.writes) if rooted or not entry.only_root_writes else None)
    slot = "mutated" if entry.reads == entry.writes else "out"
    pair = _pair(base, given, members)
    return Collective(f"{space}.{base}", entry.kind, pair, _name("in", reads), _name(slot, writes))


def members_text(members: Sequence[int]) -> str:
    """Members as they stand in a row, a run of neighbours as its ends.

    >>> members_text((0, 1)), members_text((0, 1, 2, 3, 8))
    ('0,1', '0-3,8')
    """
    runs: list[list[int]] = []
    for rank in members:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(words)


def _entry(space: str, base: str, given: Mapping[str, Any]) -> _Entry:
    entry = (_C10D if space == "c10d" else _FUNCTIONAL).get(base)
    if entry is not None:
        return entry
    # One that is not known may write every tensor that it is given, and what it gives back.
    first = next(
        (name for name, value in given.items() if next(_flat(value), None) is not None), NOTHING
    )
    return _Entry("exchange", first, first if space == "c10d" else "")


def results_of(collective: Collective, result: Any) -> Collective:
    """The collective with its outputs, where these are its results. Call it after the launch."""
    if collective.outputs or not collective.op.startswith("_c10d_functional"):
        return collective
    return collective._replace(outputs=_name("out", _flat(result)))


def _members(given: Mapping[str, Any]) -> tuple[int, ...]:
    try:
        if "group_name" in given:
            resolve: Any = vars(dist.distributed_c10d)["_resolve_process_group"]
            group = resolve(given["group_name"])
        else:
            group = dist.ProcessGroup.unbox(given["process_group"])
        return tuple(dist.get_process_group_ranks(group))
    except Exception:  # A group that torch.distributed does not know has no global ranks.
        return ()


def _pair(base: str, given: Mapping[str, Any], members: tuple[int, ...]) -> tuple[int, ...]:
    """Sender and receiver of a point to point, as global ranks; else the members."""
    if not members or base not in ("send", "recv_", "isend", "irecv"):
        return members
    me = dist.get_rank()
    return (me, members[given["dst"]]) if "dst" in given else (members[given["src"]], me)


def _flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)


def _name(slot: str, tensors: Iterable[Tensor]) -> Named:
    return tuple((f"{slot}.{at}", tensor) for at, tensor in enumerate(tensors))
