"""Hold this process to the rules, or refuse because it is too late; everything can be given back.

1. `deterministic` looks at every rule first. What was set to a value that is not accepted, and what
   can no more be set in time, is one ContractError that names all of it and the way out.
2. Then variables are set, torch is imported, and its settings are set. If anything fails on the
   way, all of it is given back.
3. `Enforced.undo` gives every variable and setting back, also at the end of a `with`.
4. `drift` says what the program has changed since. It is looked at again when a `with` and when
   the process ends.

The safe way is `bitstep run --deterministic -- COMMAND`: it sets the variables before Python
starts, and this file does the rest behind `import torch`.

    import bitstep

    bitstep.deterministic()             # the first line of a program
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bitstep.contract import switches
from bitstep.contract.rule import Rule, accepted, check_threads
from bitstep.contract.rules import RULES, SETTINGS, VARIABLES
from bitstep.contract.standing import Standing, forget, note, standings, wanted
from bitstep.errors import ContractError, printable

_held: list[Enforced] = []
"""What is enforced now, the oldest first."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A setting that has changed since it was enforced."""

    rule: Rule
    was: str
    now: str | None
    """None: a variable that is not set any more."""

    @property
    def line(self) -> str:
        """It, for a person."""
        now = "not set" if self.now is None else printable(self.now)
        return f"{self.rule.name} was {printable(self.was)} and is {now}"


class Enforced:
    """What is enforced: a handle, and a context manager that gives it back.

    `variables` must come before `import torch` and `settings` after it; `deterministic` calls both.
    """

    def __init__(self, threads: int | None = None) -> None:
        """Nothing is looked at or set yet. Raises UsageError for threads that cannot be."""
        check_threads(threads)
        self.threads = threads
        self.expected: dict[str, str] = {}
        """What each rule was held at, by name."""
        self._before: dict[str, str | None] = {}
        self._found_inductor = switches.read("torch._inductor.config.deterministic") is not None

    def variables(self) -> None:
        """Set the environment variables. Raises ContractError, and then nothing is set."""
        found = standings(VARIABLES, self.threads)
        refuse(found)
        for standing in found:
            self._hold(standing)
        note()
        self._keep()

    def settings(self) -> None:
        """Set torch's settings. Raises ContractError, and then all is given back."""
        try:
            found = standings(SETTINGS, self.threads)
            refuse(found)
            for standing in found:
                self._hold(standing)
        except BaseException:
            self.undo()
            raise
        self._keep()

    def _keep(self) -> None:
        if self not in _held:
            _held.append(self)

    def _hold(self, standing: Standing) -> None:
        rule, value = standing.rule, wanted(standing.rule, self.threads)
        if value is None:
            return
        if standing.verdict == "unset":
            _write(rule, value)
            self._before.setdefault(rule.name, standing.value)
            self.expected[rule.name] = value
        elif standing.verdict == "held" and standing.value is not None:
            self._before.setdefault(rule.name, standing.value)
            self.expected[rule.name] = standing.value
        elif standing.verdict == "does not apply":
            self.expected[rule.name] = value  # once it is imported

    def undo(self) -> tuple[Drift, ...]:
        """Give every variable and setting back, and say what had drifted. A second time: nothing.

        What a library read meanwhile it has read: a later start of another enforcement knows it.
        """
        if not self.expected:
            return ()
        drifted = self.drift()
        by_name = {rule.name: rule for rule in RULES}
        for name, value in reversed(self._before.items()):
            if _now(by_name[name]) != value:  # of the program's changes, too
                _write(by_name[name], value)
        self._before.clear()
        self.expected.clear()
        self._release_inductor()
        if self in _held:
            _held.remove(self)
        if not _held:
            forget()
        return drifted

    def _release_inductor(self) -> None:
        # It was imported meanwhile, and took its value from our variable.
        name = "torch._inductor.config.deterministic"
        if not self._found_inductor and switches.read(name) is not None:
            switches.write(name, str(os.environ.get("TORCHINDUCTOR_DETERMINISTIC") == "1"))

    def drift(self) -> tuple[Drift, ...]:
        """What is not any more as it was enforced."""
        found = ((rule, self.expected[rule.name]) for rule in RULES if rule.name in self.expected)
        return tuple(
            Drift(rule, was, now)
            for rule, was in found
            if _has_drifted(rule, was, now := _now(rule))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back. Raises ContractError where something had drifted, and no other error."""
        drifted = self.undo()
        if drifted and kind is None:
            raise ContractError(told(drifted))


def deterministic(threads: int | None = None) -> Enforced:
    """Hold this process to the rules; the first line of a program. Imports torch.

    Args:
        threads: threads per process for OpenMP, MKL and torch; by default what they have is kept,
            and a manifest records it.

    Raises ContractError, one line, where a value is not accepted or it is too late for one; then
    nothing has been changed.
    """
    enforced = Enforced(threads)
    # All of it before anything is set; settings of torch are looked at again once it is imported.
    refuse(standings(RULES, threads))
    enforced.variables()
    try:
        import torch  # noqa: F401
    except BaseException:
        enforced.undo()
        raise
    enforced.settings()
    atexit.register(_tell_at_exit, enforced)
    return enforced


def status() -> tuple[Standing, ...]:
    """How each rule stands in this process. Changes nothing, imports nothing."""
    return standings(RULES, _held[0].threads if _held else None)


def drift() -> tuple[Drift, ...]:
    """What differs now from what is enforced; empty where nothing is."""
    found = {drifted.rule.name: drifted for enforced in _held for drifted in enforced.drift()}
    return tuple(found.values())


def refuse(found: Iterable[Standing]) -> None:
    """Raise ContractError if a rule is broken or cannot be held any more; all of them in one."""
    problems = [standing for standing in found if standing.verdict in ("broken", "too late")]
    if not problems:
        return
    said = "; ".join(standing.said for standing in problems)
    way = ""
    if any(standing.verdict == "too late" for standing in problems):
        way = " (the safe way: bitstep run --deterministic -- COMMAND)"
    raise ContractError(f"not deterministic: {said}{way}")


def told(drifted: Sequence[Drift]) -> str:
    """Drift as one line."""
    changes = "; ".join(each.line for each in drifted)
    return f"not deterministic to the end: {changes}: let the program leave these as they are"


def _now(rule: Rule) -> str | None:
    return os.environ.get(rule.name) if rule.kind == "variable" else switches.read(rule.name)


def _has_drifted(rule: Rule, was: str, now: str | None) -> bool:
    if now is None:  # of a setting: its module is not imported
        return rule.kind == "variable"
    # From one accepted value to another is the program's choice, and the same one in every run.
    return now != was if rule.takes_threads else not accepted(rule, now)


def _write(rule: Rule, value: str | None) -> None:
    if rule.kind == "variable":
        if value is None:
            os.environ.pop(rule.name, None)
        else:
            os.environ[rule.name] = value
    elif value is not None:
        switches.write(rule.name, value)


def _tell_at_exit(enforced: Enforced) -> None:
    if drifted := enforced.drift():
        os.write(2, f"bitstep: {told(drifted)}\n".encode("utf-8", "replace"))
