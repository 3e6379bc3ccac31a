"""Every operation that PyTorch dispatches -> rows: what it read, what it wrote, how it was told.

1. The mode is called for each operation, forward, backward and optimizer, below autograd.
2. Its plan (`schemas`) says which arguments it reads, which it writes, and what else decides.
3. Inputs before, outputs and written arguments after; a drawing op has its generator's state.
4. Collectives are handed to `collectives`: their results have no bits before they are waited for.
5. Operations on subclasses (DTensor, fake tensors) are passed on: what they are made of comes
   back here, one level lower. One on quantized tensors has rows of its own around those, a row for
   each part: "aten.mm[MXTensor]".

The mode stays out of torch.compile: `ignore_compile_internals` keeps compiled regions compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.fingerprint.quantized import is_quantized
from bitstep.observe import native
from bitstep.observe.collectives import Collective, describe, members_text, results_of
from bitstep.observe.compiled import Region, Regions, Slots
from bitstep.observe.dynamo import problem, uncompiled
from bitstep.observe.lines import program_line
from bitstep.observe.pending import Pending
from bitstep.observe.schemas import Kind, Plan, digest_of_others, plan_of, value_of
from bitstep.observe.scope import Scope
from bitstep.observe.seen import Seen
from bitstep.observe.streams import state_of
from bitstep.observe.tensorrows import TensorRows
from bitstep.records import Fingerprint, Flag
from bitstep.trace.columns import Columns
from bitstep.trace.schema import metric_bits

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_SKIPPED, _SCALAR, _RAISED = int(Flag.SKIPPED), int(Flag.SCALAR), int(Flag.RAISED)
_COMPILED = int(Flag.COMPILED)
# Bound once: to read a member of an enum takes as long as the comparison.
_SILENT, _VIEW, _COPY, _NUMBER, _EMPTY = (
    Kind.SILENT, Kind.VIEW, Kind.COPY, Kind.SCALAR, Kind.EMPTY
)  # fmt: skip
_modes_below = torch._C._len_torch_dispatch_stack
_DOES_NOT_DISPATCH = torch._C._disabled_torch_dispatch_impl


Method = TypeVar("Method", bound=Callable[..., Any])


def harmless(method: Method) -> Method:
    """Work of ours inside of the program's: where it fails less is recorded, and None given."""

    @functools.wraps(method)
    def call(self: Operations, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            self._hooks.failed(error)
            return None

    return call  # type: ignore[return-value]


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The recorder's dispatch mode. Enter it once; `active` and `collectives` switch it cheaply."""

    supports_higher_order_operators = True

    def __init__(
        self,
        columns: Columns,
        scope: Scope,
        seen: Seen,
        hooks: Any,
        only: Callable[[str], bool] | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._columns = columns
        self._scope = scope
        self._seen = seen
        self.rows = TensorRows(columns, seen, hooks)
        self._hooks = hooks
        self._only = only
        self.active = False
        """Whether operations are recorded."""
        self.microbatch_of: Callable[[Tensor], int] = lambda tensor: -1
        """Which microbatch a tensor carries from one stage of a pipeline to another."""
        self.collectives = False
        """Whether collectives are recorded, also where other operations are not."""
        self.pending = Pending(scope.is_ours)
        self.regions = Regions(self._region_begins, self._region_ends, scope.is_ours)
        self.count = 0
        self._passed: Any = None
        """An op on a quantized tensor that was recorded: its class is asked next."""
        self._inside = 0
        """How many ops on quantized tensors are running."""
        native.attach(self, columns, scope, seen, hooks, only is not None)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled (pytorch#161648)."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would put a wrapper around every call, which takes as long as a small operation;
        `uncompiled` says the same to dynamo once."""
        return problem() is not None

    @uncompiled
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if (
            self._hooks.asleep
            or not (self.active or self.collectives)
            or self.regions.inside
            or self.pending.waiting
            or get_ident() != self._scope.thread
        ):
            return func(*args, **kwargs)
        if types and any(kind not in _PLAIN for kind in types):
            # What a DTensor is made of comes back here; a fake tensor computes nothing.
            return func(*args, **kwargs) if _is_fake(types) else self._subclass(func, args, kwargs)
        if _modes_below() and _fake_mode() is not None:
            return func(*args, **kwargs)
        plan = plan_of(func)
        if plan.kind is _SILENT:
            return func(*args, **kwargs)
        if plan.collective:
            return self._collective(func, args, kwargs)
        if self.pending.open and plan.kind is not _VIEW:
            self.pending.touched(_flat([*args, *kwargs.values()]))
        if not self.active or self.pending.objects:
            return func(*args, **kwargs)
        return self._record(func, plan, args, kwargs)

    def _subclass(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An op on a subclass is passed on; one on quantized tensors is recorded as well, around
        the ops that its class makes of it."""
        passed, self._passed = self._passed, None
        if passed is func or not self.active or self.pending.objects:
            return NotImplemented
        kind = _quantized_kind(_flat([*args, *kwargs.values()]))
        plan = plan_of(func)
        if kind is None or plan.kind is _SILENT or plan.collective:
            return NotImplemented

        def inside(*args: Any, **kwargs: Any) -> Any:
            self._passed = func
            self._inside += 1
            try:
                with self:
                    return func(*args, **kwargs)
            finally:
                self._inside -= 1

        return self._record(inside, plan._replace(name=f"{plan.name}[{kind}]"), args, kwargs)

    def _record(self, func: Any, plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.count += 1
        if not self.count & 0xFFF:
            self._hooks.journal.trim()
        try:
            call = self._before(plan, args, kwargs)
        except Exception as error:
            call = self._hooks.failed(error)
        if call is None and plan.kind is _COPY and self._seen.is_blank(_source(args)):
            # Memory that nobody wrote, in another place: bits that are nobody's.
            result = func(*args, **kwargs)
            self._seen.made_blank(result)
            return result
        if call is None or plan.kind is _VIEW:
            return self._view(func, args, kwargs) if self._inside else func(*args, **kwargs)
        before = state_of(kwargs.get("generator")) if plan.draws else None
        try:
            result = func(*args, **kwargs)
        except BaseException:
            self._raised(*call)
            raise
        try:
            if before is not None:
                self._drew(*call, before, kwargs.get("generator"))
            self._results(plan, *call, args, kwargs, result)
        except Exception as error:
            self._hooks.failed(error)
        return result

    def _view(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A view inside of an op on quantized tensors, where autograd has not taken ops apart: `to`
        and `reshape`, views by their schemas, may compute there."""
        with self:
            result = getattr(func, "decompose", _not_composite)(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result

    def _before(
        self, plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[int, int] | None:
        """Rows of what the op is given. Gives back head and occurrence; None: not wanted."""
        if self._only is not None and not self._only(self._scope.here()):
            return None
        head, occurrence = self._scope.call(plan.name)
        others = digest_of_others(plan, args, kwargs)
        if others is not None or plan.kind is _VIEW:
            self._columns.add(head, occurrence, "args", others or 0, "text", ())
        if plan.kind is _COPY and self._seen.is_blank(_source(args)):
            return None
        if plan.kind is not _VIEW:
            blind = plan.beta is not None and value_of(plan.beta, args, kwargs) == 0
            reads = plan.reads[1:] if blind else plan.reads
            self.rows.arguments(head, occurrence, reads, args, kwargs)
        return head, occurrence

    def _results(
        self,
        plan: Plan,
        head: int,
        occurrence: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        if plan.kind is _NUMBER:
            self._scalar(head, occurrence, result)
        elif plan.kind is _EMPTY:
            self._seen.made_blank(result)
            shape = tuple(result.shape)
            self._columns.add(head, occurrence, "out.0", 0, "", shape, flags=_SKIPPED)
        else:
            if plan.writes and (plan.when is None or value_of(plan.when, args, kwargs)):
                self.rows.arguments(head, occurrence, plan.writes, args, kwargs, True)
            if type(result) is Tensor:
                if plan.news:
                    self.rows.write(head, occurrence, "out.0", result)
            elif plan.results == 1 and plan.news and type(result) is list:
                self.rows.results(head, occurrence, result)
            elif plan.news:
                given = result if plan.results > 1 else (result,)
                for at, tensor in enumerate(_flat([given[at] for at in plan.news])):
                    self.rows.write(head, occurrence, f"out.{at}", tensor)

    def _collective(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Inputs before the launch; outputs where they are waited for."""
        launched = self._launched(func, args, kwargs)
        result = func(*args, **kwargs)
        if launched is not None:
            call, found = launched
            self.pending.add(results_of(found, result), result, partial(self._arrived, call))
        elif func is torch.ops._c10d_functional.wait_tensor.default:
            self.pending.waited_for(args[0])
        return result

    @harmless
    def _launched(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[int, int], Collective] | None:
        found = None if self.pending.objects else describe(func, args, kwargs)
        if found is None:
            return None
        if self.pending.open:
            self.pending.touched(tensor for _, tensor in found.inputs)
        moved = [tensor for _, tensor in found.inputs + found.outputs]
        number = self.microbatch_of(moved[0]) if found.kind == "exchange" and moved else -1
        call = self._scope.collective(found.kind, members_text(found.members), found.op, number)
        for slot, tensor in found.inputs:
            self.rows.read(*call, slot, tensor)
        return call, found

    @harmless
    def _arrived(self, call: tuple[int, int], found: Collective) -> None:
        for slot, tensor in found.outputs:
            self.rows.write(*call, slot, tensor)

    @harmless
    def _region_begins(self, region: Region, inputs: Slots) -> tuple[int, int] | None:
        if not self.active or self._hooks.asleep:
            return None
        self.count += 1
        side = ".backward" if region.is_backward else ""
        call = self._scope.call(f"compiled.{region.name}{side}")
        for at, tensor in inputs:
            self.rows.read(*call, f"in.{at}", tensor, _COMPILED)
        return call

    @harmless
    def _region_ends(
        self, region: Region, call: tuple[int, int] | None, mutated: Slots, outputs: Slots | None
    ) -> None:
        if call is None:
            return
        if outputs is None:
            self._raised(*call)
        for at, tensor in mutated:
            self.rows.write(*call, f"mutated.{at}", tensor, _COMPILED)
        for at, tensor in outputs or ():
            self.rows.write(*call, f"out.{at}", tensor, _COMPILED)

    def _raised(self, head: int, occurrence: int) -> None:
        self._columns.add(head, occurrence, "raised", 0, "", (), flags=_RAISED)

    def _scalar(self, head: int, occurrence: int, value: Any) -> None:
        dtype = "float64" if isinstance(value, float) else "int64"
        if isinstance(value, complex) or (dtype == "int64" and not -(2**63) <= value < 2**63):
            return
        bits = metric_bits(value if dtype == "float64" else int(value), dtype)
        self._columns.add(head, occurrence, "out.0", bits, dtype, (), flags=_SCALAR)

    def _drew(self, head: int, occurrence: int, before: Fingerprint, generator: Any) -> None:
        """The state that numbers were taken from; no row where none was, as attention without
        dropout takes none."""
        if state_of(generator) != before:
            self._columns.add(head, occurrence, "rng", before.sum, before.dtype, before.shape)
            self._columns.add(head, occurrence, f"at.{program_line()}", 0, "", ())


def _not_composite(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented


def _source(args: Sequence[Any]) -> Any:
    """What a copy reads: `clone(self)`, `_to_copy(self)`, `copy_(self, src)`."""
    return args[1] if len(args) > 1 and isinstance(args[1], Tensor) else args[0]


def _quantized_kind(tensors: Iterator[Tensor]) -> str | None:
    """The class of the quantized tensors that an op is called on; None if another one is there."""
    others = [tensor for tensor in tensors if type(tensor) not in _PLAIN]
    if not others or not all(map(is_quantized, others)):
        return None
    return type(others[0]).__name__


def _is_fake(types: Any) -> bool:
    """Whether one of the types computes nothing, or would not take an operation back: a parameter
    that has no shape yet does not dispatch."""
    return any(
        kind.__name__ in ("FakeTensor", "FunctionalTensor")
        or (kind.__torch_dispatch__ is _DOES_NOT_DISPATCH and kind not in _PLAIN)
        for kind in types
    )


def _fake_mode() -> Any:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def _flat(result: Any) -> Iterator[Tensor]:
    """The tensors of a result. Ops may also give back script objects: only look into sequences."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for item in result:
            yield from _flat(item)
