"""`bitstep run --deterministic -- COMMAND`, with real programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bitstep.contract.inside import DRIFTED, HELD, REFUSED, VARIABLE, Asked, asked
from bitstep.contract.rules import VARIABLES
from bitstep.errors import ContractError, UsageError
from bitstep.launch.deterministic import Told, deterministic_children, environment

ROOT = Path(__file__).parents[2]
NAMES = {rule.name for rule in VARIABLES}
UNVERIFIED = (
    "bitstep: unverified: no process imported torch under the rules: none did, or it was started "
    "with -I, -E or -S, or with another PYTHONPATH\n"
)
HEAD = "import os, sys, torch\nfrom pathlib import Path\n"


def bitstep(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if name not in NAMES}
    return subprocess.run(
        [sys.executable, "-m", "bitstep", *words],
        env={**base, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=250,
    )


def program(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(HEAD + text)
    return str(folder / "train.py")


def run(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return bitstep("run", "--deterministic", *words, "--", sys.executable, script, **variables)


def test_a_program_is_held_to_the_rules_and_its_status_is_passed_on(tmp_path):
    script = program(
        tmp_path,
        "print(os.environ['PYTHONHASHSEED'], os.environ['NCCL_ALGO'], torch.get_num_threads(),\n"
        "      torch.get_deterministic_debug_mode(), torch.backends.cudnn.allow_tf32)\n"
        "import bitstep; bitstep.deterministic()\n"
        "sys.exit(3)\n",
    )
    done = run(script, "--threads", "1")
    assert (done.stdout, done.stderr, done.returncode) == ("0 Ring 1 2 False\n", "", 3)


def test_the_users_own_sitecustomize_runs_and_so_does_the_program_without_words_of_ours(tmp_path):
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "sitecustomize.py").write_text("print('of the user')\n")
    script = program(tmp_path, "print('whole')\n")
    path = f"{tmp_path / 'user'}:{ROOT}"
    done = run(script, PYTHONPATH=path)
    # Once in ours, which is a Python as well.
    assert (done.stdout, done.stderr) == ("of the user\n" * 2 + "whole\n", "")
    assert done.returncode == 0


def test_drift_turns_a_success_into_2(tmp_path):
    done = run(program(tmp_path, "torch.use_deterministic_algorithms(True, warn_only=True)\n"))
    assert done.stderr == (
        "bitstep: not deterministic to the end: torch.use_deterministic_algorithms was strict and "
        "is warn_only: let the program leave these as they are\n"
        "bitstep: unverified: of 1 processes 1 drifted\n"
    )
    assert done.returncode == 2


def test_a_setting_that_the_program_made_before_torch_is_refused_at_its_import(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nos.environ['NCCL_ALGO'] = 'Tree'\nimport torch\nprint('not reached')\n"
    )
    done = run(str(script))
    assert done.stdout == ""
    assert done.stderr == (
        "bitstep: not deterministic: NCCL_ALGO=Tree is refused: set it to Ring, CollnetDirect, "
        "CollnetChain or ^NVLS, or unset it\n"
        "bitstep: unverified: of 1 processes 1 refused\n"
    )
    assert done.returncode == 2


def test_a_variable_of_the_user_is_refused_before_anything_starts(tmp_path):
    done = run(program(tmp_path, "Path('began').touch()\n"), NVTE_ALLOW_NONDETERMINISTIC_ALGO="1")
    assert done.stderr == (
        "bitstep: not deterministic: NVTE_ALLOW_NONDETERMINISTIC_ALGO=1 is refused: set it to 0, "
        "or unset it\n"
    )
    assert done.returncode == 2


def test_an_accepted_variable_of_the_user_is_left_alone(tmp_path):
    made = environment(None, {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "HOME": "/nowhere"})
    assert (made["CUBLAS_WORKSPACE_CONFIG"], made["HOME"]) == (":16:8", "/nowhere")
    assert "OMP_NUM_THREADS" not in made


@pytest.mark.long
def test_a_python_that_reads_no_environment_is_not_taken_for_held(tmp_path):
    script = program(tmp_path, "")
    done = bitstep("run", "--deterministic", "--", sys.executable, "-I", script)
    assert (done.stderr, done.returncode) == (UNVERIFIED, 2)
    done = bitstep("run", "--deterministic", "--", "true")
    assert (done.stderr, done.returncode) == (UNVERIFIED, 2)
    done = bitstep("run", "--deterministic", "--json", "--", "false")
    told = {"held": 0, "drifted": 0, "refused": 0, "is_whole": False, "exit": 1}
    assert (json.loads(done.stderr), done.returncode) == (told, 1)


def test_the_flag_is_what_the_verb_is_for():
    done = bitstep("run", "--", "true")
    assert done.stderr == (
        "bitstep: bitstep run needs --deterministic: without it start the command itself\n"
    )
    assert done.returncode == 2


def test_a_signal_reaches_the_program(tmp_path):
    script = program(tmp_path, "Path(sys.argv[1]).touch()\nimport time\ntime.sleep(200)\n")
    began = tmp_path / "began"
    words = ["run", "--deterministic", "--", sys.executable, script, str(began)]
    process = subprocess.Popen(
        [sys.executable, "-m", "bitstep", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    while not began.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert process.stderr is not None
    process.stderr.close()


SPAWN = """
import torch.multiprocessing as mp

