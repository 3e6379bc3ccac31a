"""Check a launch of Megatron against the rules, before Megatron or torch is imported.

1. `check_launch` reads a command line and an environment; `check_config` a live configuration.
2. `too_late` says which rules cannot be followed any more in a process that has begun.
3. `findings_for_manifest` is all of it as lines, and raises nothing: a recorder only takes notes.

That nothing is found does not make a launch deterministic: it breaks no rule that we know.

>>> environment = {"NCCL_ALGO": "Tree", "CUBLAS_WORKSPACE_CONFIG": ":16:8", "PYTHONHASHSEED": "0"}
>>> words = "torchrun pretrain_gpt.py --deterministic-mode --transformer-impl local".split()
>>> [(finding.kind, finding.subject) for finding in check_launch(words, environment)]
[('broken', 'NCCL_ALGO=Tree'), ('unchecked', 'NCCL_TOPO_FILE (not set)')]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Final

from bitstep.contract.megatron_rules import (
    ARGUMENTS,
    DEFAULTS,
    FIELDS,
    RULES,
    TELLING,
    VARIABLES,
    Kind,
    Rule,
)
from bitstep.errors import UsageError, printable

_ORDER: Final[tuple[Kind, ...]] = ("broken", "forgotten", "late", "unchecked")
_OFF: Final = ("", "0", "none", "off")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
_NEEDED: Final = {need.partition("=")[0] for rule in RULES for need in rule.needs}
_NAMES: Final = {rule.what for rule in ARGUMENTS} | _NEEDED - {rule.what for rule in VARIABLES}
"""Arguments that a rule is about, or depends on."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is not followed, or a value that nobody checks."""

    kind: Kind
    """broken, forgotten, late (not there when the process starts) or unchecked."""
    rule: Rule
    value: str | None
    """What was found; None: a variable that is not set."""
    fix: str
    """What to do, one line."""

    @property
    def subject(self) -> str:
        """The argument or variable with its value, as a person would type it."""
        name, value = self.rule.what, printable(self.value or "")
        if not name.startswith("--"):
            return f"{name} (not set)" if self.value is None else f"{name}={value}"
        return {"on": name, "off": f"{name} (not given)"}.get(value, f"{name} {value}")

    @property
    def line(self) -> str:
        """All of it that a person needs, in one line."""
        return f"{self.kind}: {self.subject}: {self.rule.why}; {self.fix} ({self.rule.evidence})"


def is_broken(findings: Iterable[Finding]) -> bool:
    """Whether a rule is broken, and not only something left to compare."""
    return any(finding.kind != "unchecked" for finding in findings)


def check_launch(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Finding, ...]:
    """What a command line, started in this environment, breaks; the worst first.

    The command may begin with `env NAME=VALUE`, torchrun, its options and a script. Arguments
    that no rule names are ignored. Raises UsageError where none is Megatron's: it cannot be told.
    """
    given = _given(arguments)
    if not given.keys() & {_attribute(name) for name in (*_NAMES, *TELLING)}:
        raise UsageError("no argument of Megatron found: give the launch line, script and all")
    # The YAML path puts the file in the place of all other arguments.
    is_yaml = _value("--yaml-cfg", given) != "off"
    rules = [rule for rule in ARGUMENTS if rule.what == "--yaml-cfg" or not is_yaml]
    variables = _variables({**environment, **_assigned(arguments)})
    return _findings((*rules, *VARIABLES), {**given, **variables})


def check_config(
    config: object, environment: Mapping[str, str] | None = None
) -> tuple[Finding, ...]:
    """The same rules on a TransformerConfig or parsed arguments, by attribute.

    Left out are rules whose attribute it does not have, and without an environment those about
    variables.
    """
    attributes = [attribute for name in _NAMES for attribute in _attributes(name)]
    found = {name: text for name in attributes if (text := _text(config, name)) is not None}
    rules = [rule for rule in ARGUMENTS if found.keys() & _attributes(rule.what)]
    facts = {name: text for name, text in found.items() if text}
    if environment is None:
        return _findings(rules, facts)
    return _findings((*rules, *VARIABLES), {**facts, **_variables(environment)})


def too_late(modules: Collection[str], cuda_initialized: bool) -> tuple[Finding, ...]:
    """Rules that can no more be put right in this process: what is set now does not reach it.

    `modules` are the names of the imported ones. That a model, a communicator or a handle was
    made, which read some settings, is taken from CUDA being in use. The value of a finding is why
    it is too late.
    """
    return tuple(
        Finding("late", rule, since, f"{rule.fix}, and start again")
        for rule in RULES
        if rule.kind != "unchecked" and (since := _past(rule, modules, cuda_initialized))
    )


