"""`bitstep record` on real programs: attached without an edit, and otherwise not to be noticed."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from attach_fakes import (
    ROOT,
    TRAIN,
    asked,
    notes,
    record,
    record_environment,
    recording,
    user_folder,
)

from bitstep.errors import RunError, UsageError
from bitstep.launch.program import SI_KERNEL, find_program
from bitstep.launch.record import BOOTSTRAP, environment, new_directory, program_name, take
from bitstep.observe.options import VARIABLE, RecordOptions

PYTHON = sys.executable

DDP = """
import torch.distributed as dist
dist.init_process_group("gloo")
train()
dist.barrier()
dist.destroy_process_group()
"""

SPAWN = """
import torch.multiprocessing as mp

def work(rank, world):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=sys.argv[1])
    import torch.distributed as dist
    dist.init_process_group("gloo", rank=rank, world_size=world)
    train()
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""

LOADERS = """
from torch.utils.data import DataLoader
if __name__ == "__main__":
    for kind in ("fork", "spawn", "forkserver"):
        list(DataLoader(list(range(4)), num_workers=1, multiprocessing_context=kind))
    train()
"""

UNTIL_SIGNALLED = """
import os, signal, sys, time
for name in sys.argv[1].split(","):
    signal.signal(getattr(signal, name), lambda n, _: (print(signal.Signals(n).name), sys.exit(9)))
open("ready", "w").close()
time.sleep(60)
"""


@pytest.fixture
def script(tmp_path):
    def write(text, name="train.py"):
        (tmp_path / name).write_text(text)
        return name

    return write


def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return str(listener.getsockname()[1])


def start(tmp_path, *command):
    """`bitstep record` that runs beside the test; returns when the program is ready."""
    process = subprocess.Popen(
        [PYTHON, "-m", "bitstep", "record", "-o", "run", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=record_environment(tmp_path),
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    return process


def test_a_plain_script(tmp_path, script):
    done = record(tmp_path, PYTHON, script(TRAIN + "train()\nprint('end')\n"))
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert done.stderr == (
        "bitstep: run: 1 rank, 2 steps, 3 rows; compare it: bitstep diff run OTHER\n"
    )
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2]}
    assert asked(tmp_path / "run")["command"] == [PYTHON, "train.py"]


def test_a_module(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "train.py").write_text(TRAIN + "train()\n")
    assert record(tmp_path, PYTHON, "-m", "package.train").returncode == 0
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2]}


@pytest.mark.long
def test_two_workers_of_torchrun_are_attached_and_its_agent_is_not(tmp_path, script):
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = record(tmp_path, PYTHON, *words, script(TRAIN + DDP))
    assert done.returncode == 0, done.stderr
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2], "0/1": [0, 1, 2]}
    assert len([note for note in notes(tmp_path) if note.startswith("attached")]) == 2
    assert "bitstep: run: 2 ranks, 2 steps, 6 rows; compare it" in done.stderr


@pytest.mark.long
def test_a_restart_by_torchrun_is_an_attempt(tmp_path, script):
    dies_once = "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': train(1); sys.exit(3)\n"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = record(tmp_path, PYTHON, *words, "--max-restarts", "1", script(TRAIN + dies_once + DDP))
    assert done.returncode == 0, done.stderr
    found = recording(tmp_path / "run")
    assert found["1/0"] == found["1/1"] == [0, 1, 2]
    assert {name[0] for name in found} == {"0", "1"}


@pytest.mark.long
def test_the_children_of_mp_spawn_share_an_attempt(tmp_path, script):
    driver = script(
        "import subprocess, sys\n"
        "for port in sys.argv[1:]:\n"
        "    subprocess.run([sys.executable, 'train.py', port], check=True)\n",
        "driver.py",
    )
    script(TRAIN + SPAWN)
    done = record(tmp_path, PYTHON, driver, free_port(), free_port())
    assert done.returncode == 0, done.stderr
    steps = [0, 1, 2]
    assert recording(tmp_path / "run") == {"0/0": steps, "0/1": steps, "1/0": steps, "1/1": steps}
    assert "bitstep: run: 2 attempts, 2 ranks, 4 steps, 12 rows" in done.stderr


@pytest.mark.long
def test_workers_of_data_loaders_write_nothing(tmp_path, script):
    done = record(tmp_path, PYTHON, script(TRAIN + LOADERS))
    assert done.returncode == 0, done.stderr
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2]}


