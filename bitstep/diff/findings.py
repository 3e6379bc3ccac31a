"""The tests for each kind of first difference. Each gives a `Finding`, or None: not this kind.

`bitstep.diff.explain` calls them in the order of `Kind`. A test looks only at a `Case`: the first
pair that differs, its call, and what was recorded before it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from bitstep.diff.case import Case, site
from bitstep.diff.difference import Kind
from bitstep.diff.draws import extra_draws
from bitstep.diff.rows import Rows
from bitstep.diff.slots import Class

_SHOWN = 3
_UNSET = "not set"
_CONSTANT = "The batch is equal: it is a constant, a scale or a buffer of the program."
_LATE = ("optimizer", "gather", "checkpoint")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a test says: the kind, one line, the sentences behind it, and how sure it is."""

    kind: Kind
    title: str
    because: tuple[str, ...] = ()
    sure: str = ""
    side_row: tuple[int, int] | None = None
    """Side and row to point at, where it is not the row of the case."""
    hint: str = ""
    """What to do next, where this finding knows it better than its kind does."""


def data(case: Case) -> Finding | None:
    """The batch differs, or something that no recorded operation made came in."""
    is_batch = case.kind is Class.BATCH
    batches = _differing(case, Class.BATCH)
    at_level = case.parting.pairs.level
    from_state = case.kind is Class.RNG and case.text("op") == "" and at_level < 3
    if from_state and batches:
        draws = extra_draws(case)
        stream = case.text("module") or "random"
        return Finding(
            Kind.DATA,
            f"the batch of step {case.parting.step} is another one, and so is the state of the "
            f"{stream} generator",
            ("An order of data that is drawn follows its generator: look there first.",
             *draws.sentences),
            "certain that both differ; which of them led to the other was not recorded",
            (0, batches[0]),
        )  # fmt: skip
    if is_batch:
        name = case.text("module")
        what = f"argument {name} of the batch" if name else "the batch"
        return Finding(
            Kind.DATA,
            f"{what} of step {case.parting.step} is another one",
            (_batch_words(case), *_equal_randoms(case)),
            "certain: everything recorded before it is equal",
        )
    if case.kind in (Class.INPUT, Class.OUTPUT) and case.text("phase") == "data":
        return Finding(
            Kind.DATA,
            f"the data differ while they are made: {site(case.sides[0], case.row[0])}",
            (f"{case.text('slot')} differs.", _batch_words(case)),
            "certain: everything recorded before it is equal",
        )
    return None


def _batch_words(case: Case) -> str:
    a, b = case.bits(0), case.bits(1)
    if a.shape != b.shape:
        return f"It has shape {list(a.shape)} in A and {list(b.shape)} in B."
    return "It has the same shape in both: other examples, or the same in another order."


def _equal_randoms(case: Case) -> list[str]:
    if _differing(case, Class.RNG):
        return ["A random generator is in another state as well."]
    return ["The random generators are in the same states: the position or the choice is another."]


def _differing(case: Case, kind: Class) -> list[int]:
    rows = case.differing[0]
    return [int(row) for row in rows[case.classes[0][rows] == kind]]


def from_outside(case: Case) -> Finding | None:
    """An input that no recorded operation made, and that is no tensor of the training state."""
    if case.kind is not Class.INPUT or not case.text("op") or case.tensor():
        return None
    if case.producer(0) is not None or case.producer(1) is not None:
        return None
    if case.source(0) is not None or case.source(1) is not None or case.kept or case.read_before:
        return None
    # After the optimizer a program makes the data of the next step.
    batch = bool(_differing(case, Class.BATCH)) or _next_batch(case)
    if case.text("phase") not in ("start", "data", "forward", "eval") and not batch:
        return None
    then = "The batch differs as well. " if batch else ""
    return Finding(
        Kind.DATA,
        f"what {site(case.sides[0], case.row[0])} is given as {case.text('slot')} is other data",
        (
            f"{then}No recorded operation made it: it came from the program or a loader.",
            _batch_words(case) if batch or not _has_batch(case) else _CONSTANT,
            *_resumed(case),
        ),
        "likely: something that was not recorded may have made it, another thread or NumPy",
    )


def _has_batch(case: Case) -> bool:
    """Whether the batch was compared before the explained row."""
    pairs = case.parting.pairs
    return bool((case.classes[0][pairs.a[pairs.a < case.row[0]]] == Class.BATCH).any())


def _resumed(case: Case) -> list[str]:
    """What to suspect in the first step of a resumed attempt."""
    lives = [life for life in case.lives if life.offset and life.offset == case.parting.step - 1]
    return [
        f"Attempt {life.number} of {life.run.upper()} was resumed just before: its checkpoint may "
        "lack it."
        for life in lives
    ]


def _next_batch(case: Case) -> bool:
    """Whether the batch of the step after this one differs."""
    found = []
    for life in case.lives:
        rows = life.rows(case.parting.process, case.parting.step + 1)
        if rows is None:
            return False
        chosen = case.slots.classes(rows) == Class.BATCH
        found.append(rows.digest[chosen].tolist())
    return bool(found[0] != found[1])


def random(case: Case) -> Finding | None:
    """A generator is in another state."""
    if case.kind is not Class.RNG:
        return None
    op, stream = case.text("op"), case.text("module")
    who = "the generator that " + site(case.sides[0], case.row[0]) + " draws from" if op else (
        f"the {stream} generator" if stream else "a generator")  # fmt: skip
    draws = extra_draws(case)
    batch = _differing(case, Class.BATCH)
    then = (f"So the batch of step {case.parting.step} is another one.",) if batch else ()
    return Finding(
        Kind.RANDOM,
        f"{who} is in another state",
        (*draws.sentences, *then),
        "certain that the state differs" + ("" if draws.found else "; who drew was not recorded"),
    )


