"""Our own engine: what its checkpoints would miss is what the controls of `prove` say.

1. `recipe_of` reads recipe and changes from the words of a `bitstep pretrain`.
2. The proof runs on one process: each control restores all but one stream of
   `state/streams`, and must be caught by another that differs.

>>> recipe_of(["bitstep", "pretrain", "nano", "--set", "run.seed=7"])
Pretrained(recipe='nano', changes=('run.seed=7',))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bitstep.investigate.certificate import NOT_TRIED, Certificate
from bitstep.investigate.doctor.finding import Finding, Severity
from bitstep.investigate.prove import prove

_VERB: Final = "pretrain"
_WITH_VALUE: Final = ("-o", "--output", "--processes", "--sums", "--set", "--steps", "--fault")
"""Options of it that take the word behind them."""


class Pretrained(NamedTuple):
    """What a command trains with our engine."""

    recipe: str
    changes: tuple[str, ...]


def recipe_of(command: Sequence[str]) -> Pretrained | None:
    """The recipe of a `bitstep pretrain` or `python -m bitstep pretrain`; None for others."""
    names = [Path(word).name for word in command]
    if _VERB not in names:
        return None
    at = names.index(_VERB)
    if names[at - 1 : at] != ["bitstep"]:
        return None
    words = list(command[at + 1 :])
    changes = [words[n + 1] for n, word in enumerate(words[:-1]) if word == "--set"]
    changes += [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
    after = zip(["", *words], words, strict=False)
    recipe = next((w for before, w in after if w[:1] != "-" and before not in _WITH_VALUE), "")
    return Pretrained(recipe, tuple(changes)) if recipe else None


def examine_engine(pretrained: Pretrained, folder: Path) -> tuple[Finding, ...]:
    """Findings of a proof of the recipe. Raises what `prove` raises."""
    certificate = prove(
        pretrained.recipe,
        processes=(1,),
        folder=folder,
        changes=pretrained.changes,
    )
    return tuple(findings_of(certificate, folder))


def findings_of(certificate: Certificate, folder: Path) -> Iterator[Finding]:
    """What a certificate says, as findings."""
    severities: dict[str, Severity] = {"refuted": "differs", "unverified": "unknown"}
    for found in certificate.guarantees:
        if found.outcome in severities:
            yield Finding(
                severity=severities[found.outcome],
                what=f"{found.name} is {found.outcome}",
                where=", ".join(found.arms),
                why=found.detail,
                fix="see the logs of these arms",
                evidence=f"measured: {certificate.steps} steps, certificate in {folder}",
            )
    for found in certificate.controls:
        if found.outcome == "missed":
            yield Finding(
                severity="unknown",
                what=f"nothing shows what a checkpoint {found.name} would change",
                where=", ".join(found.arms),
                why=found.detail,
                fix="take more steps: bitstep prove RECIPE",
                evidence=f"measured: {certificate.steps} steps, certificate in {folder}",
            )
    caught = [f"{f.name} ({f.outcome})" for f in certificate.controls if f.outcome != "missed"]
    tried = [f.name for f in certificate.guarantees if f.outcome not in (NOT_TRIED, "unverified")]
    yield Finding(
        severity="note",
        what=f"every stream of the engine was left out of a restore: {len(caught)} controls",
        where=str(folder),
        why=f"{len(certificate.arms)} runs of {certificate.steps} steps, on one process",
        fix="",
        evidence=f"{'; '.join(caught)}; tried: {', '.join(tried)}",
    )