def test_parts_that_a_driver_runs_are_attempts(tmp_path, script):
    script(TRAIN + "train(int(sys.argv[1]))\n")
    driver = script(
        "import subprocess, sys\n"
        "for part in '23': subprocess.run([sys.executable, 'train.py', part], check=True)\n",
        "driver.py",
    )
    assert record(tmp_path, PYTHON, driver).returncode == 0
    assert recording(tmp_path / "run") == {"0/0": [0, 1], "1/0": [0, 1, 2]}


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_cannot_be_attached_is_noticed(tmp_path, flag):
    done = record(tmp_path, PYTHON, flag, "-c", "print('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr == (
        "bitstep: run: unverified: no process wrote anything: none trained, or it was started "
        "with -I, -E or -S, or with another PYTHONPATH\n"
    )


def test_strict_makes_an_error_of_a_recording_that_is_not_whole(tmp_path):
    assert record(tmp_path, "true", words=("--strict",)).returncode == 2
    assert record(tmp_path, "true", words=("-o", "other")).returncode == 0


def test_a_rank_that_wrote_nothing_is_named(tmp_path, script):
    text = TRAIN + (
        "from pathlib import Path\n"
        "from bitstep.observe.attempt import claim\n"
        "claim(Path('run'), rank=0, world=4)\n"
        "os.environ['RANK'] = '1'\ntrain()\n"
    )
    done = record(tmp_path, PYTHON, script(text))
    assert "unverified: ranks 0, 2, 3 of 4 wrote nothing in attempt-000" in done.stderr
    words = ("-o", "other", "--ranks", "1")
    assert record(tmp_path, PYTHON, "train.py", words=words).returncode == 0


@pytest.mark.parametrize("status", [0, 1, 75])
def test_the_exit_status_is_the_programs(tmp_path, status):
    assert record(tmp_path, "sh", "-c", f"exit {status}").returncode == status


def test_a_program_that_a_signal_ended_has_128_and_the_signal(tmp_path):
    assert record(tmp_path, "sh", "-c", "kill -KILL $$").returncode == 137
    done = record(tmp_path, "sh", "-c", "kill -SEGV $$", words=("-o", "other"))
    assert done.returncode == 139


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_is_passed_on(tmp_path, script, name):
    process = start(tmp_path, PYTHON, script(UNTIL_SIGNALLED), name)
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (9, f"{name}\n")


def test_a_signal_that_nobody_handles_ends_both(tmp_path, script):
    process = start(tmp_path, PYTHON, script(UNTIL_SIGNALLED), "SIGTERM")
    process.send_signal(signal.SIGUSR2)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGUSR2


def test_ctrl_c_reaches_the_program_from_the_terminal_alone(tmp_path, script):
    """On a terminal of its own, whose Ctrl-C goes to all of its foreground."""
    text = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
open("ready", "w").close()
codes, wait = set(), 60
while (received := signal.sigtimedwait([signal.SIGINT], wait)) is not None:
    codes.add(received.si_code)
    wait = 0.5