def child(rank, folder):
    (Path(folder) / f"{rank}-{torch.get_deterministic_debug_mode()}").touch()
    if rank == 1:
        torch.backends.cudnn.benchmark = True

if __name__ == "__main__":
    mp.spawn(child, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.long
def test_children_of_spawn_are_held_and_their_drift_is_found(tmp_path):
    (tmp_path / "seen").mkdir()
    script = program(tmp_path, SPAWN)
    words = ["run", "--deterministic", "--", sys.executable, script, str(tmp_path / "seen")]
    done = bitstep(*words)
    assert sorted(os.listdir(tmp_path / "seen")) == ["0-2", "1-2"]
    assert "torch.backends.cudnn.benchmark was False and is True" in done.stderr
    assert done.stderr.endswith("bitstep: unverified: of 3 processes 1 drifted\n")
    assert done.returncode == 2


@pytest.mark.long
def test_workers_of_torchrun_are_held_and_their_drift_is_found(tmp_path):
    script = program(
        tmp_path,
        "assert torch.get_deterministic_debug_mode() == 2\n"
        "if len(sys.argv) > 1 and os.environ['RANK'] == '1':\n"
        "    torch.use_deterministic_algorithms(False)\n",
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script]
    done = bitstep("run", "--deterministic", "--threads", "1", "--", *torchrun)
    assert (done.stderr, done.returncode) == ("", 0)
    done = bitstep("run", "--deterministic", "--threads", "1", "--", *torchrun, "drift")
    assert done.stderr.endswith("bitstep: unverified: of 3 processes 1 drifted\n")
    assert done.returncode == 2


ENGINE = """
import os, sys, types
from bitstep.launch.torchrun import abandon

class Finished:
    status, step, root = "finished", 1, 1

def pretrain(*order, **named):
    import torch
    torch.backends.cudnn.benchmark = sys.argv[1] == "drift"
    return Finished

sys.modules["bitstep.train.loop"] = types.SimpleNamespace(pretrain=pretrain)
from bitstep.cli import run
abandon(run(["pretrain", "nano", "-q", "-o", sys.argv[2]]))
"""


@pytest.mark.parametrize(("does", "status"), [("drift", 2), ("none", 0)])
def test_an_attempt_of_the_engine_ends_with_an_error_where_its_settings_drifted(
    tmp_path, does, status
):
    words = [sys.executable, "-c", ENGINE, does, str(tmp_path / "run")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=250)
    assert done.returncode == status, done.stderr
    assert done.stderr == (
        "bitstep: not deterministic to the end: torch.backends.cudnn.benchmark was False and is "
        "True: let the program leave these as they are\n"
    ) * (does == "drift")


@pytest.mark.long
def test_a_recording_can_be_held_too(tmp_path):
    script = program(
        tmp_path,
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "optimizer.step()\n"
        "assert torch.get_deterministic_debug_mode() == 2\n",
    )
    words = ["record", "--level", "step", "-o", str(tmp_path / "run"), "--deterministic"]
    done = bitstep(*words, "--threads", "1", "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert "1 step" in done.stderr
    manifest = (tmp_path / "run").rglob("manifest*.json")
    assert '"settings.deterministic.algorithms": true' in next(manifest).read_text()


@pytest.mark.long
def test_the_groups_of_a_held_recording_are_measured_and_those_of_another_are_not(tmp_path):
    script = program(
        tmp_path,
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "optimizer.step()\n"
        "dist.destroy_process_group()\n",
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script]
    measured = {}
    for name, words in (("held", ["--deterministic", "--threads", "1"]), ("plain", [])):
        run_ = tmp_path / name
        done = bitstep("record", "--level", "step", "-o", str(run_), *words, "--", *torchrun)
        assert done.returncode == 0, done.stderr
        (file,) = run_.rglob("manifest*.json")
        keys = json.loads(file.read_text())["attempts"][0]["keys"]
        measured[name] = {key: value for key, value in keys.items() if ".sums." in key}
        assert next(value for key, value in keys.items() if key.endswith(".ranks")) == "0-1"
    assert measured["plain"] == {}
    key = next(key for key in measured["held"] if key.endswith("all_reduce.float32.65536"))
    assert measured["held"][key].startswith("one order: 0+1 #")


def test_threads_of_a_recording_need_the_flag(tmp_path):
    done = bitstep("record", "-o", str(tmp_path / "run"), "--threads", "1", "--", "true")
    assert done.stderr == (
        "bitstep: --threads is for --deterministic: give both, or set OMP_NUM_THREADS\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.fixture
def unset(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_the_environment_of_the_launcher_is_given_back(unset):
    before = dict(os.environ)
    with deterministic_children(threads=2) as folder:
        assert os.environ["NCCL_ALGO"] == "Ring"
        assert asked(os.environ) == Asked(folder, 2)
    assert dict(os.environ) == before
    assert not folder.exists()


@pytest.mark.parametrize("word", [HELD, DRIFTED, REFUSED])
def test_a_launcher_within_a_launcher_tells_the_outer_one(unset, word):
    with deterministic_children(threads=None) as outer:
        with deterministic_children(threads=2) as folder:
            (folder / f"{word}-7").touch()
        assert os.listdir(outer) == [f"{word}-7"]


def test_an_outer_launcher_that_has_gone_is_no_error(unset, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, Asked(tmp_path / "gone").to_environment()[VARIABLE])
    with deterministic_children(threads=2) as folder:
        (folder / f"{HELD}-7").touch()


def test_what_cannot_be_is_refused():
    for threads in (0, 65537, 10**20):
        with pytest.raises(UsageError, match=f"{threads} threads: ask for 1 to 65536"):
            environment(threads, {})
    with pytest.raises(ContractError, match="2 threads were asked for"):
        environment(2, {"MKL_NUM_THREADS": "4"})
    for text in ("{", "[]", '{"folder": 3}', '{"folder": "/x", "threads": "many"}'):
        with pytest.raises(ContractError, match=VARIABLE):
            asked({VARIABLE: text})


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (Told(3, 0, 0), ""),
        (Told(3, 2, 0), "unverified: of 3 processes 2 drifted"),
        (Told(3, 1, 1), "unverified: of 4 processes 1 refused and 1 drifted"),
        (Told(0, 0, 2), "unverified: of 2 processes 2 refused"),
    ],
)
def test_what_the_processes_told_is_one_line(told, line):
    assert told.line() == line
    assert told.is_whole == (line == "")
