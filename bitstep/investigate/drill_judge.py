"""What became of one fault: had it an effect, was it found, and was it named exactly?

1. The effect is told by the bytes of the state alone (`faults.state`), without any recorder.
2. Found: the comparison of the recordings says that they differ.
3. Named exactly: the cause it names is the call that the receipt names. For a stray write that is
   the first call that takes the byte, or the record of the tensor that was hit.

A call is known by its place among all calls of its rank, as the faults counted it and as the
recorder did; `Lines` says whether the two agree on what the program called.

    judge(flip, receipts, effect, difference, lines)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from bitstep.diff.difference import Cause, Difference, Kind
from bitstep.diff.slots import BOUNDARY, class_of
from bitstep.faults.flip import Flip
from bitstep.investigate.drill_draw import Call, Program
from bitstep.records import Outcome, Record

Judgement = Literal["null", "exact", "unnamed", "missed"]

CallKey = tuple[int, str, str, int, str, str, int]
"""Step, phase, pass, microbatch, module, operation and occurrence of recorded rows."""
KINDS = {
    # Of a call that is recomputed, its forward in the same run tells as much.
    "output": (Kind.ORIGIN, Kind.COLLECTIVE, Kind.RECOMPUTE),
    "input": (Kind.ORIGIN, Kind.COLLECTIVE, Kind.RECOMPUTE),
    # Where a digest was carried, the call that takes the byte looks like the origin.
    "stray": (Kind.UNSEEN, Kind.ORIGIN, Kind.COLLECTIVE, Kind.RECOMPUTE),
}
"""What a fault may be named as."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgement on one fault, and why."""

    outcome: Judgement
    why: str
    """How it was named; of a null fault why it had no effect; else what was named instead."""


class Lines:
    """The calls of the clean run, as the recorder and as the faults have listed them."""

    def __init__(self, program: Program, records: Sequence[Record]) -> None:
        self._recorded = _recorded_calls(records)
        self._sites = {rank: list(calls) for rank, calls in self._recorded.items()}
        self._counted = {
            rank: [(step, call) for step in sorted(steps) for call in steps[step] if _counts(call)]
            for rank, steps in program.calls.items()
        }
        self._places = {
            rank: {(step, call.place): n for n, (step, call) in enumerate(calls)}
            for rank, calls in self._counted.items()
        }
        self._offsets = {rank: self._offset(rank) for rank in self._counted}
        self._matched = {rank: self._matches(rank) for rank in self._counted}

    def _offset(self, rank: int) -> int | None:
        """How many calls the recorder has before the first that the faults count."""
        counted, recorded = self._names(rank)
        for offset in range(len(recorded) - len(counted) + 1):
            if recorded[offset : offset + len(counted)] == counted:
                return offset
        return None

    def _matches(self, rank: int) -> dict[int, int]:
        """Where the lists differ: the place of a counted call among the recorded ones. gloo runs
        operations inside of a wait, which are counted and not recorded."""
        if self.agree(rank):
            return {}
        pairs = SequenceMatcher(None, *self._names(rank), autojunk=False).get_matching_blocks()
        return {a + n: b + n for a, b, size in pairs for n in range(size)}

    def _names(self, rank: int) -> tuple[list[str], list[str]]:
        """The operations that were counted, and those that were recorded."""
        counted = [call.op for _, call in self._counted[rank]]
        return counted, [_plain(site[5]) for site in self._recorded.get(rank, ())]

    def agree(self, rank: int) -> bool:
        """Whether both have the same calls of that rank, from the first training forward on."""
        return self._offsets.get(rank) is not None

    def recorded(self, rank: int, step: int, index: int) -> CallKey | None:
        """The site of the rows of a call that the faults counted; None: it has none."""
        place, offset = self._places[rank].get((step, index)), self._offsets[rank]
        if place is None:
            return None
        if offset is not None:
            return self._sites[rank][offset + place]
        matched = self._matched[rank].get(place)
        return None if matched is None else self._sites[rank][matched]

    def is_between(self, rank: int, site: Mapping[str, Any], seq: int, end: CallKey | None) -> bool:
        """Whether a record comes after the moment of a fault, and not after the call `end`."""
        begin = self.recorded(rank, site["step"], site["call"])
        recorded = self._recorded.get(rank, {})
        if begin is None or seq < recorded[begin]:
            return False
        return end is None or seq <= recorded[end]


def _counts(call: Call) -> bool:
    return call.is_of_program


def _recorded_calls(records: Sequence[Record]) -> dict[int, dict[CallKey, int]]:
    """The first record of each call, in order, by rank."""
    found: dict[int, dict[CallKey, int]] = {}
    for record in records:
        site = record.site
        # A row of an optimizer's setting has the name of its class there, and no dot.
        if "." in site.op and not site.slot.startswith(("count", "gap")):
            found.setdefault(site.rank, {}).setdefault(_key(site), record.seq)
    return found


