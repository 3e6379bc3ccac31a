"""Which streams matter: perturb each alone at the end of step 1, and look at the bits of step 2.

1. One process is forked at the end of step 1, once per stream; two children change nothing and
   must agree, and parameters are always among the streams, which must be seen to matter.
2. Where there is no fork (several processes, CUDA) each stream takes a run of its own.

>>> effects_of(runs, base, ["moments/exp_avg"])  # doctest: +SKIP
{'moments/exp_avg': True}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bitstep.investigate.doctor.runs import Process, Runs, attempts
from bitstep.launch.examined import Examined

MOST_FORKS: Final = 40
MOST_RUNS: Final = 4
"""Streams that are perturbed in runs of their own."""
CONTROL: Final = "parameters"


def effects_of(runs: Runs, base: Examined, streams: Sequence[str]) -> dict[str, bool | None]:
    """Stream to whether step 2 has other bits; None where it could not be told."""
    if not streams:
        return {}
    ranks = attempts(base)[0]
    first = ranks[min(ranks)]
    if first["world"] > 1:
        return _in_runs(runs, base, streams, first["updates"])
    asked = [CONTROL, *(s for s in streams if s != CONTROL)][:MOST_FORKS]
    forked = runs.forked(asked, first["updates"])
    found = _in_forks(forked.forks)
    return {stream: found.get(stream) for stream in streams}


def _in_forks(forks: Sequence[Mapping[str, Any]]) -> dict[str, bool | None]:
    bits = {}
    controls = []
    for child in forks:
        if child["perturbed"]:
            bits[child["perturbed"]] = child
        else:
            controls.append(_second_step(child))
    if len(controls) != 2 or controls[0] is None or controls[0] != controls[1]:
        return {}
    if CONTROL not in bits or _second_step(bits[CONTROL]) == controls[0]:
        return {}  # what must change bits did not: this cannot tell
    return {stream: _effect(child, controls[0]) for stream, child in bits.items()}


def _effect(child: Mapping[str, Any], control: Any) -> bool | None:
    if not child.get("changed"):
        return None
    # A child that did not get through step 2 could not go on without this stream as it was.
    return bool(_second_step(child) != control)


def _in_runs(
    runs: Runs, base: Examined, streams: Sequence[str], updates: int
) -> dict[str, bool | None]:
    control = _of_all(base)
    effects: dict[str, bool | None] = {}
    for number, stream in enumerate(_by_weight(streams)[:MOST_RUNS]):
        run = runs.perturbed(number, stream, updates)
        ranks = attempts(run)[:1]
        changed = any(p.get("changed") for r in ranks for p in r.values())
        effects[stream] = _of_all(run) != control if changed and _of_all(run) else None
    return effects


def _by_weight(streams: Sequence[str]) -> list[str]:
    """Those first of which nothing is known without a run."""
    last = ("parameters", "gradients", "moments", "tensor/", "random/python", "random/numpy")
    return sorted(streams, key=lambda stream: stream.startswith(last))


def _of_all(run: Examined) -> dict[int, Any]:
    return {rank: _second_step(p) for ranks in attempts(run)[:1] for rank, p in ranks.items()}


def _second_step(process: Process) -> Any:
    found = [bits for bits in process["steps"] if bits["step"] == 2]
    return found[-1] if found else None
