"""Flips that wait in this process for their moment. Imports torch.

1. `arm` reads the environment once, and hooks modules, optimizers and backward (`clock`).
2. With the first training forward two modes go around all others (`modes`): by then a recorder
   that was started before training is there.
3. Each call is counted; a flip whose turn it is happens, and leaves its receipt (`receipts`).
4. After each update the bytes of the state are digested (`state`).

>>> arm() is None  # the environment asks for nothing
True
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from bitstep.faults.calls import Info, describe, taken, written
from bitstep.faults.clock import Clock
from bitstep.faults.environment import Order, read_order
from bitstep.faults.modes import Above, Below, enclose
from bitstep.faults.raw import Memory
from bitstep.faults.receipts import Receipt
from bitstep.faults.state import States
from bitstep.faults.survey import Survey

NAMED_AT = 2
"""Step after which the tensors are listed: gradients and moments are there by then."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the program, while it runs."""

    info: Info
    index: int
    phase: str
    module: str
    due: tuple[Receipt, ...]
    """Flips of this call."""
    args: Any
    kwargs: Any


class Armed:
    """All flips of this process. `disarm` takes every trace of it away."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._undo: list[Callable[[], None]] = []
        self._clock = Clock(self._hears)
        self._reset()
        self._clock.start()

    def _reset(self) -> None:
        order = self._order
        self.receipts = [Receipt(f, n, order.folder) for n, f in enumerate(order.flips)]
        self._waiting: list[Receipt] = []
        self._states = States(order.folder)
        self._survey = Survey(order.folder) if order.lists_calls and order.folder else None
        self._step = self._index = 0

    def begin_anew(self) -> None:
        """In a forked child: it may train, and has trained nothing; a loader's never does."""
        self._take_modes_away()
        self._clock.reset()
        self._reset()

    def _take_modes_away(self) -> None:
        while self._undo:
            self._undo.pop()()

    def disarm(self) -> None:
        """Take modes and hooks away."""
        global _armed
        self._take_modes_away()
        self._clock.stop()
        _armed = None if _armed is self else _armed

    def _hears(self, position: str, subject: Any) -> None:
        if position == "step":
            self._begin_step()
        elif position == "loss":
            self._states.lose(subject)
            return
        elif position == "before-forward":
            self._states.meet(subject)
        elif position.endswith("-optimizer"):
            self._states.meet_optimizer(subject)
        for receipt in self._waiting:
            if receipt.status == "waiting" and receipt.flip.position == position:
                self._write_stray(receipt, self._site())
        if position == "after-optimizer":
            self._states.write(_rank(), self._clock.step)
            self._end_survey()
            if self._survey is not None and self._clock.step == NAMED_AT:
                self._survey.name(_rank(), self._states.named())

    def _begin_step(self) -> None:
        if not self._undo:
            below = Below(self)
            self._undo.append(enclose(Above(self, below), below))
        self._end_survey()
        for receipt in self._waiting:
            if receipt.status == "waiting":
                receipt.miss(f"the step ended after {receipt.seen} calls that count")
        step, rank, self._index = self._clock.step, _rank(), 0
        self._step = step
        mine = [r for r in self.receipts if r.flip.step == step and r.flip.rank == rank]
        self._waiting = [receipt for receipt in mine if receipt.status == "waiting"]

    def _end_survey(self) -> None:
        if self._survey is not None:
            self._survey.end(_rank(), self._step)

    def _site(self, call: Call | None = None) -> dict[str, Any]:
        site: dict[str, Any] = {"step": self._clock.step, "rank": _rank()}
        if call is None:
            return {**site, "phase": self._clock.phase, "module": "", "op": "", "call": self._index}
        where = {"phase": call.phase, "module": call.module, "op": call.info.op}
        return {**site, **where, "call": call.index}

    def begins(self, func: Any, args: Any, kwargs: Any) -> Call:
        """Count a call."""
        info, phase = describe(func), self._clock.phase
        due = tuple(r for r in self._waiting if _counts(r, info, phase) and _is_due(r))
        call = Call(info, self._index, phase, self._clock.module(), due, args, kwargs)
        self._index += 1
        for receipt in self.receipts:
            if receipt.is_followed:
                receipt.follow(info, args, kwargs, self._site(call))
        return call

    def runs(self, call: Call, args: Any, kwargs: Any) -> None:
        """Right before the kernel."""
        for receipt in call.due:
            if receipt.flip.kind == "input":
                self._flip(receipt, call, taken(call.info, args, kwargs))

    def ran(self, call: Call, result: Any) -> None:
        """Right after the kernel; a collective is waited for first."""
        due = [receipt for receipt in call.due if receipt.flip.kind == "output"]
        if due and call.info.is_collective:
            _wait(result)
        for receipt in due:
            self._flip(receipt, call, written(call.info, call.args, call.kwargs, result))

    def ends(self, call: Call, args: Any, kwargs: Any, result: Any) -> None:
        """After everyone else: between this call and the next."""
        if self._survey is not None:
            self._survey.add(call.phase, call.module, call.info, args, kwargs, result)
        for receipt in self._waiting:
            _hold(receipt, call, result)
        for receipt in call.due:
            if receipt.flip.kind == "stray":
                self._write_stray(receipt, self._site(call))

    def _flip(self, receipt: Receipt, call: Call, tensors: list[tuple[str, Tensor]]) -> None:
        if receipt.flip.output >= len(tensors):
            receipt.miss(f"{call.info.op} has {len(tensors)} such tensors")
            return
        slot, tensor = tensors[receipt.flip.output]
        receipt.fire(tensor, slot, self._site(call))

    def _write_stray(self, receipt: Receipt, site: dict[str, Any]) -> None:
        name = receipt.flip.tensor
        is_output = name.startswith("output:")
        tensor = receipt.held if is_output else self._states.find(name)
        if tensor is None:
            receipt.miss(f"there is no {name} at that moment")
        else:
            receipt.fire(tensor, name, site)


def _counts(receipt: Receipt, info: Info, phase: str) -> bool:
    flip = receipt.flip
    return (
        receipt.status == "waiting"
        and not flip.position
        and flip.op in ("", info.op)
        and flip.phase in ("", phase)
    )


def _is_due(receipt: Receipt) -> bool:
    receipt.seen += 1
    return receipt.seen == receipt.flip.occurrence + 1


def _hold(receipt: Receipt, call: Call, result: Any) -> None:
    """Remember where the output lies that a later stray write is to hit."""
    name = receipt.flip.tensor
    if name.startswith(f"output:{call.index}:") and receipt.held is None:
        tensors = written(call.info, call.args, call.kwargs, result)
        number = int(name.rpartition(":")[2])
        if number < len(tensors):
            with contextlib.suppress(ValueError):  # out of reach: there is none to hit
                receipt.held = Memory.of(tensors[number][1])


def _wait(result: Any) -> None:
    for item in result if isinstance(result, (list, tuple)) else [result]:
        if hasattr(item, "wait"):
            item.wait()


def _rank() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0"))


_armed: Armed | None = None


def arm() -> Armed | None:
    """Arm this process as its environment asks, once. Raises UsageError for what is no flip."""
    global _armed
    order = read_order(os.environ)
    if _armed is None and order is not None:
        _armed = Armed(order)
        os.register_at_fork(after_in_child=_begin_anew)
    return _armed


def _begin_anew() -> None:
    if _armed is not None:
        _armed.begin_anew()