def configuration(case: Case) -> Finding | None:
    """A number that the program was told differs: a learning rate, a probability, a flag."""
    lines = _hyper(case)
    late = case.text("phase") in _LATE
    if case.kind is Class.HYPER or (lines and late):
        first = lines[0]
        return Finding(
            Kind.CONFIGURATION,
            first,
            (*(f"Also: {line}." for line in lines[1:_SHOWN]), *_before(case), *_operations(case)),
            "certain that the setting differs, and nothing differs before it",
            _hyper_row(case),
        )
    if case.kind is Class.ARGS:
        return Finding(
            Kind.CONFIGURATION,
            f"{site(case.sides[0], case.row[0])} is told something else",
            ("Its arguments that are not tensors differ; its tensors so far are equal.",),
            "certain: all inputs recorded before it are equal",
        )
    return None


def _before(case: Case) -> list[str]:
    """That the setting differed earlier, and the bits did not: how soon two kernels round
    differently depends on the machine."""
    extra = case.parting.extra
    if extra is None or not set(_settings(case)) & set(_settings(Case(extra, case.slots, None))):
        return []
    return [f"It differs from step {extra.step} on, the bits of the state from here."]


def _operations(case: Case) -> list[str]:
    """What each run ran in this phase and the other did not."""
    ops = [only_ops(case, side) for side in (0, 1)]
    if not any(ops):
        return []
    return [f"In this phase A ran {ops[0] or 'nothing else'}, B {ops[1] or 'nothing else'}."]


def only_ops(case: Case, side: int) -> str:
    """The operations of the case's phase, before it, that only one run ran, and how often."""
    pairs, rows = case.parting.pairs, case.sides[side]
    only = pairs.only_a if side == 0 else pairs.only_b
    same = only[rows.phase[only] == rows.phase[case.row[side]]]
    same = same[same < case.row[side]]
    same = same[case.classes[side][same] != Class.HYPER]
    calls = {(rows.text("op", r), rows.text("module", r), int(rows.occurrence[r]))
             for r in same.tolist() if rows.text("op", r)}  # fmt: skip
    names = Counter(op for op, _, _ in calls)
    most = sorted(names, key=lambda op: (-_weight(op), op))
    words = [f"{op} ({names[op]})" for op in most[:2]]
    return ", ".join(words) + (f" and {len(most) - 2} others" if len(most) > 2 else "")


def _weight(op: str) -> int:
    """How much an operation tells about an implementation."""
    return ("fused" in op) * 4 + ("foreach" in op) * 3 + ("addc" in op) * 2 + ("lerp" in op)


class _Setting(NamedTuple):
    """A hyper-parameter that differs; a value is None where it is no number, or not there."""

    key: str
    owner: str
    a: str | None
    b: str | None

    def __str__(self) -> str:
        return f"{self.key} of {self.owner} is {self.a or _UNSET} in A, {self.b or _UNSET} in B"

    @property
    def change(self) -> str:
        return f"{self.key} {self.a or _UNSET} -> {self.b or _UNSET}"


def _hyper(case: Case) -> list[str]:
    """Every hyper-parameter that differs: "lr of AdamW group0 is 0.001 in A, 0.002 in B"; of one
    group that has several "AdamW group0: foreach 0 -> not set, fused not set -> 1"."""
    owners: dict[str, list[_Setting]] = {}
    for setting in dict.fromkeys(_settings(case)):
        owners.setdefault(setting.owner, []).append(setting)
    lines = []
    for owner, settings in owners.items():
        words = [setting.change for setting in settings[:_SHOWN]]
        more = f" and {len(settings) - _SHOWN} more" if len(settings) > _SHOWN else ""
        several = f"{owner}: {', '.join(words)}{more}"
        lines.append(several if len(settings) > 1 else str(settings[0]))
    return lines


def _settings(case: Case) -> list[_Setting]:
    pairs, (a, b) = case.parting.pairs, case.sides
    found = [
        _Setting(*_key(a, row_a), a.value(row_a) or "?", b.value(row_b) or "?")
        for row_a, row_b in zip(*case.differing, strict=True)
        if case.classes[0][row_a] == Class.HYPER
    ]
    for side, rows, only in ((0, a, pairs.only_a), (1, b, pairs.only_b)):
        for row in only[case.classes[side][only] == Class.HYPER].tolist():
            value = rows.value(row) or "?"
            values = (value, None) if side == 0 else (None, value)
            found.append(_Setting(*_key(rows, row), *values))
    return found


def _key(rows: Rows, row: int) -> tuple[str, str]:
    """The name of a hyper-parameter, and whose it is."""
    owner = f"{rows.text('op', row)} {rows.text('module', row)}".rstrip()
    return rows.text("slot", row).removeprefix("args."), owner


def _hyper_row(case: Case) -> tuple[int, int] | None:
    found = _differing(case, Class.HYPER)
    if found:
        return 0, found[0]
    for side, only in ((0, case.parting.pairs.only_a), (1, case.parting.pairs.only_b)):
        rows = only[case.classes[side][only] == Class.HYPER]
        if len(rows):
            return side, int(rows[0])
    return None