open("codes", "w").write(str(codes))
sys.exit(4)
"""
    parent, terminal = os.openpty()
    words = [PYTHON, "-m", "bitstep", "record", "-o", "run", "--", PYTHON, script(text)]
    process = subprocess.Popen(
        # A shell that takes the terminal: only a leader of a session can.
        [PYTHON, "-c", "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
         "os.execv(sys.argv[1], sys.argv[1:])", *words],
        stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path,
        env=record_environment(tmp_path), start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    for _ in range(5):  # two that wait at the same time are one: a second may not be seen
        os.write(parent, b"\x03")
        time.sleep(0.1)
    assert process.wait(60) == 4
    assert (tmp_path / "codes").read_text() == str({SI_KERNEL})
    os.close(parent)
    os.close(terminal)


def test_streams_and_open_files_are_the_programs(tmp_path):
    read, write = os.pipe()
    done = subprocess.run(
        [PYTHON, "-m", "bitstep", "-q", "record", "-o", "run", "--", "bash", "-c",
         f"cat; echo err >&2; echo three >&{write}"],
        input=b"\x00binary\xff", capture_output=True, cwd=tmp_path, pass_fds=[write],
        env=record_environment(tmp_path), timeout=60,
    )  # fmt: skip
    os.close(write)
    assert done.stdout == b"\x00binary\xff"
    assert done.stderr.startswith(b"err\nbitstep: run: unverified")
    assert os.read(read, 100) == b"three\n"
    os.close(read)


def test_signals_are_as_they_were_for_the_program(tmp_path):
    code = (
        "import signal\n"
        "print([int(signal.getsignal(s)) if not callable(signal.getsignal(s)) else 2\n"
        "       for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],\n"
        "      signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    alone = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    assert record(tmp_path, PYTHON, "-c", code).stdout == alone.stdout
    mask = "grep -E 'SigBlk|SigIgn' /proc/self/status"
    alone = subprocess.run(["sh", "-c", mask], capture_output=True, text=True)
    inside = record(tmp_path, "sh", "-c", mask, words=("-o", "other"))
    assert signal_sets(inside.stdout) == signal_sets(alone.stdout)


def signal_sets(lines: str) -> dict[str, int]:
    """The sets of signals by name, without the C library's own two, 32 and 33: it may ignore
    either, both or none of them in what it starts."""
    own = 1 << 31 | 1 << 32
    pairs = (line.split(":") for line in lines.splitlines())
    return {name: int(value, 16) & ~own for name, value in pairs}


def test_a_command_that_is_not_there_is_status_2_and_no_directory(tmp_path):
    done = record(tmp_path, "no-such-program")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "bitstep: no-such-program: no such command: see how it is spelled, or give its path\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_script_that_is_no_program_gets_a_hint(tmp_path, script):
    with pytest.raises(UsageError, match="put python before it"):
        find_program(str(tmp_path / script("")))


def test_a_file_that_cannot_be_executed_is_status_2(tmp_path):
    file = tmp_path / "odd"
    file.write_bytes(b"\x7fELF nothing")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    done = record(tmp_path, str(file))
    assert done.returncode == 2
    assert f"{file} cannot be started: Exec format error" in done.stderr


def test_a_directory_that_holds_a_recording_is_refused(tmp_path):
    assert record(tmp_path, "true").returncode == 0
    done = record(tmp_path, "true")
    assert done.returncode == 2
    assert done.stderr == (
        f"bitstep: {tmp_path / 'run'} holds a recording or a run: name another directory with -o\n"
    )


@pytest.mark.parametrize("held", ["attempt-000", "manifest.json"])
def test_a_directory_that_holds_a_run_is_refused(tmp_path, held):
    (tmp_path / held).mkdir()
    with pytest.raises(RunError, match="holds a recording or a run"):
        take(RecordOptions(tmp_path), ["true"], None)


def test_a_control_file_may_wait_in_the_directory(tmp_path):
    (tmp_path / "control.toml").touch()
    take(RecordOptions(tmp_path), ["true", "--token=abc"], None)
    assert asked(tmp_path)["command"] == ["true", "--token=(left out)"]


def test_launchers_of_one_launch_share_a_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    options = RecordOptions(tmp_path)
    take(options, ["true"], 1)
    take(options, ["true"], 0)
    with pytest.raises(RunError):
        take(options, ["true"], None)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    with pytest.raises(RunError):
        take(options, ["true"], 0)


def test_a_directory_that_cannot_be_made_is_status_2(tmp_path):
    (tmp_path / "run").touch()
    done = record(tmp_path, "true", words=("-o", "run/a"))
    assert done.returncode == 2
    assert done.stderr == (
        f"bitstep: {tmp_path / 'run/a'}: Not a directory: name another directory with -o\n"
    )


def test_a_directory_where_nothing_can_be_written_is_status_2(tmp_path):
    done = record(tmp_path, "true", words=("-o", "/proc/run"))
    assert done.returncode == 2
    assert done.stderr == (
        "bitstep: /proc/run: No such file or directory: name another directory with -o\n"
    )


def test_a_directory_is_named_after_the_program(tmp_path):
    words = ["torchrun", "src/train.py", "--run", "a"]
    assert new_directory(words, tmp_path) == tmp_path / "train-1"
    assert new_directory(words, tmp_path) == tmp_path / "train-2"
    assert program_name(["python", "-m", "pkg.train", "x"]) == "pkg.train"
    assert program_name(["/usr/bin/env"]) == "env"


def test_the_environment_is_the_users_but_for_two_variables():
    made = environment(RecordOptions(ROOT / "run"), {"A": "b", "PYTHONPATH": "x::y"})
    assert json.loads(made.pop(VARIABLE))["directory"] == str(ROOT / "run")
    assert made == {"A": "b", "PYTHONPATH": f"{BOOTSTRAP}:x::y"}
    assert environment(RecordOptions(ROOT), made) == environment(
        RecordOptions(ROOT), {"A": "b", "PYTHONPATH": "x::y"}
    )
    assert environment(RecordOptions(ROOT), {})["PYTHONPATH"] == str(BOOTSTRAP)


def test_options_after_the_command_are_the_programs(tmp_path):
    user_folder(tmp_path)
    words = ["record", "-o", "run", "sh", "-c", "echo $0", "--level"]
    done = subprocess.run(
        [PYTHON, "-m", "bitstep", *words],
        capture_output=True, text=True, cwd=tmp_path, env=record_environment(tmp_path),
    )  # fmt: skip
    assert done.stdout == "--level\n"


def test_json_tells_the_end_on_stderr(tmp_path):
    done = record(tmp_path, "true", words=("--json",))
    told = json.loads(done.stderr)
    assert (told["run"], told["rows"], len(told["missing"])) == ("run", 0, 1)
