"""Every operation that ran -> what the catalog says of it, here, and the findings of that.

1. `classed` gives each operation its class: deterministic, under a setting, may vary, varies, or
   unknown. A row of the catalog counts where its conditions hold for a call that was recorded.
2. A setting is held if this program held it: from its first step to the end, on every rank.
3. `operation_findings` tells those that vary one by one, and the others together.

>>> classed(Ran("mine.kernel"), Setup(Circumstances("cpu", 1, False), {})).class_
'unknown'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from bitstep.contract.catalog import FLAG, MACHINE, ONE_KERNEL, THREADS, Row, look_up
from bitstep.investigate.doctor.calls import Ran
from bitstep.investigate.doctor.conditions import Circumstances, applies
from bitstep.investigate.doctor.finding import Finding, Severity
from bitstep.investigate.doctor.known import why_known

Class = Literal["varies", "may vary", "unknown", "under a setting", "deterministic"]
"""From the worst to the best."""
_WORST: Final = {class_: at for at, class_ in enumerate(get_args(Class))}
_OF_TORCH: Final = ("aten.", "prims.", "c10d.", "_c10d_functional.", "fsdp.", "quantized.")


@dataclass(frozen=True, slots=True)
class Setup:
    """What the program ran under."""

    here: Circumstances
    held: Mapping[str, str]
    """Each setting of the catalog that was held -> how: "set by the program"."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation with its class."""

    ran: Ran
    class_: Class
    rows: tuple[tuple[Row, Class], ...]
    """The rows of the catalog that are about it here, with what each makes of it."""
    known: str = ""
    """Why it is taken for deterministic though no row says so."""

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        rows = [
            {"varies": row.varies, "class": class_, "when": row.when, "only": list(row.only),
             "mechanism": row.mechanism, "setting": row.setting, "alternative": row.alternative,
             "evidence": row.evidence, "mark": row.mark}
            for row, class_ in self.rows
        ]  # fmt: skip
        ran = self.ran
        return {
            "op": ran.op, "class": self.class_, "calls": ran.count, "ranks": sorted(ran.ranks),
            "where": ran.where(), "rows": rows, "known": self.known,
        }  # fmt: skip


def classed(ran: Ran, setup: Setup) -> Operation:
    """The class of an operation: the worst that a row makes of it."""
    rows = look_up(ran.op, setup.here.device)
    if not rows:
        known = why_known(ran.op)
        return Operation(ran, "deterministic" if known else "unknown", (), known)
    found = [(row, _class_of(row, ran, setup)) for row in rows]
    worst = min((class_ for _, class_ in found), key=_WORST.__getitem__)
    about = tuple((row, class_) for row, class_ in found if class_ != "deterministic")
    return Operation(ran, worst, about)


def _class_of(row: Row, ran: Ran, setup: Setup) -> Class:
    if row.varies in ("never seen to", "shape"):
        return "deterministic"  # The shapes are what they are: the same the next time.
    here = setup.here
    if row.varies == "thread count":  # One thread is a number, too: with more it would differ.
        here = replace(here, threads=max(here.threads, 2))
    about = applies(row, ran.kinds, here)
    if about is False:
        return "deterministic"
    if row.varies == "instruction set" or row.setting in setup.held:
        return "under a setting"
    if row.varies == "run to run" and about:
        return "varies"
    return "may vary"


