"""Two recordings of a program's first steps -> what they show by themselves.

1. They are compared: a difference is the worst finding, with the cause that `bitstep diff` names
   and what the catalog says of its operation.
2. The first is checked against itself (`bitstep check`): replicas, collectives, recomputation,
   writes that no operation made.
3. What lay outside of view is counted: other threads, tensors without bits, gaps.

>>> difference_findings(compare_runs(a, b), "cpu")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from bitstep.check import Check, Kind
from bitstep.contract.catalog import look_up
from bitstep.diff.difference import Cause, Difference
from bitstep.investigate.doctor.calls import Calls
from bitstep.investigate.doctor.finding import Finding, Severity
from bitstep.records import Outcome

_PARTING: Final[Mapping[Kind, Severity]] = {
    Kind.REPLICAS: "differs",
    Kind.COLLECTIVE: "differs",
    Kind.GATHER: "differs",
    Kind.RECOMPUTE: "differs",
    Kind.WRITE: "outside of view",
}
_FIXES: Final[Mapping[Kind, str]] = {
    Kind.REPLICAS: "give all ranks the same state: see where they part",
    Kind.COLLECTIVE: "look at the backend, and at what waits for the result",
    Kind.GATHER: "look at what writes to the shards",
    Kind.RECOMPUTE: "let the recomputation draw the same numbers (preserve_rng_state=True)",
    Kind.WRITE: "let a PyTorch operation write it, on the thread that trains",
}
_COUNTED: Final = {
    "count.threads": (
        "modules ran on other threads",
        "what other threads compute is not recorded, and they may finish in any order",
        "compute on the thread that trains, or add their results in a fixed order",
    ),
    "count.skipped": (
        "tensors had no bits that could be read",
        "of sparse, nested and other kinds only some have bits that are read",
        "",
    ),
}


def difference_findings(difference: Difference, device: str) -> Iterator[Finding]:
    """Where two executions part, and why; nothing where they do not."""
    for at, cause in enumerate(difference.causes):
        yield Finding(
            severity="differs",
            what=f"two executions gave other bits: {cause.title}" if at == 0 else cause.title,
            where=_where(cause),
            why=" ".join([*cause.because[:2], *_catalog(cause.where.op, device)])
            or cause.kind.value,
            fix=cause.hint or next(iter(_settings(cause.where.op, device)), "")
            or "give both the same start, then compare again",
            evidence=f"{cause.kind.value}; {cause.equal_before} records equal before; {cause.sure}",
        )  # fmt: skip
    if difference.outcome is Outcome.DIFFERENT and not difference.causes:
        yield Finding(
            severity="differs", what=f"two executions gave other bits: {difference.title}",
            why="; ".join(difference.reasons) or "the record that parts first is not known",
            fix=next(iter(difference.hints), ""), evidence="two executions, compared",
        )  # fmt: skip
    if difference.outcome is Outcome.UNVERIFIED:
        yield Finding(
            severity="unknown", what="whether two executions have the same bits",
            why="; ".join(difference.reasons), fix=next(iter(difference.hints), ""),
            evidence="two executions, compared",
        )  # fmt: skip


def _where(cause: Cause) -> str:
    where = cause.where
    named = [f"step {where.step}", f"rank {where.rank}", where.phase, where.module]
    named.append(f"{where.op} {where.slot}" if where.op else where.slot)
    return ", ".join(filter(None, named))


def _catalog(op: str, device: str) -> Iterator[str]:
    for row in look_up(op, device) if op else ():
        if row.varies == "run to run":
            yield f"The catalog says that {op} varies from {row.varies} ({row.mechanism})."


def _settings(op: str, device: str) -> Iterator[str]:
    for row in look_up(op, device) if op else ():
        yield from filter(None, [row.setting, row.alternative])


def check_findings(run: Path) -> Iterator[Finding]:
    """What a recording says against itself."""
    for found in Check(run).result().findings:
        place = found.place
        yield Finding(
            severity=_PARTING.get(found.kind, "differs"),
            what=found.title,
            where=", ".join(filter(None, [f"step {found.step}", place.phase, place.module,
                                          place.op, place.slot])),
            why=" ".join(found.because[:2]) or found.kind.value,
            fix=_FIXES.get(found.kind, ""),
            evidence=f"one execution, checked against itself ({found.kind.value}); {found.sure}",
        )  # fmt: skip


def outside_findings(calls: Calls) -> Iterator[Finding]:
    """What was not observed, and reads of memory that nobody wrote."""
    for slot, (what, why, fix) in _COUNTED.items():
        if calls.counts[slot]:
            yield Finding(
                severity="outside of view", what=f"{calls.counts[slot]} {what}", why=why, fix=fix,
                evidence="counted by the recorder", count=calls.counts[slot],
            )  # fmt: skip
    for reason in calls.gaps:
        yield Finding(
            severity="outside of view", what=f"not recorded: {reason}",
            why="what happened there is not known", fix="", evidence="said by the recorder",
        )  # fmt: skip
    for (op, module), count in calls.uninitialised.most_common():
        if op.startswith("c10d."):  # Buffers that it is to fill, or their padding.
            continue
        yield Finding(
            severity="may vary", what=f"{op} reads memory that no operation wrote", where=module,
            why="what torch.empty gives holds what was there before, unless NumPy or a kernel of "
            "another library filled it", fix="use torch.zeros, or fill it",
            evidence="observed in this program", count=count,
        )  # fmt: skip