def _key(site: Any) -> CallKey:
    return (
        site.step, site.phase, site.pass_, site.microbatch, site.module, site.op, site.occurrence
    )  # fmt: skip


def _plain(op: str) -> str:
    """ "aten.add_.Tensor" -> "aten.add_"."""
    return ".".join(op.split(".")[:2])


def judge(
    flip: Flip,
    receipts: Sequence[Mapping[str, Any]],
    effect: Mapping[str, Any] | None,
    difference: Difference | str,
    lines: Lines,
) -> Judged:
    """The judgement on a fault that was injected, or was to be.

    A text in place of a difference says why the recordings could not be compared.
    """
    unreached: Mapping[str, Any] = {"status": "unreached", "reason": "no such step"}
    receipt = receipts[0] if receipts else unreached
    if receipt["status"] != "fired":
        return Judged("null", f"not reached: {receipt['reason']}")
    if effect is None:
        consumer = receipt.get("consumer", {"status": "never read"})
        seen = "not seen" if _are_equal(difference) else "seen"
        return Judged("null", f"no byte of the state differs: {consumer['status']}, {seen}")
    if isinstance(difference, str):
        return Judged("missed", difference)
    if difference.outcome is not Outcome.DIFFERENT or not difference.causes:
        said = "; ".join([difference.title, *difference.reasons])
        return Judged("missed", said)
    expected = _expected(receipt, flip, lines)
    for cause in difference.causes:
        how = _named(cause, flip, receipt, expected, lines)
        if how is not None:
            return Judged("exact", how)
    return Judged("unnamed", _instead(difference.causes[0], receipt, expected, lines))


def _are_equal(difference: Difference | str) -> bool:
    return isinstance(difference, str) or difference.outcome is not Outcome.DIFFERENT


def _expected(receipt: Mapping[str, Any], flip: Flip, lines: Lines) -> CallKey | None:
    site = receipt["site"] if flip.kind != "stray" else receipt.get("consumer", {})
    if "call" not in site:
        return None
    return lines.recorded(site["rank"], site["step"], site["call"])


def _named(
    cause: Cause, flip: Flip, receipt: Mapping[str, Any], expected: CallKey | None, lines: Lines
) -> str | None:
    """How a cause names the fault, or None."""
    where = cause.where
    # What a call gives while data are made is data.
    makes_data = cause.kind is Kind.DATA and where.phase == "data" and flip.kind == "output"
    if flip.rank not in (where.rank, *cause.ranks):
        return None
    if cause.kind not in KINDS[flip.kind] and not makes_data:
        return None
    if _key(where) == expected:
        return f"{cause.kind.value} at the call"
    if flip.kind == "stray" and _is_tensor(where, flip.tensor):
        return f"{cause.kind.value} of the tensor"
    # State that an engine is looked at in the middle of a step has in `op` after what.
    is_record = not where.op or class_of(where.slot) in BOUNDARY
    is_record &= cause.kind is Kind.UNSEEN
    if is_record and _is_in_interval(cause, receipt, expected, lines):
        # Another record of the same memory, a module's output for one, came before the call.
        return f"{cause.kind.value} between the fault and the call that takes it"
    return None


def _is_in_interval(
    cause: Cause, receipt: Mapping[str, Any], expected: CallKey | None, lines: Lines
) -> bool:
    site, bits = receipt["site"], cause.a or cause.b
    if bits is None or cause.where.rank != site["rank"]:
        return False
    return lines.is_between(site["rank"], site, bits.seq, expected)


def _instead(
    first: Cause, receipt: Mapping[str, Any], expected: CallKey | None, lines: Lines
) -> str:
    said = f"named: {first.kind.value} at step {first.where.step}: {first.title}"
    if _is_in_interval(first, receipt, expected, lines):
        taker = "the first call that takes the byte" if expected else "the end: no call takes it"
        return f"{said}; that is after the fault, and before {taker}"
    return f"{said}; expected {_shown(expected)}"


def _is_tensor(where: Any, tensor: str) -> bool:
    kind, _, name = tensor.partition(":")
    slots = {"param": "param", "grad": "grad", "buffer": "buffer"}
    wanted = slots.get(kind, f"state.{kind}")
    path = name.removeprefix("module.")
    return bool(where.slot == wanted and f".{where.module}".endswith(f".{path}"))


def _shown(expected: CallKey | None) -> str:
    if expected is None:
        return "a call that has no record"
    step, phase, _, _, module, op, occurrence = expected
    return f"step {step} {phase} {module or '-'} {op} #{occurrence}"
