"""How much the bits of operations vary on this machine: `bitstep survey`.

1. A fresh process, with none of the variables that choose kernels, measures every case along every
   axis (`measure`): repeats, threads, alignment, rows.
2. One more for each of `ENVIRONMENTS` computes every case once: other instruction sets, and another
   process with nothing changed.
3. Where a process dies, the case at which it died is noted, and another goes on with the rest.
4. Two controls are among the cases: one that always varies must be seen to, one that never does
   must not. Otherwise nothing is reported.

    report = survey("cpu")
    Path("mine.json").write_text(report.text())
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bitstep.contract.survey import Measured, Report, partition
from bitstep.errors import RunError
from bitstep.launch.module import run_module

ANOTHER: Final = "another process"
ENVIRONMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu": (
        ANOTHER,
        "ATEN_CPU_CAPABILITY=avx2",
        "ATEN_CPU_CAPABILITY=default",
        "ONEDNN_MAX_CPU_ISA=AVX2",
        "MKL_CBWR=AVX2",
        "MKL_CBWR=AVX2,STRICT",
        "MKL_CBWR=COMPATIBLE",
    ),
    "cuda": (ANOTHER, "CUBLAS_WORKSPACE_CONFIG=:16:8", "NVIDIA_TF32_OVERRIDE=1"),
}
CLEARED: Final = (
    "ATEN_CPU_CAPABILITY", "DNNL_", "GOMP_", "KMP_", "MKL_", "NVIDIA_TF32_OVERRIDE", "OMP_",
    "ONEDNN_", "TORCH_ALLOW_TF32",
)  # fmt: skip
"""Beginnings of the variables that a survey takes away: they choose kernels and threads."""
TIMEOUT: Final = 3600.0
"""Seconds of one process, on a machine that does much else."""


def survey(
    device: str = "cpu", ops: str = "*", said: Callable[[str], None] = lambda words: None
) -> Report:
    """Measure this machine. `ops` is a pattern of cases or operations; `said` gets progress.

    Raises UsageError for a pattern that fits nothing, RunError if a process cannot measure.
    """
    from bitstep.investigate.survey.cases import chosen, identity
    from bitstep.investigate.survey.measure import ROWS, THREADS

    names = chosen(ops)
    with tempfile.TemporaryDirectory(prefix="bitstep-survey-") as folder:
        said(f"measuring {len(names)} cases")
        about, found = _measured(Path(folder), device, names, "", True)
        others = []
        for setting in ENVIRONMENTS[device]:
            said(f"computing them again: {setting}")
            others.append(_measured(Path(folder), device, names, setting, False)[1])
    cases = {
        name: replace(found[name], environments=_letters(name, found, others)) for name in names
    }
    return Report(
        device=device,
        machine=about[0],
        versions=about[1],
        inputs=identity(),
        threads=THREADS if device == "cpu" else THREADS[:1],
        rows=ROWS,
        environments=ENVIRONMENTS[device],
        cases=without_controls(cases),
    )


def without_controls(cases: Mapping[str, Measured]) -> dict[str, Measured]:
    """The others, once the controls are as they must be. Raises RunError where they are not."""
    from bitstep.investigate.survey.training import STABLE, VARIES

    rest = dict(cases)
    varies, stable = rest.pop(VARIES.name), rest.pop(STABLE.name)
    if not varies.varies("off") or stable.varies("off") or set(stable.environments) != {"a"}:
        raise RunError("the survey does not see its own controls: nothing of it can be trusted")
    return rest


def _letters(name: str, found: Mapping[str, Measured], others: Sequence[Any]) -> str:
    if found[name].failed:
        return ""
    bits = [found[name].bits, *(other[name].bits for other in others)]
    letters = partition(bits)
    return "".join("!" if not b else letter for b, letter in zip(bits, letters, strict=True))


def _measured(
    folder: Path, device: str, names: Sequence[str], setting: str, whole: bool
) -> tuple[list[dict[str, str]], dict[str, Measured]]:
    """What a process says of the machine, and of each case. It is started again where it dies."""
    output, log = folder / "lines.jsonl", folder / "log"
    about: list[dict[str, str]] = []
    found: dict[str, Measured] = {}
    while missing := [name for name in names if name not in found]:
        output.unlink(missing_ok=True)
        order = {"device": device, "whole": whole, "cases": missing, "output": str(output)}
        status = run_module(
            "bitstep.investigate.survey.worker", [json.dumps(order)], _environment(setting), log,
            TIMEOUT,
        )  # fmt: skip
        lines = _whole_lines(output)
        if not lines:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RunError(f"the survey cannot measure here: {' '.join(last) or status}")
        about = json.loads(lines[0])
        found |= {name: _parsed(value) for name, value in map(json.loads, lines[1:])}
        died_at = next((name for name in missing if name not in found), "")
        if status and died_at:
            found[died_at] = Measured(op="", failed=f"the process ended with {status}")
    return about, found


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    # The last one may have been cut where the process died.
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _parsed(value: Mapping[str, Any]) -> Measured:
    counts = {axis: tuple(map(tuple, value[axis])) for axis in ("off", "on")}
    parts = {axis: tuple(names) for axis, names in value["parts"].items()}
    return Measured(**{**value, **counts, "ops": tuple(value["ops"]), "parts": parts})


def _environment(setting: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(CLEARED)}
    kept["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    name, equals, value = setting.partition("=")
    if equals:
        kept[name] = value
    return kept
