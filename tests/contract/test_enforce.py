"""Entering and leaving deterministic mode: all of it or nothing, and everything is given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bitstep.contract.enforce import Enforced, drift, status
from bitstep.contract.rules import RULES, VARIABLES
from bitstep.errors import UsageError

ROOT = Path(__file__).parents[2]
UNDO = Path(__file__).with_name("enforce_undo.py")
IN_TIME = {"PYTHONHASHSEED": "0", "OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}


def python(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    names = {rule.name for rule in VARIABLES}
    base = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, *words],
        env={**base, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> dict[str, list[str]]:
    # Inductor sets this one itself when it is imported.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor"))}
    done = python(str(UNDO), **IN_TIME, **cache)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    ["with", "handle", "twice", "error", "outer holds", "nested", "refused", "after drift",
     "at last"],
)  # fmt: skip
def test_nothing_stays_behind(left, how):
    assert left[how] == []


@pytest.mark.long
def test_what_was_given_back_had_been_changed(left):
    assert left["inside"] == ["environment", "mode", "fill", "precision", "cudnn", "reductions"]


@pytest.mark.long
def test_a_module_that_was_imported_meanwhile_is_given_back_too(left):
    assert (left["inductor inside"], left["inductor after"]) == (["True"], ["False"])


@pytest.mark.long
def test_a_refusal_and_drift_are_one_line_each(left):
    assert left["said"] == [
        "not deterministic: torch.backends.cudnn.benchmark is True: leave it at False"
    ]
    assert left["drift"] == [
        "not deterministic to the end: OMP_DYNAMIC was FALSE and is not set; NCCL_ALGO was "
        "CollnetChain and is Tree; torch.backends.cudnn.benchmark was False and is True: let the "
        "program leave these as they are"
    ]


FIRST_LINE = """
import bitstep
bitstep.deterministic(threads=1)

import os
import torch
print(torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.environ["NCCL_ALGO"])
print([each.rule.name for each in bitstep.contract.enforce.status() if each.verdict == "broken"])
torch.backends.cudnn.deterministic = False
torch.backends.cudnn.allow_tf32 = True
torch.set_num_threads(2)
"""


def test_drift_is_told_when_the_process_ends():
    done = python("-c", FIRST_LINE, PYTHONHASHSEED="5")
    assert done.stdout == "1 1 Ring\n[]\n"
    assert done.stderr == (
        "bitstep: not deterministic to the end: torch.get_num_threads was 1 and is 2; "
        "torch.backends.cudnn.deterministic was True and is False; "
        "torch.backends.cudnn.allow_tf32 was False and is True: let the program leave these as "
        "they are\n"
    )
    assert done.returncode == 0


LIGHT = """
import sys
import bitstep.contract.enforce, bitstep.contract.inside
print(sorted({"torch", "numpy", "bitstep.trace"} & set(sys.modules)))
"""


def test_looking_at_the_rules_loads_no_library_that_reads_them():
    assert python("-c", LIGHT).stdout == "[]\n"


def test_a_variable_that_was_set_before_torch_is_in_time():
    # Neither at the start of the process nor by us: the program did, and then asked.
    early = (
        "import os; os.environ['MKL_CBWR'] = 'AVX2'; import bitstep; bitstep.deterministic(); "
        "print([s.verdict for s in bitstep.contract.enforce.status() if s.rule.name == 'MKL_CBWR'])"
    )
    assert python("-c", early, PYTHONHASHSEED="0").stdout == "['held']\n"


AGAIN = """
import os
import bitstep
with bitstep.deterministic(threads=1):
    pass
print("OMP_NUM_THREADS" in os.environ, "MKL_DYNAMIC" in os.environ)
with bitstep.deterministic(threads=1):
    print(os.environ["OMP_NUM_THREADS"], os.environ["MKL_DYNAMIC"])
bitstep.deterministic(threads=2)
"""


def test_what_a_library_has_read_in_time_is_in_force_a_second_time_too():
    done = python("-c", AGAIN, PYTHONHASHSEED="0")
    assert done.stdout == "False False\n1 FALSE\n"
    # But not with another value than the one that was read.
    assert "OMP_NUM_THREADS is not set, and torch is imported" in done.stderr


def test_threads_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="0 threads: ask for 1 to 65536"):
        Enforced(threads=0)


def test_every_rule_has_its_standing():
    assert [standing.rule for standing in status()] == list(RULES)


def test_nothing_has_drifted_where_nothing_is_enforced():
    assert drift() == ()
