"""This machine and environment -> findings: what a program that starts here would find.

1. A fresh process looks (`look`), with the Python that runs this.
2. A rule that is broken can change bits; an environment variable that nobody set is left to each
   machine; a flag of torch is the program's to set, and only noted.
3. Threads, allocator, memory fill, versions with known problems, and whether the survey that the
   catalog rests on was made on such a CPU.

>>> examine_machine().outcome  # doctest: +SKIP
<Outcome.SAME: 0>
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bitstep.contract.survey_file import shipped
from bitstep.errors import RunError
from bitstep.investigate.doctor.diagnosis import Diagnosis
from bitstep.investigate.doctor.finding import Finding, Severity, ranked
from bitstep.launch.parent import interpreter

TIMEOUT: Final = 120.0
"""Seconds for the fresh process: importing torch on a loaded machine takes its time."""
_OF_CPU: Final = ("Python", "PyTorch", "OpenMP", "MKL", "oneDNN", "OpenBLAS", "Inductor")
Machine = Mapping[str, Any]
Rule = Mapping[str, Any]
"""As `observe.standings` has it."""


class Known(NamedTuple):
    """A version with a known problem."""

    package: str
    below: str
    """The first version without it; "" if there is none."""
    what: str
    fix: str
    evidence: str


KNOWN: Final = (
    Known("torchdata", "", "StatefulDataLoader with workers restores indices, and no random state",
          "draw each sample's numbers from (seed, epoch, index)", "measured with 0.11"),
    Known("flash-attn", "2.4.1", "no deterministic backward", "flash-attn 2.4.1 or later",
          "source only: Transformer Engine's filter"),
    Known("causal-conv1d", "1.6.0", "backward adds with atomics", "causal-conv1d 1.6.0 or later",
          "source only: Megatron's check"),
    Known("transformer-engine", "",
          "fused router losses and grouped bias gradients add with atomics",
          "leave moe_router_fusion and grouped bias off", "public report: M#6967, TE#3407"),
)  # fmt: skip


def examine_machine() -> Diagnosis:
    """This machine and environment. Raises RunError if no fresh process can tell."""
    machine = look_at_machine()
    findings = ranked(machine_findings(machine))
    rules = tuple(machine.pop("rules"))
    return Diagnosis((), findings, machine=machine, rules=rules)


def look_at_machine() -> dict[str, Any]:
    """What a fresh process finds. Raises RunError if it cannot be started or says nothing."""
    words = [*interpreter(), "-m", "bitstep.investigate.doctor.look"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=TIMEOUT, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"a fresh {words[0]} ended with {error.returncode}: {last}") from None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise RunError(f"a fresh {words[0]} did not tell what it found: {error}") from None
    return found


def machine_findings(machine: Machine) -> Iterator[Finding]:
    """All findings about a machine."""
    torch = machine["torch"]
    if "problem" in torch:
        yield Finding(
            severity="unknown", what="PyTorch cannot be imported", where=machine["executable"],
            why=torch["problem"], fix="pip install 'bitstep[torch]'", evidence="a fresh process",
        )  # fmt: skip
    else:
        yield from _threads(machine)
        yield from _memory(machine)
        yield from _survey(torch)
    yield from broken_rules(machine["rules"])
    has_gpu = bool(torch.get("gpus"))
    yield from unset_rules(machine["rules"], "variable", "may vary", has_gpu)
    yield from unset_rules(machine["rules"], "torch", "note", has_gpu)
    yield from _versions(machine["versions"])


def broken_rules(rules: Sequence[Rule]) -> Iterator[Finding]:
    """Rules that are broken, or that were set too late to be read."""
    for rule in rules:
        if rule["verdict"] in ("broken", "too late") and not _is_unset(rule):
            yield Finding(
                severity="may vary", what=f"{rule['name']}: {rule['said']}", why=rule["why"],
                fix=f"set it to {rule['fill']}" if rule["fill"] else "unset it",
                evidence=f"{rule['mark']}: {rule['evidence']}",
            )  # fmt: skip


def unset_rules(
    rules: Sequence[Rule], kind: str, severity: Severity, has_gpu: bool
) -> Iterator[Finding]:
    """One finding for all rules of a kind, "variable" or "torch", that nobody set.

    Not for those that are pinned and not chosen: the manifest holds them. Nor for libraries that
    only a GPU uses where there is none.
    """
    unset = [
        rule["name"]
        for rule in rules
        if rule["kind"] == kind
        and rule["fill"] is not None
        and _is_unset(rule)
        and (has_gpu or rule["library"] in _OF_CPU)
    ]
    if unset:
        variables = kind == "variable"
        threads = " --threads N" * any(name.endswith("_NUM_THREADS") for name in unset)
        when = "before Python starts" if variables else "right behind import torch"
        what = "environment variables" if variables else "settings of PyTorch"
        yield Finding(
            severity=severity,
            what=f"{what} that decide bits are not set: {len(unset)}",
            where=", ".join(unset),
            why="each machine and version then decides for itself"
            if variables
            else "a program sets them itself, before its model is made",
            fix=f"bitstep run --deterministic{threads} -- COMMAND sets them {when}",
            evidence="docs/contract.md: each rule with its evidence",
        )


def _is_unset(rule: Rule) -> bool:
    """A variable that nobody set is also too late once it was read: that is no other finding."""
    is_late = rule["verdict"] == "too late" and (rule["value"] is None or rule["kind"] == "torch")
    return rule["verdict"] == "unset" or is_late


def _threads(machine: Machine) -> Iterator[Finding]:
    threads, cores = machine["torch"]["threads"], machine["usable cores"]
    if threads > cores:
        yield Finding(
            severity="note", what=f"{threads} threads on {cores} usable cores",
            why="OpenMP may use fewer than asked for, by load, unless OMP_DYNAMIC=FALSE; sums are "
            "split by thread", fix=f"OMP_NUM_THREADS={cores} OMP_DYNAMIC=FALSE MKL_DYNAMIC=FALSE",
            evidence="measured: full sums, layer_norm backward and others move with it",
        )  # fmt: skip
    if machine["usable cores"] != machine["cores"]:
        yield Finding(
            severity="note", what=f"{cores} of {machine['cores']} cores may be used here",
            why="where nobody sets it, the number of threads follows from that",
            fix="set OMP_NUM_THREADS", evidence="the affinity of a fresh process",
        )  # fmt: skip


def _memory(machine: Machine) -> Iterator[Finding]:
    if machine["allocator"]:
        yield Finding(
            severity="note", what=f"memory comes from {', '.join(machine['allocator'])}",
            why="where tensors begin decides kernels of MKL (4 of 81 cases of mv and dot)",
            fix="use the same allocator in all runs, or MKL_CBWR=AVX2", evidence="LD_PRELOAD",
        )  # fmt: skip
    if machine["torch"]["fill"]:
        yield Finding(
            severity="note", what="in deterministic mode PyTorch fills the memory of torch.empty",
            why="it costs time, hides reads of memory that nobody wrote, and fails for 4-bit "
            "floats", fix="torch.utils.deterministic.fill_uninitialized_memory = False; bitstep "
            "records such reads instead", evidence="measured; public report M#6253: most of a "
            "15% cost",
        )  # fmt: skip


def _survey(torch: Mapping[str, Any]) -> Iterator[Finding]:
    known = surveyed()
    if torch["capability"] not in known:
        yield Finding(
            severity="note",
            what=f"no survey was made on a CPU with {torch['capability']}",
            where=", ".join(sorted(known)) or "no survey is shipped",
            why="the catalog's rows for CPUs were measured with other kernels",
            fix="bitstep survey measures them here", evidence="the shipped surveys",
        )  # fmt: skip


def surveyed() -> frozenset[str]:
    """The CPU capabilities of the shipped surveys."""
    return frozenset({shipped().machine.get("capability", "")})


def _versions(versions: Mapping[str, str]) -> Iterator[Finding]:
    for known in KNOWN:
        found = versions.get(known.package)
        if found is not None and (not known.below or _numbers(found) < _numbers(known.below)):
            yield Finding(
                severity="note", what=f"{known.package} {found}: {known.what}",
                why="it matters to programs that use it", fix=known.fix, evidence=known.evidence,
            )  # fmt: skip


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
