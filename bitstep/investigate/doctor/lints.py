"""What a program does that undoes determinism though every single setting looks right.

1. Each lint takes the notes of one process (`observe.preflight`) and gives at most one finding.
2. Of several ranks with the same finding one is told, with how many there are.

>>> [found.what for found in lint_findings([note])]  # doctest: +SKIP
['determinism is set to warn only']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from bitstep.investigate.doctor.finding import Finding

Note = Mapping[str, Any]
Lint = Callable[[Note], Finding | None]


def lint_findings(notes: Sequence[Note], dtypes: frozenset[str] = frozenset()) -> Iterator[Finding]:
    """The findings of all lints, over all processes.

    Args:
        notes: of each process that trained.
        dtypes: that occur in the recording.
    """
    for lint in LINTS:
        found = [one for one in map(lint, notes) if one is not None]
        if found:
            yield found[0]
    if any(dtype.startswith("float4") for dtype in dtypes):
        yield from _fill_of_fp4(notes)


def _flag(note: Note, moment: str, name: str) -> Any:
    return note["flags"].get(moment, note["flags"]["first step"])[name]


def _warn_only(note: Note) -> Finding | None:
    if not (_flag(note, "end", "deterministic") and _flag(note, "end", "warn only")):
        return None
    return Finding(
        severity="may vary",
        what="determinism is set to warn only",
        why="operations without a deterministic kernel run as they are, and attention keeps its "
        "nondeterministic backward",
        fix="torch.use_deterministic_algorithms(True), without warn_only",
        evidence="source only: attention_backward.cu only warns; pytorch#182551",
    )


def _late_flag(note: Note) -> Finding | None:
    """The flag was off when the model was made, or when the first step began."""
    moments = [moment for moment in ("first parameter", "first step", "end")
               if moment in note["flags"]]  # fmt: skip
    states = [bool(_flag(note, moment, "deterministic")) for moment in moments]
    if all(states) or not any(states):
        return None
    before = moments[states.index(False)]
    if not states[-1]:
        return Finding(
            severity="may vary",
            what="determinism was switched off while the program ran",
            why="operations after that have no deterministic kernels",
            fix="leave torch.use_deterministic_algorithms(True) on to the end",
            evidence="observed in this program",
        )
    late = before != "first parameter"
    return Finding(
        severity="may vary" if late or note["construction"] else "note",
        what=f"determinism was switched on late: it was off at the {before}",
        why="modules of Transformer Engine and Megatron read it when they are made"
        if not late
        else "operations of the first step ran without it",
        fix="set it in the first line, or use bitstep run --deterministic",
        evidence="observed in this program; public report AReaL#1544",
    )


def _late_variables(note: Note) -> Finding | None:
    names = note["late variables"]
    if not names:
        return None
    return Finding(
        severity="may vary",
        what=f"set after torch was imported: {', '.join(names)}",
        why="most of these are read once, when torch or a library is loaded: they may do nothing",
        fix="export them before the program starts, or use bitstep run --deterministic",
        evidence="observed in this program",
    )


def _debug_mode(note: Note) -> Finding | None:
    is_on = _flag(note, "end", "deterministic") and note["compiled"]
    if not is_on or _flag(note, "end", "inductor deterministic") is not False:
        return None
    return Finding(
        severity="may vary",
        what="Inductor is not deterministic though PyTorch is",
        why="set_deterministic_debug_mode leaves it out; use_deterministic_algorithms does not",
        fix="torch.use_deterministic_algorithms(True), or TORCHINDUCTOR_DETERMINISTIC=1",
        evidence="measured; pytorch#165950",
    )


def _mode_over_compile(note: Note) -> Finding | None:
    if not (note["modes"] and note["compiled"]):
        return None
    return Finding(
        severity="may vary",
        what=f"a dispatch mode lies over compiled regions: {', '.join(note['modes'])}",
        why="regions run uncompiled under it, and stay so after it: their bits are others",
        fix="let its ignore_compile_internals() return True, or take it away from training",
        evidence="measured; pytorch#115653, pytorch#161648",
    )


def _late_hooks(note: Note) -> Finding | None:
    if not note["late hooks"]:
        return None
    return Finding(
        severity="note",
        what=f"hooks were added after a compile, on {', '.join(note['late hooks'])}",
        why="on modules inside of a compiled region they are never called, without a word",
        fix="add hooks before the first compiled call",
        evidence="measured; torch._dynamo.config.skip_nnmodule_hook_guards",
    )


def _hooks_of_zero_bubble(note: Note) -> Finding | None:
    if not (note["full backward hooks"] and note["zero bubble"]):
        return None
    return Finding(
        severity="may vary",
        what=f"full backward hooks under {', '.join(note['zero bubble'])}",
        where=", ".join(note["full backward hooks"]),
        why="they wrap outputs in views: the schedule, which takes backward apart, breaks",
        fix="use hooks of tensors (Tensor.register_hook) instead",
        evidence="measured",
    )


def _graphs(note: Note) -> Finding | None:
    if not note["graph replays"]:
        return None
    return Finding(
        severity="outside of view",
        what=f"{note['graph replays']} replays of CUDA graphs",
        why="no Python hook and no dispatch mode runs in a replay: nothing of it is recorded",
        fix="look at it once without graphs",
        evidence="source only",
        count=note["graph replays"],
    )


def _threads(note: Note) -> Finding | None:
    if not note["threads"]:
        return None
    names = note["threads"]
    return Finding(
        severity="note",
        what=f"{len(names)} other Python thread{'s' * (len(names) != 1)}: {', '.join(names[:4])}",
        why="what they do on tensors is not recorded, and its order is nobody's",
        fix="",
        evidence="observed in this program",
    )


def _outside(note: Note) -> Finding | None:
    if not note["outside"]:
        return None
    return Finding(
        severity="unknown",
        what=f"kernels of {', '.join(note['outside'])}",
        why="they may be launched past the dispatcher, where no recorder sees them",
        fix="read what docs/catalog.md says of it, and set its own switch for determinism",
        evidence="the packages are imported by this program",
    )


def _triton(note: Note) -> Finding | None:
    if not note["triton"]:
        return None
    return Finding(
        severity="unknown",
        what=f"kernels written for Triton: {', '.join(note['triton'])}",
        why="a launch is no operation: what it writes shows at the next operation that reads it, "
        "and an autotuner may choose another kernel each time",
        fix="wrap it in torch.library.triton_op, fix its configuration, and compare its bits",
        evidence="public report: M#6966, triton#9368",
    )


def _alignment(note: Note) -> Finding | None:
    if not note["unaligned"]:
        return None
    return Finding(
        severity="note",
        what="parameters that begin inside of another tensor's memory, or of a file",
        where=", ".join(note["unaligned"]),
        why="matrix kernels of MKL are chosen by alignment, which is another in a copy",
        fix="MKL_CBWR=AVX2, or clone them",
        evidence="measured: 4 of 81 cases of mv and dot",
    )


def _fill_of_fp4(notes: Sequence[Note]) -> Iterator[Finding]:
    if any(_flag(n, "end", "deterministic") and _flag(n, "end", "fill") for n in notes):
        yield Finding(
            severity="note",
            what="4-bit floats with memory fill on",
            why="torch.empty of float4_e2m1fn_x2 raises while memory is filled",
            fix="torch.utils.deterministic.fill_uninitialized_memory = False",
            evidence="measured",
        )


LINTS: Final[tuple[Lint, ...]] = (
    _warn_only, _late_flag, _late_variables, _debug_mode, _mode_over_compile, _late_hooks,
    _hooks_of_zero_bubble, _graphs, _threads, _outside, _triton, _alignment,
)  # fmt: skip
