"""The log of a run: what each step recorded, attempt by attempt.

1. `_steps` collects the rows of level `step` of every attempt: metrics, roots, batches, random
   states.
2. A step that several attempts recorded stands once per attempt; the later supersedes, and roots
   that differ are said so.
3. `log_json` gives all of it; `log_text` a line per step, the newest first, as `git log` would.

    step  root      loss     norm    lr      tokens  batch
    2     94a3f0c2  5.61204  1.8833  0.0002  1024    5be21f07
    1     0b77e1d9  5.67131  1.9127  0.0001  1024    a1c4409e
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bitstep.errors import TraceError, printable
from bitstep.records import WHOLE_RUN, Record
from bitstep.trace.run import AttemptTrace, read_run
from bitstep.trace.schema import metric_value

_LABELS: Final = {
    "loss": "loss",
    "mtp_1": "mtp_1",
    "load_balancing": "balance",
    "z_loss": "z",
    "grad_norm": "norm",
    "lr": "lr",
    "tokens": "tokens",
    "eval_loss": "eval",
}
"""Metric to the head of its column, in the order of the columns; others follow by name."""


_Key = tuple[int, str]
"""Rank, and which of its batches or generators; our engine has one of each."""


@dataclass
class _Step:
    """What one attempt recorded of one step."""

    step: int
    attempt: int
    root: int
    metrics: dict[str, Record] = field(default_factory=dict)
    roots: dict[str, Record] = field(default_factory=dict)
    batch: dict[_Key, Record] = field(default_factory=dict)
    rng: dict[_Key, Record] = field(default_factory=dict)
    own: dict[str, Record] = field(default_factory=dict)
    own_roots: dict[str, Record] = field(default_factory=dict)
    """The metrics and roots of the first process that has them."""
    is_start: bool = False
    """Only the state that an attempt began with: it repeats a step, and replaces none."""
    superseded_by: int | None = None
    notes: list[str] = field(default_factory=list)


def log_json(run: Path) -> list[dict[str, Any]]:
    """One dict per step and attempt, by step, then one per line of damage.

    A value stands beside its bits (16 hex digits); a value that JSON cannot hold (nan, inf) is a
    string, one of an unknown dtype null. Raises RunError and TraceError as `read_run` does.
    """
    attempts = read_run(run)
    return [_step_json(step) for step in _steps(attempts)] + [
        {"kind": "damage", "attempt": number, "text": text} for number, text in _damage(attempts)
    ]


def log_text(run: Path, last: int | None = None) -> str:
    """A line per step and attempt, the newest first; `last`: only so many steps. Then damage.

    Ends without a line end. Raises RunError and TraceError as `read_run` does.
    """
    attempts = read_run(run)
    steps = _steps(attempts)
    if last is not None:
        newest = sorted({step.step for step in steps})[-last:] if last > 0 else []
        steps = [step for step in steps if step.step in newest]
    lines = [_attempt_line(attempt) for attempt in reversed(attempts)]
    if steps:
        lines += ["", *_table(list(reversed(steps)))]
    damage = [f"attempt {number}: {text}" for number, text in _damage(attempts)]
    if damage:
        lines += ["", "damage (what follows in these files was not read):", *damage]
    return "\n".join(lines)


def _damage(attempts: Iterable[AttemptTrace]) -> Iterator[tuple[int, str]]:
    for attempt in attempts:
        for text in attempt.damage:
            yield attempt.number, text


def _steps(attempts: Sequence[AttemptTrace]) -> list[_Step]:
    """All steps of all attempts, by step, then attempt."""
    by_step: dict[int, list[_Step]] = {}
    for attempt in attempts:
        mine = {
            number: _Step(number, attempt.number, root)
            for number, root in attempt.trace.steps.items()
        }
        phases: dict[int, set[str]] = {}
        for record in attempt.trace.records():
            _file_record(mine[record.site.step], record)
            phases.setdefault(record.site.step, set()).add(record.site.phase)
        for number, step in mine.items():
            # A recording has no rows of the whole run: those of its first rank stand for it.
            step.metrics, step.roots = step.metrics or step.own, step.roots or step.own_roots
            step.is_start = phases.get(number) == {"start"}
            if step.is_start:
                step.notes.append("the state it began with")
            by_step.setdefault(number, []).append(step)
    for several in by_step.values():
        _supersede(several)
    return [step for number in sorted(by_step) for step in by_step[number]]


def _file_record(step: _Step, record: Record) -> None:
    slot, rank, part = record.site.slot, record.site.rank, record.site.module
    if record.site.op:
        return
    if slot.startswith(("metric.", "root.")):
        kind, _, name = slot.partition(".")
        if rank == WHOLE_RUN:
            _add(step, step.metrics if kind == "metric" else step.roots, name, record)
        elif not part and record.site.microbatch < 1:
            (step.own if kind == "metric" else step.own_roots).setdefault(name, record)
    elif slot == "batch" and not part:
        which = record.site.microbatch
        _add(step, step.batch, (rank, f"microbatch {which}" if which > 0 else ""), record)
    elif slot == "rng":
        _add(step, step.rng, (rank, part), record)
    elif rank == WHOLE_RUN and slot == "root" and record.digest != step.root:
        step.notes.append(f"a row says root {record.digest:016x}")


def _add(step: _Step, found: dict[Any, Record], key: str | _Key, record: Record) -> None:
    """Keep the first of equal rows: every process may record what belongs to the whole run."""
    first = found.setdefault(key, record)
    if (first.digest, first.dtype) != (record.digest, record.dtype):
        step.notes.append(f"processes disagree about {printable(record.site.slot)}")


def _supersede(several: Sequence[_Step]) -> None:
    """Compare the attempts of one step: the last one that took it counts, and roots that differ
    from the attempt before are named."""
    taken = [step for step in several if not step.is_start]
    for step in taken[:-1]:
        step.superseded_by = taken[-1].attempt
        step.notes.append(f"superseded by attempt {step.superseded_by}")
    for before, step in pairwise(several):
        if step.root != before.root:
            step.notes.append(f"root differs from attempt {before.attempt}")


def _step_json(step: _Step) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": step.step,
        "attempt": step.attempt,
        "root": f"{step.root:016x}",
        "metrics": {
            name: {"value": _value(row), "bits": f"{row.digest:016x}", "dtype": row.dtype}
            for name, row in sorted(step.metrics.items())
        },
        "roots": {name: f"{row.digest:016x}" for name, row in sorted(step.roots.items())},
        "batch": _hex(step.batch),
        "rng": _hex(step.rng),
        "is_start": step.is_start,
        "superseded_by": step.superseded_by,
        "notes": step.notes,
    }


def _hex(rows: Mapping[_Key, Record]) -> dict[str, str]:
    return {
        f"{rank} {which}".rstrip(): f"{row.digest:016x}"
        for (rank, which), row in sorted(rows.items())
    }


def _value(row: Record) -> float | int | str | None:
    try:
        value = metric_value(row.digest, row.dtype)
    except TraceError:
        return None
    return value if math.isfinite(value) else str(value)


def _attempt_line(attempt: AttemptTrace) -> str:
    steps = attempt.trace.steps
    # Only our engine has an end marker of its own; a recording that is whole was closed.
    recorded = "recorded to its end" if attempt.is_recording and attempt.trace.complete else ""
    status = attempt.status or recorded or "no end marker: it was killed, or still runs"
    span = f"steps {min(steps)} to {max(steps)}" if steps else "no step"
    return f"attempt {attempt.number}: {span}; {status}"


def _table(steps: Sequence[_Step]) -> list[str]:
    """Head and lines, in columns as wide as their widest cell."""
    # A metric of several numbers is known by its fingerprint alone.
    present = {
        name for step in steps for name, row in step.metrics.items() if _value(row) is not None
    }
    metrics = [name for name in _LABELS if name in present]
    metrics += sorted(present - set(_LABELS))
    labels = [printable(_LABELS.get(name, name)) for name in metrics]
    rows = [["step", "root", *labels, "batch", ""]]
    for step in steps:
        cells = [_cell(step.metrics.get(name)) for name in metrics]
        notes = "; ".join([f"attempt {step.attempt}", *step.notes]) if step.notes else ""
        rows.append([str(step.step), f"{step.root:016x}"[:8], *cells, _short(step.batch), notes])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cell(row: Record | None) -> str:
    """Six digits for a person; equality is judged by the bits, which `--json` gives."""
    value = None if row is None else _value(row)
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short(batch: Mapping[_Key, Record]) -> str:
    """Eight digits over the batches of all logical ranks."""
    if not batch:
        return "-"
    pieces = [f"{name}:{digest}" for name, digest in _hex(batch).items()]
    return hashlib.blake2b(" ".join(pieces).encode(), digest_size=4).hexdigest()
