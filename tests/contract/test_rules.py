"""The rules as data: each broken once and refused, each kept, and what is said about it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from rules_cases import BROKEN, EXAMPLES, kept, kept_environment

from bitstep.contract import switches
from bitstep.contract.enforce import Enforced, refuse
from bitstep.contract.megatron_rules import VARIABLES as MEGATRON
from bitstep.contract.rule import accepted
from bitstep.contract.rules import BY_NAME, RULES, SETTINGS, VARIABLES
from bitstep.contract.standing import standings
from bitstep.errors import ContractError

ROOT = Path(__file__).parents[2]
FREE = {"torch.get_num_threads"}
"""Any value is accepted until somebody asks for a number."""


def test_every_rule_has_a_value_that_breaks_it():
    assert list(BROKEN) == [rule.name for rule in RULES]
    assert len(BY_NAME) == len(RULES)


@pytest.mark.parametrize("rule", VARIABLES, ids=lambda rule: rule.name)
def test_a_variable_that_breaks_a_rule_is_refused_alone(rule):
    broken = {**kept_environment(), rule.name: BROKEN[rule.name]}
    found = [each for each in standings(VARIABLES, None, broken) if each.verdict == "broken"]
    assert [each.rule.name for each in found] == [rule.name]
    with pytest.raises(ContractError, match=re.escape(f"{rule.name}={BROKEN[rule.name]}")):
        refuse(found)


@pytest.fixture
def torch_settings():
    """The settings of torch in this process, given back; torch's own where the test begins."""
    import torch  # noqa: F401

    before = {rule.name: switches.read(rule.name) for rule in SETTINGS}
    for rule in SETTINGS:
        if not rule.takes_threads:
            switches.write(rule.name, (*rule.default, rule.fill)[0])
    yield
    for name, value in before.items():
        if value not in (None, switches.MIXED):
            switches.write(name, value)


@pytest.fixture
def inductor(monkeypatch):
    """A stand-in for a module that takes longer to import than torch."""
    import sys
    from types import SimpleNamespace

    if "torch._inductor.config" not in sys.modules:
        fake = SimpleNamespace(deterministic=False)
        monkeypatch.setitem(sys.modules, "torch._inductor.config", fake)


@pytest.mark.usefixtures("torch_settings", "inductor")
@pytest.mark.parametrize("rule", SETTINGS, ids=lambda rule: rule.name)
def test_a_setting_that_breaks_a_rule_is_refused_or_has_drifted(rule):
    if BROKEN[rule.name] not in rule.default and rule.name not in FREE:
        switches.write(rule.name, BROKEN[rule.name])
        with pytest.raises(ContractError, match=re.escape(rule.name)):
            Enforced().settings()
        switches.write(rule.name, kept(rule))
    with Enforced(threads=1) as enforced:
        enforced.settings()
        assert enforced.drift() == ()
        switches.write(rule.name, BROKEN[rule.name])
        names = [drifted.rule.name for drifted in enforced.drift()]
        assert rule.name in names
        # Others inherit the precision of all.
        assert rule.name == "torch.backends.fp32_precision" or names == [rule.name]
        enforced.undo()


@pytest.mark.usefixtures("torch_settings")
def test_the_debug_mode_that_warns_is_refused():
    import torch

    torch.set_deterministic_debug_mode("warn")
    with pytest.raises(ContractError, match="use_deterministic_algorithms is warn_only"):
        Enforced().settings()
    torch.set_deterministic_debug_mode("error")
    with Enforced() as enforced:
        enforced.settings()


@pytest.mark.usefixtures("torch_settings")
def test_a_precision_that_torch_itself_cannot_tell_is_refused():
    import torch

    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    with pytest.raises(ContractError, match="set_float32_matmul_precision is mixed"):
        Enforced().settings()
    torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.parametrize("rule", VARIABLES, ids=lambda rule: rule.name)
def test_every_accepted_value_is_accepted(rule):
    for pattern in rule.accepts:
        value = EXAMPLES.get(pattern, pattern.replace("*", "VNNI").replace("[1-9]", "4"))
        assert accepted(rule, value)
        found = standings(VARIABLES, None, {**kept_environment(), rule.name: value})
        assert {each.verdict for each in found} == {"held"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_what_it_is_in_one_line_each(rule):
    for text in (rule.why, rule.evidence):
        assert text
        assert text.isprintable()
    assert rule.cost.isprintable()
    assert rule.read
    assert (rule.kind == "variable") == rule.name.isupper()
    assert rule.fill is None or accepted(rule, rule.fill)
    assert not any(accepted(rule, value) for value in rule.default)
    if rule.evidence.startswith("tests/"):
        assert (ROOT / rule.evidence).is_file()
    assert (rule.mark == "measured") == rule.evidence.startswith("tests/")


def test_what_one_word_of_a_list_breaks_the_list_breaks():
    rule = BY_NAME["NCCL_ALGO"]
    assert accepted(rule, "Ring, CollnetChain")
    assert not accepted(rule, "Ring,Tree")
    assert not accepted(rule, "")
    assert not accepted(rule, "allreduce:tree")


@pytest.mark.parametrize(
    ("name", "last", "beyond"),
    [
        ("PYTHONHASHSEED", "4294967295", "4294967296"),
        ("OMP_NUM_THREADS", "65536", "65537"),
        ("MKL_NUM_THREADS", "1", "0"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", "9" * 5000),
    ],
)
def test_a_number_that_its_library_would_ignore_is_refused(name, last, beyond):
    assert accepted(BY_NAME[name], last)
    assert not accepted(BY_NAME[name], beyond)


def test_a_cache_of_triton_must_have_a_place():
    assert standings(VARIABLES, None, {"TRITON_CACHE_AUTOTUNING": "0"})
    with pytest.raises(ContractError, match="AUTOTUNING=1 needs TRITON_CACHE_DIR"):
        refuse(standings(VARIABLES, None, {"TRITON_CACHE_AUTOTUNING": "1"}))


def test_other_threads_than_those_asked_for_are_refused():
    with pytest.raises(ContractError, match="OMP_NUM_THREADS=4, but 2 threads were asked for"):
        refuse(standings(VARIABLES, 2, {"OMP_NUM_THREADS": "4"}))
    refuse(standings(VARIABLES, 4, {"OMP_NUM_THREADS": "4"}))


def test_all_that_is_wrong_is_one_line():
    with pytest.raises(ContractError) as caught:
        refuse(standings(VARIABLES, None, {"NCCL_ALGO": "Tree\n", "OMP_DYNAMIC": "TRUE"}))
    assert str(caught.value) == (
        "not deterministic: OMP_DYNAMIC=TRUE is refused: set it to FALSE or false, or unset it; "
        "NCCL_ALGO=Tree\\n is refused: set it to Ring, CollnetDirect, CollnetChain or ^NVLS, or "
        "unset it"
    )


def test_looking_changes_nothing():
    before = dict(os.environ)
    standings(RULES)
    assert dict(os.environ) == before


def test_what_two_tables_say_about_a_variable_is_the_same():
    for rule in MEGATRON:
        if rule.what in ("NCCL_ALGO", "CUBLAS_WORKSPACE_CONFIG"):
            ours = BY_NAME[rule.what]
            assert (rule.accepts, rule.why, rule.listed) == (ours.accepts, ours.why, ours.listed)