def findings_for_manifest(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    config: object | None = None,
    modules: Collection[str] = (),
    cuda_initialized: bool = False,
) -> list[str]:
    """The findings as lines, for the manifest of a run; none where nothing is Megatron's.

    `config` is looked at in the place of the arguments, where there is one. A finding that this
    process can no more put right says so. Raises nothing.
    """
    if config is not None:
        found = check_config(config, environment)
    else:
        try:
            found = check_launch(arguments, environment)
        except UsageError:
            return []
    late = {finding.rule.what: finding for finding in too_late(modules, cuda_initialized)}
    return [_dated(finding, late.get(finding.rule.what)).line for finding in found]


def _dated(finding: Finding, late: Finding | None) -> Finding:
    return finding if late is None else replace(finding, fix=f"{late.fix}: {late.value}")


def _findings(rules: Iterable[Rule], facts: Mapping[str, str]) -> tuple[Finding, ...]:
    found = (_finding(rule, facts) for rule in rules)
    # Sorting is stable: within a kind they stay in the order of the rules.
    return tuple(sorted(filter(None, found), key=lambda finding: _ORDER.index(finding.kind)))


def _finding(rule: Rule, facts: Mapping[str, str]) -> Finding | None:
    if rule.needs and not any(_holds(need, facts) for need in rule.needs):
        return None
    value = _value(rule.what, facts)
    if value is None:
        return Finding(rule.unset, rule, None, rule.fix) if rule.unset else None
    return None if _is_accepted(rule, value) else Finding(rule.kind, rule, value, rule.fix)


def _is_accepted(rule: Rule, value: str) -> bool:
    words = [value]
    if rule.listed:
        words = [word.strip() for word in value.split(",") if word.strip()] or [""]
    return all(any(fnmatchcase(word, pattern) for pattern in rule.accepts) for word in words)


def _holds(need: str, facts: Mapping[str, str]) -> bool:
    name, equals, wanted = need.partition("=")
    value = _value(name, facts) or ""
    return value == wanted if equals else value.lower() not in _OFF


def _value(name: str, facts: Mapping[str, str]) -> str | None:
    """The value in force of an argument, or of a variable that is set."""
    if not name.startswith("--"):
        return facts.get(name)
    given = (facts[attribute] for attribute in _attributes(name) if attribute in facts)
    return next(given, DEFAULTS.get(name, "off"))


def _attribute(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _attributes(name: str) -> dict[str, None]:
    """Where a value of this argument may stand, the first to be looked at first."""
    return dict.fromkeys((*FIELDS.get(name, ()), _attribute(name)))


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    names = (rule.what for rule in VARIABLES)
    return {name: environment[name] for name in names if name in environment}


def _given(words: Sequence[str]) -> dict[str, str]:
    """Every word that begins with --, as an attribute; as in argparse the last one holds."""
    given: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            argument, equals, value = word.partition("=")
            name = _attribute(argument)
            given[name] = value if equals else "on"
            for prefix in ("no_", "disable_"):
                if name.startswith(prefix):
                    given[name.removeprefix(prefix)] = "off"
        elif name:
            given[name] = word if given[name] == "on" else f"{given[name]} {word}"
    return given


def _assigned(words: Sequence[str]) -> dict[str, str]:
    """Variables that the beginning of a command sets: `env NCCL_ALGO=Ring`, and `python -O`."""
    start = list(takewhile(lambda word: not word.startswith("--") and word[-3:] != ".py", words))
    assigned = dict(word.split("=", 1) for word in start if _ASSIGNMENT.fullmatch(word))
    # torchrun starts its workers without it.
    if {"-O", "-OO"} & set(start) and not any("torch.distributed" in word for word in start):
        assigned["PYTHONOPTIMIZE"] = "1"
    return assigned


def _text(config: object, attribute: str) -> str | None:
    """The value of an attribute as it is typed; "" for None, and None where there is none."""
    try:
        value = getattr(config, attribute)
        if isinstance(value, bool):
            return "on" if value else "off"
        return "" if value is None else value.name if isinstance(value, Enum) else str(value)
    except Exception:  # whatever a property or its value raises: it has none then
        return None


def _past(rule: Rule, modules: Collection[str], cuda_initialized: bool) -> str:
    """What has happened that reads this rule's setting, or nothing."""
    if rule.read == "interpreter start":
        return "Python has started"
    if rule.read == "import":
        return f"{rule.module} is imported" if rule.module in modules else ""
    return "CUDA is in use" if cuda_initialized and rule.read != "validation" else ""
