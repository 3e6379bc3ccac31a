"""Which faults a drill injects: drawn by seed and number, from what the clean program did.

1. `read_program` reads the calls and tensors that the clean run listed, by rank and step.
2. `draw` takes a rank, a step, a phase, a module, an operation and one of its calls, each with
   equal chance among those there are, so that a rare operation is hit as often as a common one.
3. Every other fault is a stray write: to a parameter, a gradient, a moment or an output that is
   read again later, each with equal chance.

>>> draw(program, seed=7, number=0)  # doctest: +SKIP
Flip(kind='output', step=3, rank=1, op='aten.mm', ...)
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bitstep.errors import RunError
from bitstep.faults.flip import Flip
from bitstep.state.keys import key

WIDTHS = {"float64": 64, "int64": 64, "float32": 32, "int32": 32, "bfloat16": 16, "float16": 16}
"""Bits of an element; every other dtype is taken to have 8."""
TARGETS = ("param", "grad", "moment", "output")
TRIES = 1000


class Written(NamedTuple):
    """A tensor that a call writes."""

    slot: str
    dtype: str
    elements: int
    memory: int


class Call(NamedTuple):
    """One call of the clean program; `place` counts all calls of its step."""

    place: int
    phase: str
    module: str
    op: str
    writes: tuple[Written, ...]
    reads: frozenset[int]

    @property
    def is_of_program(self) -> bool:
        """False for markers of the profiler, which compute nothing."""
        return not self.op.startswith("profiler.")


@dataclass(frozen=True, slots=True)
class Program:
    """What the clean run did."""

    calls: dict[int, dict[int, tuple[Call, ...]]]
    """By rank, then by step."""
    tensors: dict[int, dict[str, tuple[str, int]]]
    """By rank, dtype and elements by name."""


def read_program(folder: Path) -> Program:
    """The lists that a clean run left. Raises RunError if there are none."""
    calls: dict[int, dict[int, tuple[Call, ...]]] = {}
    for path in sorted(folder.glob("calls-rank-*.jsonl")):
        steps: dict[int, list[Call]] = {}
        for line in path.read_text().splitlines():
            value = json.loads(line)
            step = steps.setdefault(value["step"], [])
            step += [_call(len(step) + n, call) for n, call in enumerate(value["calls"])]
        calls[_rank_of(path)] = {number: tuple(step) for number, step in steps.items()}
    if not calls:
        raise RunError(f"{folder}: the program trained nothing: no call of a step is listed")
    tensors = {
        _rank_of(path): {n: (t[0], t[1]) for n, t in json.loads(path.read_text()).items()}
        for path in folder.glob("tensors-rank-*.json")
    }
    return Program(calls, tensors)


def _call(index: int, value: Sequence[Any]) -> Call:
    phase, module, op, writes, reads = value
    return Call(index, phase, module, op, tuple(Written(*w) for w in writes), frozenset(reads))


def _rank_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def draw(program: Program, seed: int, number: int) -> Flip:
    """Fault `number` of a drill: the same for the same program and seed."""
    chance = random.Random(key("drill", seed, number))
    for _ in range(TRIES):
        rank = chance.choice(sorted(program.calls))
        step = chance.choice(sorted(program.calls[rank]))
        calls = program.calls[rank][step]
        if number % 2 == 0:
            flip = _draw_output(chance, calls, rank, step)
        else:
            tensors = program.tensors.get(rank, {})
            flip = _draw_stray(chance, calls, tensors, rank, step)
        if flip is not None:
            return flip
    raise RunError("no fault could be drawn: the program has too few calls")


def _draw_output(chance: random.Random, calls: Sequence[Call], rank: int, step: int) -> Flip | None:
    call = _choose(chance, [c for c in calls if _can_be_hit(c)])
    if call is None:
        return None
    number = chance.randrange(len(call.writes))
    target = call.writes[number]
    return Flip(
        kind="output",
        step=step,
        rank=rank,
        op=call.op,
        occurrence=sum(c.op == call.op for c in calls[: call.place]),
        output=number,
        element=chance.randrange(target.elements),
        bit=chance.randrange(_bits(target.dtype)),
    )


def _draw_stray(
    chance: random.Random,
    calls: Sequence[Call],
    tensors: dict[str, tuple[str, int]],
    rank: int,
    step: int,
) -> Flip | None:
    target = chance.choice(TARGETS)
    if target == "output":
        return _draw_activation(chance, calls, rank, step)
    names = sorted(name for name in tensors if _kind_of(name) == target)
    phases = ("between", "optimizer") if target == "grad" else ()  # before, most are not there
    after = _choose(chance, [c for c in calls if not phases or c.phase in phases])
    # Moments are made in the first update.
    if not names or after is None or (target == "moment" and step == 1):
        return None
    name = chance.choice(names)
    return _stray(chance, rank, step, after.place, name, *tensors[name])


def _draw_activation(
    chance: random.Random, calls: Sequence[Call], rank: int, step: int
) -> Flip | None:
    call = _choose(chance, [c for c in calls if _can_be_hit(c)])
    if call is None:
        return None
    number = chance.randrange(len(call.writes))
    target = call.writes[number]
    later = [c.place for c in calls[call.place + 1 :] if target.memory in c.reads]
    if not later:
        return None
    after = chance.randrange(call.place, later[-1])
    name = f"output:{call.place}:{number}"
    return _stray(chance, rank, step, after, name, target.dtype, target.elements)


def _stray(
    chance: random.Random, rank: int, step: int, after: int, name: str, dtype: str, elements: int
) -> Flip:
    return Flip(
        kind="stray",
        step=step,
        rank=rank,
        occurrence=after,
        tensor=name,
        element=chance.randrange(elements),
        bit=chance.randrange(_bits(dtype)),
    )


def _choose(chance: random.Random, calls: Sequence[Call]) -> Call | None:
    """One of the calls: first a phase, then a module of it, then an operation, then a call."""
    for what in ("phase", "module", "op"):
        values = sorted({getattr(call, what) for call in calls})
        if not values:
            return None
        value = chance.choice(values)
        calls = [call for call in calls if getattr(call, what) == value]
    return chance.choice(calls)


def _can_be_hit(call: Call) -> bool:
    # What empty gives is nobody's output, and that of _unsafe_view is its input.
    is_view = not call.op.startswith("c10d.") and any(
        written.slot.startswith("out") and written.memory in call.reads for written in call.writes
    )
    is_empty = call.op.startswith(("aten.empty", "aten.new_empty"))
    return bool(call.writes) and not is_view and not is_empty


def _bits(dtype: str) -> int:
    # Of a byte that holds a truth value only the last bit leaves one.
    return 1 if dtype == "bool" else WIDTHS.get(dtype, 8)


def _kind_of(name: str) -> str:
    kind = name.partition(":")[0]
    return {"param": "param", "grad": "grad", "buffer": "buffer", "step": "step"}.get(
        kind, "moment"
    )
