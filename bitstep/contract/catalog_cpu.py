"""Rows of the CPU: what the shipped survey shows, in words, with a mechanism for each.

1. Races are told one by one. What depends on the number of threads, on how many rows are computed
   together or on the instruction set is told by mechanism; the survey says in which types.
2. Of an operation that ran in a case that varied with nothing, and has no row, the row is "never
   seen to".
3. Alignment: the CPU of the shipped survey shows none; other kernels of MKL do, in a test. Another
   test shows least squares, which no case of the survey solves.

A row without any case in the survey fails a test, as does a case that varies and has no row.

>>> [row.varies for row in CPU if row.op == "aten.sum"]
['thread count', 'instruction set']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from bitstep.contract.catalog_row import FLAG, MACHINE, ONE_KERNEL, THREADS, Mechanism, Row, Varies
from bitstep.contract.survey import Axis, Measured
from bitstep.contract.survey_file import shipped

SURVEY: Final = "the shipped survey"
AXES: Final[Mapping[Varies, Axis]] = {
    "run to run": "off",
    "thread count": "threads",
    "alignment": "alignment",
    "shape": "rows",
    "instruction set": "environments",
}
_CASES: Final = shipped().cases


def _row(op: str, varies: Varies, mechanism: Mechanism, like: str = "*", **more: Any) -> Row:
    """A row with the cases of the operation, of a name like this, that vary so."""
    twins = (op, op.removesuffix("_"), f"{op}_")
    cases = tuple(
        name
        for name, measured in _CASES.items()
        if measured.op in twins and measured.varies(AXES[varies]) and fnmatchcase(name, like)
    )
    given = {"when": f"seen: {', '.join(cases)}", "evidence": SURVEY, "cases": cases} | more
    return Row(op=op, device="cpu", varies=varies, mechanism=mechanism, mark="measured", **given)


_TIMES: Final = ("duplicate indices", "more than one thread")
_ADDED: Final = ("accumulate", "floating point", *_TIMES)
_RACES: Final = (
    _row(
        "aten.index_put_", "run to run", "atomics", "*accumulate*", only=_ADDED, setting=FLAG,
        when="of float32, which threads add to in the order they come; other types repeated",
    ),
    _row(
        "aten.index_put", "run to run", "atomics", "*backward*", only=_ADDED, setting=FLAG,
        when="of float32: the gradient of x[i]",
    ),
    _row(
        "aten.index_put_", "run to run", "race", "index_put_ duplicates*", only=_TIMES,
        setting=FLAG, when="with accumulate=False: the write that comes last stays",
        alternative="indices that are there once",
    ),
    _row(
        "aten.put_", "run to run", "atomics", "*accumulate*", only=_ADDED, setting=FLAG,
        when="of float32, which threads add to in the order they come; other types repeated",
    ),
    _row(
        "aten.put_", "run to run", "race", "put_ duplicates*", only=_TIMES, raises=True,
        when="with accumulate=False: the write that comes last stays",
        alternative="index_put_ under the flag",
    ),
    _row(
        "aten.index_copy_", "run to run", "race", only=_TIMES, setting=FLAG,
        when="the write that comes last stays", alternative="indices that are there once",
    ),
)  # fmt: skip

_SPLIT: Final = (
    "_softmax_backward_data", "addmm", "binary_cross_entropy_with_logits", "convolution_backward",
    "dot", "mean", "mm", "mse_loss", "mv", "native_layer_norm_backward", "sum",
)  # fmt: skip
_TAILS: Final = (
    "_foreach_add_", "add_", "elu", "gelu", "mish", "pow", "rsqrt", "sigmoid", "sigmoid_backward",
    "silu", "silu_backward", "softplus",
)  # fmt: skip
_THREADS: Final = (
    *(
        _row(f"aten.{op}", "thread count", "split reduction", setting=THREADS,
             only=("more than one thread",))
        for op in _SPLIT
    ),
    *(
        _row(f"aten.{op}", "thread count", "vector tail", setting=THREADS,
             only=("more than one thread", "not whole vectors"))
        for op in _TAILS
    ),
)  # fmt: skip

_WHOLE: Final = "the same number of rows in all runs"
_CHOSEN: Final = ("addmm", "convolution", "mm", "mv")
_CUT: Final = ("add_", "elu", "gelu", "mish", "pow", "rsqrt", "sigmoid", "silu", "softplus")
_SHAPES: Final = (
    *(_row(f"aten.{op}", "shape", "kernel choice", alternative=_WHOLE) for op in _CHOSEN),
    *(
        _row(f"aten.{op}", "shape", "vector tail", only=("not whole vectors",), alternative=_WHOLE)
        for op in _CUT
    ),
)

_OTHERS: Final = "with those it takes on a CPU that is not Intel's; with AVX2 or AVX-512 not"
_ATTENTION: Final = f"of float32 with MKL's SSE4.2 kernels, and {_OTHERS}"
_ALIGNMENT: Final = tuple(
    Row(
        op=f"aten.{op}", device="cpu", varies="alignment", only=("not aligned",),
        mechanism="kernel choice", setting=ONE_KERNEL, when=when,
        evidence="tests/investigate/test_survey_alignment.py", mark="measured",
    )
    for op, when in (
        ("mv", f"of float32 with MKL's SSE4.2 kernels, of float32 and float64 {_OTHERS}"),
        ("dot", f"of float32 and float64, with MKL's kernels: {_OTHERS}"),
        ("mm", f"by one column, as mv: of float32 with SSE4.2, of float32 and float64 {_OTHERS}"),
        ("_scaled_dot_product_flash_attention_for_cpu", _ATTENTION),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", _ATTENTION),
    )
)  # fmt: skip

_LEAST_SQUARES: Final = Row(
    op="aten.linalg_lstsq", device="cpu", varies="run to run", mechanism="uninitialized memory",
    alternative="driver='gelsd', or 'gels' for matrices of full rank",
    when="with the default driver 'gelsy', at one thread too: its order of columns is memory that "
    "nobody wrote. The deterministic flag fills that, and ranks are then wrong",
    evidence="tests/investigate/test_survey_lstsq.py", mark="measured",
)  # fmt: skip


def _instruction_sets() -> Iterator[Row]:
    for op in sorted({m.op for m in _CASES.values() if m.varies("environments")}):
        yield _row(op, "instruction set", "kernel per instruction set", setting=MACHINE)


_REFUSED: Final = tuple(
    Row(
        op=op, device="cpu", varies="never seen to", mechanism="", raises=True,
        when="the flag refuses it all the same: where windows overlap, writes would race",
        evidence=SURVEY, mark="measured",
        cases=tuple(name for name, measured in _CASES.items() if measured.op == op),
    )
    for op in ("aten.max_unpool2d", "aten.max_unpool3d")
)  # fmt: skip


def steady(known: Iterable[Row]) -> Iterator[Row]:
    """A row for each operation that ran in a case that varied with nothing, and is not known."""
    taken = {twin for row in known for twin in (row.op, row.op.removesuffix("_"), f"{row.op}_")}
    found: dict[str, list[str]] = {}
    for name, measured in _CASES.items():
        for op in measured.ops if is_steady(measured) else ():
            if op not in taken:
                found.setdefault(op, []).append(name)
    for op, names in sorted(found.items()):
        yield Row(
            op=op, device="cpu", varies="never seen to", mechanism="", evidence=SURVEY,
            mark="measured", cases=tuple(names[:3]),
        )  # fmt: skip


def is_steady(measured: Measured) -> bool:
    """Whether a case could be run, was not refused, and varied with nothing."""
    return not (measured.failed or measured.raises or any(map(measured.varies, AXES.values())))


_VARYING: Final = (
    *_RACES, _LEAST_SQUARES, *_THREADS, *_ALIGNMENT, *_SHAPES, *_instruction_sets(), *_REFUSED,
)  # fmt: skip
CPU: Final[tuple[Row, ...]] = (*_VARYING, *steady(_VARYING))