def held_settings(notes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Which settings every process held from its first step to the end, and how."""
    found: dict[str, str] = {}
    if not notes:
        return found
    steps = [note["flags"][moment] for note in notes for moment in ("first step", "end")]
    if all(flags["deterministic"] and not flags["warn only"] for flags in steps):
        found[FLAG] = "the flag is on, strictly, from the first step to the end"
    if all(_chose_threads(note) for note in notes):
        numbers = sorted({flags["threads"] for flags in steps})
        found[THREADS] = f"{', '.join(map(str, numbers))}, set by the program or its environment"
    if all(str(note["variables"].get("MKL_CBWR", "")) for note in notes):
        found[ONE_KERNEL] = f"MKL_CBWR={notes[0]['variables']['MKL_CBWR']}"
    found[MACHINE] = "the CPU is this one, and stands in the manifest"
    return found


def _chose_threads(note: Mapping[str, Any]) -> bool:
    return bool(note["chose threads"] or "OMP_NUM_THREADS" in note["variables"])


def operation_findings(operations: Sequence[Operation], setup: Setup) -> Iterator[Finding]:
    """The findings of operations: those that vary run to run by name, the others together."""
    for operation in operations:
        for row, class_ in operation.rows:
            if row.varies == "run to run":
                yield _alone(operation, row, class_, setup)
    yield from _together(operations, setup)
    yield from _unknown(operations)


def _alone(operation: Operation, row: Row, class_: Class, setup: Setup) -> Finding:
    held = setup.held.get(row.setting, "")
    may = "may have" if class_ == "may vary" else "has"
    what = f"{operation.ran.op} {may} other bits each time"
    if class_ == "under a setting":
        what = f"{operation.ran.op} repeats: {held}"
    why = ", ".join(filter(None, [row.mechanism, row.when, *_told(row, class_)]))
    fix = "" if class_ == "under a setting" else _fix(row)
    return Finding(
        severity=_severity(class_), what=what, where=operation.ran.where(), why=why, fix=fix,
        evidence=f"{row.mark}: {row.evidence}", count=operation.ran.count,
    )  # fmt: skip


def _told(row: Row, class_: Class) -> Iterator[str]:
    if row.only:
        verb = "if" if class_ == "may vary" else "with"
        yield f"{verb} {', '.join(row.only)}"


def _fix(row: Row) -> str:
    words = [f"set {row.setting}" if row.setting else ""]
    words += [f"or use {row.alternative}" if row.setting else f"use {row.alternative}"] * bool(
        row.alternative
    )
    refused = "torch.use_deterministic_algorithms(True) refuses it" if row.raises else ""
    return "; ".join(filter(None, [" ".join(filter(None, words)), refused]))


def _severity(class_: Class) -> Severity:
    return "note" if class_ == "deterministic" else class_


_SENTENCES: Final = {
    "thread count": ("depend on the number of threads", "sums are split by thread"),
    "alignment": ("depend on where tensors begin in memory", "kernels are chosen by alignment"),
    "instruction set": ("depend on the instruction set", "each has kernels of its own"),
}


def _together(operations: Sequence[Operation], setup: Setup) -> Iterator[Finding]:
    """One finding for all operations that vary in the same way and are in the same class."""
    groups: dict[tuple[str, Class, str], list[tuple[Operation, Row]]] = {}
    for operation in operations:
        for row, class_ in operation.rows:
            if row.varies in _SENTENCES:
                key = row.varies, class_, row.setting
                groups.setdefault(key, []).append((operation, row))
    for (varies, class_, setting), members in groups.items():
        words, why = _SENTENCES[varies]
        names = list(dict.fromkeys(one.ran.op for one, _ in members))
        held = setup.held.get(setting, "") if class_ == "under a setting" else ""
        row = members[0][1]
        threads = (
            f"; nothing sets it: {setup.here.threads} here" if varies == "thread count" else ""
        )
        yield Finding(
            severity=_severity(class_),
            what=f"{_many(names)} {_verb(words, names)}{f' ({held})' if held else threads}",
            where=_listed(names),
            why=why,
            fix="" if class_ == "under a setting" else _fix(row),
            evidence=f"{row.mark}: {row.evidence}",
            count=sum(one.ran.count for one, _ in members),
        )


def _unknown(operations: Sequence[Operation]) -> Iterator[Finding]:
    ran = [one.ran for one in operations if one.class_ == "unknown"]
    compiled = [one for one in ran if one.op.startswith("compiled.")]
    custom = [one for one in ran if not one.op.startswith(("compiled.", *_OF_TORCH))]
    untried = [one for one in ran if one.op.startswith(_OF_TORCH)]
    for one in custom:
        yield Finding(
            severity="unknown",
            what=f"{one.op} is a custom operation",
            where=one.where(),
            why="no catalog can know its kernel",
            fix="run it several times on the same inputs, under load, and compare the bits",
            count=one.count,
        )
    if compiled:
        yield Finding(
            severity="unknown",
            what=f"{len(compiled)} compiled region{'s' * (len(compiled) != 1)}",
            where=_listed(one.op.removeprefix("compiled.") for one in compiled),
            why="the kernels that the compiler made are not seen, only what goes in and comes out",
            fix="set TORCHINDUCTOR_DETERMINISTIC=1; to see operations, look once with "
            "TORCH_COMPILE_DISABLE=1",
            count=sum(one.count for one in compiled),
        )
    if untried:
        names = [one.op for one in untried]
        yield Finding(
            severity="unknown",
            what=f"{_many(names)} {'is' if len(names) == 1 else 'are'} not in the catalog",
            where=_listed(names),
            why="nobody has tried whether they repeat",
            fix="bitstep survey tries operations on this machine",
            count=sum(one.count for one in untried),
        )


def _many(names: Sequence[str]) -> str:
    return f"{len(names)} operation{'s' * (len(names) != 1)}"


def _verb(words: str, names: Sequence[str]) -> str:
    return words.replace("depend ", "depends ", 1) if len(names) == 1 else words


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
