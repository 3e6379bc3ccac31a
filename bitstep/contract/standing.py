"""How each rule stands in this process: held, unset, broken, or too late to be held.

1. A value that a rule does not accept is broken, and so is another number of threads than the one
   that was asked for.
2. A variable is too late when a moment is over that reads it, and what was read then is not what
   should be in force. What was read is the value at the start of the process, or the one that we
   saw before that moment (`note`).
3. A setting of torch is too late when it would have to be changed after such a moment, whoever
   chose its value: what ran before has read it. One that was changed and is right again is held:
   nothing tells what it was.

Looks only: nothing is set, and nothing is imported.

>>> found = standings(VARIABLES, None, {"NCCL_ALGO": "Tree"})
>>> [standing.said for standing in found if standing.verdict == "broken"]
['NCCL_ALGO=Tree is refused: set it to Ring, CollnetDirect, CollnetChain or ^NVLS, or unset it']
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bitstep.contract import switches
from bitstep.contract.moments import at_start, passed
from bitstep.contract.rule import NUMBER, Rule, accepted
from bitstep.contract.rules import VARIABLES
from bitstep.errors import printable

Verdict = Literal["held", "broken", "unset", "too late", "does not apply"]

_seen: dict[str, str | None] = {}
"""Variables as they were when the moment that reads them was still to come."""
WORDS: Final = {NUMBER: "a number", "?*": "a value", "1*": "1"}
"""Patterns of accepted values, as a person reads them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How one rule stands in this process."""

    rule: Rule
    value: str | None
    """The value now; None: not set, or its module is not imported."""
    verdict: Verdict
    """unset: nobody chose, and it can still be set; where the rule pins, the manifest holds it."""
    said: str
    """What is wrong and what to do, in one line; empty where nothing is."""


def standings(
    rules: Iterable[Rule], threads: int | None = None, variables: Mapping[str, str] | None = None
) -> tuple[Standing, ...]:
    """One for each rule, in order.

    Args:
        rules: which ones.
        threads: how many were asked for.
        variables: the environment of a process that is still to be started; by default that of
            this one.
    """
    return tuple(_standing(rule, threads, variables) for rule in rules)


def note() -> None:
    """Remember the variables whose moment is still to come: they are read as they are now."""
    for rule in VARIABLES:
        if not _reader(rule):
            _seen[rule.name] = os.environ.get(rule.name)


def forget() -> None:
    """The variables change again: what was not read until now will be read as it is then."""
    for rule in VARIABLES:
        if not _reader(rule):
            _seen.pop(rule.name, None)


def wanted(rule: Rule, threads: int | None) -> str | None:
    """What a variable or setting gets where nobody chose; None: it stays as it is."""
    value = rule.value(threads)
    if rule.kind == "variable" and value is not None and _reader(rule):
        # It was in force before, was given back, and is in force again.
        return _read(rule) or value
    return value


def _standing(rule: Rule, threads: int | None, variables: Mapping[str, str] | None) -> Standing:
    if rule.kind == "torch":
        return _of_setting(rule, threads)
    return _of_variable(rule, threads, variables)


def _of_variable(rule: Rule, threads: int | None, variables: Mapping[str, str] | None) -> Standing:
    environment = os.environ if variables is None else variables
    value = environment.get(rule.name)
    if said := _wrong(rule, value, threads, environment):
        return Standing(rule, value, "broken", said)
    if variables is None and (reader := _reader(rule)):
        if said := _late(rule, value, threads, reader):
            return Standing(rule, value, "too late", said)
        if value is None and rule.value(threads) is not None:
            return Standing(rule, value, "unset", "")
    return Standing(rule, value, "unset" if value is None else "held", "")


def _wrong(
    rule: Rule, value: str | None, threads: int | None, environment: Mapping[str, str]
) -> str:
    name, _, with_value = rule.needed_with.partition("=")
    if value is None:
        is_needed = bool(name) and environment.get(name) == with_value
        return f"{rule.needed_with} needs {rule.name}: set it, or unset {name}" if is_needed else ""
    shown = f"{rule.name}={printable(value)}"
    if not accepted(rule, value):
        return f"{shown} is refused: set it to {spoken(rule)}, or unset it"
    if rule.takes_threads and threads is not None and value != str(threads):
        return f"{shown}, but {threads} threads were asked for: unset it, or ask for {value}"
    return ""


def _late(rule: Rule, value: str | None, threads: int | None, reader: str) -> str:
    in_force, fill = _read(rule), rule.value(threads)
    if value is not None and value != in_force:
        was = "not set" if in_force is None else f"{rule.name}={printable(in_force)}"
        return f"{rule.name}={printable(value)} came too late: {reader}, and it was {was}"
    if fill is not None and not _suits(rule, in_force, threads):
        return f"{rule.name} is not set, and {reader}: start with {rule.name}={fill}"
    if fill is None and value is None and in_force is not None:
        return f"{rule.name} was unset too late: {reader}, and it was {printable(in_force)}"
    return ""


def _suits(rule: Rule, value: str | None, threads: int | None) -> bool:
    if rule.takes_threads and threads is not None:
        return value == str(threads)
    return value is not None and accepted(rule, value)


def _of_setting(rule: Rule, threads: int | None) -> Standing:
    value, fill = switches.read(rule.name), rule.value(threads)
    if value is None:
        return Standing(rule, None, "does not apply", "")
    if fill in (None, value) if rule.takes_threads else accepted(rule, value):
        return Standing(rule, value, "held", "")
    if reader := _reader(rule):
        said = f"{rule.name} is {value}, and {reader}: {_set_to(rule)} before"
        return Standing(rule, value, "too late", said)
    if rule.takes_threads or value in rule.default:
        return Standing(rule, value, "unset", "")
    return Standing(rule, value, "broken", f"{rule.name} is {value}: {_set_to(rule)}")


def _reader(rule: Rule) -> str:
    """Why it is too late to set it: the first moment that is over and reads it."""
    return next(filter(None, map(passed, rule.read)), "")


def _read(rule: Rule) -> str | None:
    """What the moment read that is over."""
    if rule.read == ("interpreter start",) and sys.flags.ignore_environment:
        return None  # python -E and -I read no variable
    if rule.name in _seen:
        return _seen[rule.name]
    return at_start().get(rule.name)


def spoken(rule: Rule) -> str:
    """What it accepts, for a person.

    >>> next(spoken(rule) for rule in VARIABLES if rule.name == "CUBLAS_WORKSPACE_CONFIG")
    ':4096:8 or :16:8'
    """
    words = [WORDS.get(word, word) for word in rule.accepts if word]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _set_to(rule: Rule) -> str:
    return f"leave it at {spoken(rule)}"
