"""docs/contract.md shows the rules as they are: its tables are compared with the data.

`python tests/contract/test_rules_document.py` prints the tables, to be put into the page.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import get_args

import pytest

from bitstep.contract.rule import Moment, Rule
from bitstep.contract.rules import RULES
from bitstep.contract.standing import WORDS

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
HEADS = ("| setting | accepted | where unset | mark |", "| setting | why | costs | evidence |")


def rules_table() -> list[str]:
    """What each rule accepts."""
    rows = [HEADS[0], "| --- | --- | --- | --- |"]
    for library, rules in groupby(RULES, key=lambda rule: rule.library):
        for rule in rules:
            words = ", ".join(f"`{word}`" for word in _words(rule))
            rows.append(f"| {library}: `{rule.name}` | {words} | {_fill(rule)} | {rule.mark} |")
    return rows


def reasons_table() -> list[str]:
    """Why, at what cost, and how it is known."""
    rows = [HEADS[1], "| --- | --- | --- | --- |"]
    return rows + [
        f"| `{rule.name}` | {rule.why} | {rule.cost} | {rule.evidence} |" for rule in RULES
    ]


def moments_table() -> list[str]:
    """What each moment reads."""
    rows = ["| moment | reads |", "| --- | --- |"]
    for moment in get_args(Moment):
        names = ", ".join(f"`{rule.name}`" for rule in RULES if moment in rule.read)
        rows.append(f"| {moment} | {names} |")
    return rows


def _words(rule: Rule) -> list[str]:
    return [WORDS.get(word, word) for word in rule.accepts if word]


def _fill(rule: Rule) -> str:
    if rule.takes_threads:
        return "pin; `--threads`"
    if rule.fill is None:
        return "stays unset" if set(rule.accepts) <= {"", "0"} else "pin"
    return f"`{rule.fill}`"


@pytest.mark.parametrize("table", [rules_table, reasons_table, moments_table])
def test_the_page_has_the_rules_as_they_are(table):
    assert "\n".join(table()) in PAGE.read_text()


def test_the_page_counts_about_right():
    assert 38 <= len(RULES) <= 44  # "some 40"


if __name__ == "__main__":
    for shown in (rules_table, moments_table, reasons_table):
        print("\n".join(shown()), end="\n\n")
