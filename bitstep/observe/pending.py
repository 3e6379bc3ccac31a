"""Results of collectives on their way: they are told when they may be read, never before.

1. `add` keeps the outputs of a launched collective and what is to be called with them.
2. They are told after `Work.wait` came back, after `wait_tensor`, or before an operation touches
   their memory (DDP waits in C++, where no hook is), or at the end of backward.
3. While a wait runs `waiting` is above 0: gloo copies results with operations of its own, which
   are part of the collective.
4. Objects that are sent around (`all_gather_object`) are pickles, which may hold a time or a host
   name: while one is on its way `objects` is above 0, and nothing of it belongs in a recording.

A recorder pays for one look at `open` per operation where nothing is on its way.

    if pending.open:
        pending.touched(tensors)
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from bitstep.observe.collectives import Collective
from bitstep.observe.dynamo import uncompiled_call
from bitstep.observe.imported import Gap
from bitstep.observe.undo import Undo

Emit = Callable[[Collective], None]
_OBJECTS: Final = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)


Span = tuple[int, int]
"""First and one past the last address of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """One collective that was launched and not waited for."""

    collective: Collective
    emit: Emit
    work: Any
    """What the program waits for, the same Python object; None of a functional collective."""
    by_engine: bool
    """Launched and waited for by C++ in backward: DDP."""
    spans: tuple[Span, ...]
    """Where its outputs are."""
    own: tuple[Span, ...]
    """Where its inputs are, if it leaves them alone: they may be read while it is on its way."""


class Pending:
    """What has been launched in the recorded thread and not been told yet, in launch order.

    Outputs are held until they are told, as their collective holds them until it is done.
    """

    def __init__(self, is_ours: Callable[[], bool]) -> None:
        self._is_ours = is_ours
        self._gap: Gap = lambda reason: None
        self.open: list[_Open] = []
        self.waiting = 0
        """How many waits are running."""
        self.objects = 0
        """How many object collectives are running."""

    def watch(self, undo: Undo, gap: Gap) -> None:
        """Hear of every wait and of every object collective of this process."""
        self._gap = gap
        if not dist.is_available():
            return
        try:
            work: Any = torch._C._distributed_c10d.Work
            undo.replace(work, "wait", self._around(work.wait, self._wait))
        except (AttributeError, TypeError) as error:
            gap(f"collectives are read at their first use and not at their wait: {error}")
        for name in _OBJECTS:
            for home in (dist, dist.distributed_c10d):
                if (original := getattr(home, name, None)) is not None:
                    undo.replace(home, name, self._around(original, self._send_objects))

    def add(self, collective: Collective, result: Any, emit: Emit) -> None:
        """A collective has been launched with this result. Without outputs nothing is kept."""
        if collective.outputs:
            spans = tuple(_span(tensor) for _, tensor in collective.outputs)
            in_place = collective.outputs[0][0].startswith("mutated")
            own = () if in_place else tuple(_span(tensor) for _, tensor in collective.inputs)
            work = _work_of(result)
            self.open.append(_Open(collective, emit, work, _is_by_engine(), spans, own))

    def waited(self, work: Any) -> None:
        """`Work.wait` of that work came back."""
        if self.open:
            self._tell([one for one in self.open if one.work is work])

    def waited_for(self, tensor: Tensor) -> None:
        """`wait_tensor` of that tensor came back."""
        if self.open:
            span = _span(tensor)
            self._tell([one for one in self.open if one.work is None and span in one.spans])

    def touched(self, tensors: Iterable[Tensor]) -> None:
        """An operation is about to read or write these tensors: who does has waited somehow.

        Only an overlap of addresses counts. Megatron and FSDP keep many buckets in one storage,
        some on their way while others are written. `Work.is_completed` is not asked: gloo says
        so only after it has woken up who waits. What is functional has its wait as an operation.
        """
        for tensor in tensors:
            span = _span(tensor)
            self._tell([o for o in self.open if _is_read(o, span) and not _is_functional(o)])

    def backward_ended(self) -> None:
        """What DDP launched is there. The rest may be on its way for longer, and is not asked:
        whether it is done already is another answer in another run."""
        self._tell([one for one in self.open if one.by_engine])

    def is_in_flight(self, tensor: Tensor) -> bool:
        """Whether a result that was not told lies in the memory of that tensor: do not hash it."""
        span = _span(tensor) if self.open else (0, 0)
        return any(_is_read(one, span) for one in self.open)

    def drop(self) -> list[str]:
        """Forget what is on its way, when recording ends; the names of what was never told."""
        names = [one.collective.op for one in self.open]
        self.open.clear()
        return names

    def _tell(self, ready: list[_Open]) -> None:
        if ready:
            self.open = [one for one in self.open if one not in ready]
        for one in ready:
            try:
                one.emit(one.collective)
            except Exception as error:
                self._gap(f"a result of {one.collective.op} is not recorded: {error}")

    def _around(self, original: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        @uncompiled_call
        def around(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._is_ours():
                return original(*args, **kwargs)
            return call(original, *args, **kwargs)

        return around

    def _wait(self, original: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
        self.waiting += 1
        try:
            result = original(work, *args, **kwargs)
        finally:
            self.waiting -= 1
        self.waited(work)
        return result

    def _send_objects(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.objects += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.objects -= 1


def _work_of(result: Any) -> Any:
    """The Python object that the program will wait for: the last of what c10d gives back."""
    last = result[-1] if isinstance(result, tuple | list) and result else result
    if isinstance(last, Tensor) or last is None:
        return None
    try:
        return torch._C._distributed_c10d.Work.unbox(last)
    except (AttributeError, TypeError, RuntimeError):
        return None


def _is_by_engine() -> bool:
    """Whether C++ launches it in backward: nothing of torch.distributed is on the way to it."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        if frame.f_globals.get("__name__", "").startswith("torch.distributed"):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_functional(one: _Open) -> bool:
    return one.collective.op.startswith("_c10d_functional")


def _is_read(one: _Open, span: Span) -> bool:
    first, last = span
    if any(begin <= first and last <= end for begin, end in one.own):
        return False
    return any(first < end and begin < last for begin, end in one.spans)


def _span(tensor: Tensor) -> Span:
    """Where a tensor is; nowhere, if it has no memory of its own."""
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        return 0, 0
    if tensor.layout is not torch.strided or not tensor.numel():
        return 0, 0
    first = tensor.data_ptr()
    if tensor.is_contiguous():
        return first, first + tensor.nbytes
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()
