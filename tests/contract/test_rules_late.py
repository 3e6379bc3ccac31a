"""Every rule set too late and refused, in real processes; and in time, where nothing is refused.

Imports, the process group and the compiled graph are real; of CUDA this machine has none, and the
question whether it is in use is answered for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rules_cases import BROKEN, kept, kept_environment

from bitstep.contract.rules import RULES, SETTINGS, VARIABLES

PROGRAM = Path(__file__).with_name("rules_late.py")
MODULES = ("transformer_engine", "mamba_ssm", "causal_conv1d", "triton")
TOUCHED = [rule.name for rule in SETTINGS if not rule.default and not rule.takes_threads]
"""Right where nobody touched them: late is whoever did."""


def run(folder: Path, environment: dict[str, str], **words: object) -> dict:
    for name in MODULES:
        (folder / f"{name}.py").write_text("")
    names = {rule.name for rule in VARIABLES}
    base = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**base, "PYTHONPATH": str(PROGRAM.parents[2]), **environment},
        input=json.dumps({"folder": str(folder), "variables": {}, "settings": {}, **words}),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def late(tmp_path_factory) -> dict:
    """Everything is set when every moment is over."""
    folder = tmp_path_factory.mktemp("late")
    broken = {name: BROKEN[name] for name in TOUCHED}
    threads = {"OMP_NUM_THREADS": "2"}
    variables = {**kept_environment(), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return run(folder, threads, variables=variables, settings=broken, threads=1)


@pytest.fixture(scope="module")
def unset(tmp_path_factory) -> dict:
    """Nothing is set at all, and every moment is over."""
    return run(tmp_path_factory.mktemp("unset"), {}, threads=1)


@pytest.fixture(scope="module")
def early(tmp_path_factory) -> dict:
    """Everything was set before Python started, or is right before anything reads it."""
    settings = {rule.name: kept(rule) for rule in SETTINGS if not rule.takes_threads}
    return run(tmp_path_factory.mktemp("early"), kept_environment(), settings=settings, threads=1)


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_that_is_kept_too_late_is_refused(late, rule):
    verdict, said = late["said"][rule.name]
    assert verdict == "too late"
    assert said in late["error"]
    assert rule.name in said
    assert late["error"].endswith("(the safe way: bitstep run --deterministic -- COMMAND)")


@pytest.mark.long
@pytest.mark.parametrize("rule", VARIABLES, ids=lambda rule: rule.name)
def test_a_variable_that_nobody_set_is_refused_once_it_was_read(unset, rule):
    verdict, said = unset["said"][rule.name]
    if rule.value(threads=1) is None:
        assert verdict == "unset"
    else:
        assert verdict == "too late"
        assert said in unset["error"]
        assert said.endswith(f"start with {rule.name}={rule.value(threads=1)}")


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_that_was_kept_in_time_is_held(early, rule):
    assert early["error"] == ""
    assert early["said"][rule.name] == ["held", ""]


@pytest.mark.long
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one thread")
def test_what_was_set_late_was_indeed_not_read(late):
    assert late["threads"] == [2, 2]  # and not 1


PLAIN = """
import sys
import bitstep
try:
    bitstep.deterministic()
except bitstep.BitstepError as error:
    print(error)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("words", [[], ["-E"]])
def test_the_seed_of_hashes_is_too_late_in_every_program_that_was_started_without(words):
    names = {rule.name for rule in VARIABLES}
    base = {name: value for name, value in os.environ.items() if name not in names}
    # -E reads no variable: the one that is set does not count.
    seed = {"PYTHONHASHSEED": "0"} if words else {}
    done = subprocess.run(
        [sys.executable, *words, "-c", PLAIN],
        env={**base, **seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    first = "PYTHONHASHSEED=0 came too late" if words else "PYTHONHASHSEED is not set"
    assert done.stdout.startswith(f"not deterministic: {first}")
    assert done.stdout.endswith("-- COMMAND)\nFalse\n"), done.stderr
