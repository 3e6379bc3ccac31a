"""Faults from public bug reports: each script recorded as it is, `--run a` and `--run b`, and the
verdict that leads to the cause.

`tests/cases` holds the scripts; `tests/cases/others` the same faults in other programs, with other
models. What is expected is what the first lines of each script say.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "cases"
BITSTEP = Path(sys.executable).parent / "bitstep"

EXPECTED = {
    # Script: the kind, and words that a person needs to get to the cause.
    "bit_flip_on_one_rank": ("", "step 8, rank 1", "aten.bitwise_xor_"),
    "eval_loader_shifts_rng": ("random", "step 7", "eval_loader_shifts_rng.py:39", "once more"),
    "iterator_created_after_rng_restore": ("random", "step 7", "once more", "_BaseDataLoaderIter"),
    "loader_position_of_rank0_for_all": ("data", "step 6, rank 1", "placed"),
    "moe_expert_bias_not_in_state_dict": ("initial state", "step 20", "MoE.expert_bias"),
    "optimizer_state_follows_set_order": ("initial state", "step 8", "on other parameters"),
    "recompute_draws_new_dropout": ("recompute", "step 1", "new random numbers"),
    "rounded_log_hides_fused_optimizer": ("configuration", "step 1", "fused not set -> 1"),
    "sum_in_arrival_order": ("order", "added in another order", "aten.add_"),
    "thread_count": ("origin", "settings.threads.mkl: 1 in A, 2 in B", "step 1"),
    "others/replicas": ("unseen write", "step 5, rank 0", "Sequential.0.bias"),
    "others/validating": ("random", "step 4", "validating.py:26", "once more"),
    "others/going_on": ("random", "step 5", "once more", "_BaseDataLoaderIter"),
    "others/reading_on": ("data", "step 5, rank 1", "placed"),
    "others/balancing": ("initial state", "step 5", "Softened.temperature"),
    "others/by_name": ("initial state", "step 4", "on other parameters"),
    "others/saving_memory": ("recompute", "step 1", "new random numbers"),
    "others/other_kernel": ("configuration", "step 1", "fused of Adam group0"),
    "others/as_they_come": ("order", "added in another order", "aten.add_"),
    "others/cores": ("origin", "settings.threads.mkl: 1 in A, 2 in B", "step 1"),
}


def record(case, run, folder):
    words = [BITSTEP, "record", "-o", folder / run, "--", sys.executable, CASES / f"{case}.py"]
    subprocess.run([*words, "--run", run], cwd=folder, check=True, capture_output=True)


def test_every_script_is_expected_to_show_something():
    scripts = {path.relative_to(CASES).with_suffix("").as_posix() for path in CASES.rglob("*.py")}
    assert scripts == set(EXPECTED)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", EXPECTED)
def test_the_verdict_leads_to_the_cause(case, tmp_path):
    for run in ("a", "b"):
        record(case, run, tmp_path)
    words = [BITSTEP, "diff", "a", "b"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert len(ended.stdout.splitlines()) <= 24
    kind, *clues = EXPECTED[case]
    missing = [clue for clue in (f"different: {kind}", *clues) if clue not in ended.stdout]
    assert not missing, ended.stdout
