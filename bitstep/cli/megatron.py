"""`bitstep megatron check`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from bitstep.cli.habits import habits, show
from bitstep.cli.output import table

if TYPE_CHECKING:
    from bitstep.contract.megatron import Finding

LINES: Final = 24
"""Of a screen."""


@click.group(no_args_is_help=False)
def megatron() -> None:
    """Look at a launch of Megatron before it starts. Needs neither torch nor Megatron.

    Example: bitstep megatron check -- torchrun pretrain_gpt.py --deterministic-mode
    """


@megatron.command("check", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@habits
def check_verb(command: tuple[str, ...], as_json: bool) -> int:
    """Check COMMAND and the environment against what Megatron needs for equal bits.

    broken: its deterministic mode refuses it. forgotten: it lets it pass. late: the process must
    start with it, and it is not there. unchecked: may be so, but must be alike in all runs. Exit
    status 0 no rule is broken, 1 one is, 2 COMMAND has no argument of Megatron. Nothing is started.

    Example: bitstep megatron check -- torchrun pretrain_gpt.py --deterministic-mode
    """
    from bitstep.contract.megatron import check_launch, is_broken

    findings = check_launch(command, os.environ)
    show([_plain(finding) for finding in findings], _lines(findings), as_json)
    return int(is_broken(findings))


def _plain(finding: Finding) -> dict[str, object]:
    rule = finding.rule
    return {
        "kind": finding.kind,
        "what": rule.what,
        "value": finding.value,
        "accepts": rule.accepts,
        "why": rule.why,
        "fix": finding.fix,
        "read": rule.read,
        "checked_by": rule.checked_by,
        "cost": rule.cost,
        "evidence": rule.evidence,
    }


def _lines(findings: Sequence[Finding]) -> list[str]:
    broken = [finding for finding in findings if finding.kind != "unchecked"]
    left = ", ".join(finding.subject for finding in findings if finding.kind == "unchecked")
    last = [["unchecked", "alike in all runs?", left]] if left else []
    said = [[f.kind, f.subject, f"{f.rule.why}; {f.fix}"] for f in broken]
    lines = table(["kind", "found", "why, and what to do"], said + last)
    if len(lines) > LINES:
        told = [[f.kind, f.subject, f.fix] for f in broken]
        lines = table(["kind", "found", "what to do (--json says why)"], told + last)
    return lines if broken else ["no rule is broken", *lines[1:]]
