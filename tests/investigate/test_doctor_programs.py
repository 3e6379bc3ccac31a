"""The doctor on real programs: what it names, and what it must not name (the controls)."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bitstep.cli import run as bitstep
from bitstep.errors import RunError, TraceError
from bitstep.investigate.doctor import program as doctor
from bitstep.investigate.doctor.program import examine_program
from bitstep.launch.first_steps import FirstSteps
from bitstep.records import Outcome
from bitstep.report.doctor import doctor_text

TESTS = Path(__file__).parents[1]
CASES, PROGRAMS = TESTS / "cases", TESTS / "programs"

LOOP = """
import sys, torch
from torch import nn
torch.manual_seed(0)
if "flag" in sys.argv: torch.use_deterministic_algorithms(True)
if "custom" in sys.argv:
    @torch.library.custom_op("mine::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2
    double.register_autograd(lambda ctx, grad: grad * 2)
if "chooses" in sys.argv or "indexes" in sys.argv: torch.set_num_threads(2)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(50, 8))
    def forward(self, indices):
        rows = self.weight[indices] if "indexes" in sys.argv else self.weight * 3.0
        return double(rows) if "custom" in sys.argv else rows

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for step in range(1000):
    if "fails" in sys.argv and step == 1: raise SystemExit("lost the corpus")
    out = model(torch.arange(4000) % 50)
    loss = out.sum() if "sums" in sys.argv else out[0, 0] + 1.0
    loss.backward()
    if "numpy" in sys.argv: model.weight.detach().numpy()[0, 0] += 1
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def examined(tmp_path, monkeypatch):
    """Examine a command, or LOOP with words; without the executions that look at streams."""
    monkeypatch.setattr(doctor, "examine_streams", lambda command, folder: ())
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def run(*words, command=()):
        program = tmp_path / "loop.py"
        program.write_text(LOOP)
        return examine_program([*(command or (sys.executable, str(program))), *words],
                               tmp_path / "look", timeout=200.0)  # fmt: skip

    return run


def said(diagnosis, *severities):
    return [one.what for one in diagnosis.findings if one.severity in severities]


NOTE = {"rank": 0, "world": 1, "stopped": True}
CHANGES = ("differs", "varies", "may vary", "missed by a checkpoint")


def test_a_race_with_the_flag_off_varies_and_is_named_with_its_module(examined):
    found = examined("indexes")
    assert found.outcome is Outcome.DIFFERENT
    (race,) = [one for one in found.findings if one.severity == "varies"]
    assert race.what.startswith("aten.index_put")
    assert (race.where, race.fix) == ("Net", "set torch.use_deterministic_algorithms(True)")
    assert {one.ran.op: one.class_ for one in found.operations}["aten.index_put"] == "varies"


@pytest.mark.long
def test_the_same_race_with_the_flag_on_is_held(examined):
    found = examined("indexes", "flag")
    assert said(found, *CHANGES) == []
    assert any("aten.index_put repeats" in what for what in said(found, "under a setting"))


@pytest.mark.long
def test_a_clean_program_has_status_0(examined):
    found = examined("chooses")
    assert (found.outcome, found.title) == (Outcome.SAME, "nothing varies"), found.findings
    assert found.compared == "two executions of 2 steps on 1 rank: the same bits"


@pytest.mark.long
def test_sums_depend_on_threads_unless_somebody_chose_them(examined, tmp_path):
    assert any("depend" in what for what in said(examined("sums"), "may vary"))


@pytest.mark.long
def test_chosen_threads_are_a_setting_that_is_held(examined):
    found = examined("sums", "chooses")
    assert said(found, *CHANGES) == []
    assert any("(2, set by the program" in what for what in said(found, "under a setting"))


@pytest.mark.long
def test_a_custom_operation_is_unknown(examined):
    found = examined("custom", "chooses")
    assert said(found, "unknown") == ["mine.double is a custom operation"]
    assert found.outcome is Outcome.UNVERIFIED


@pytest.mark.long
def test_a_write_past_pytorch_is_outside_of_view(examined):
    found = examined("numpy", "chooses")
    (write,) = [one for one in found.findings if one.severity == "outside of view"]
    assert "Net.weight" in write.what
    assert found.outcome is Outcome.UNVERIFIED


def test_a_program_that_fails_could_not_be_told_and_says_its_last_words(examined):
    found = examined("fails", "chooses")
    assert found.outcome is Outcome.UNVERIFIED
    (failed, *_) = [one for one in found.findings if one.severity == "unknown"]
    assert failed.what == "the program ended with status 1"
    assert "lost the corpus" in failed.evidence
    assert "lost the corpus" in doctor_text(found.as_json())


def test_of_long_last_words_the_cause_is_on_the_screen(examined):
    deep = "def f(n): return f(n - 1) if n else input()\nimport torch\nf(3)"
    found = examined(command=(sys.executable, "-c", f"# {'x' * 200}\n{deep}"))
    assert "EOFError: EOF when reading a line" in doctor_text(found.as_json())


def test_a_program_that_never_trains_could_not_be_told(examined):
    found = examined(command=(sys.executable, "-c", "print('no torch here')"))
    assert said(found, "unknown") == ["no process of the program trained"]
    assert found.outcome is Outcome.UNVERIFIED


def test_a_recording_that_cannot_be_read_is_never_a_pass(tmp_path, monkeypatch):
    def broken(run):
        raise TraceError("damaged")

    whole = FirstSteps(tmp_path, None, False, (NOTE,), (), (), 1.0)
    monkeypatch.setattr(doctor, "run_first_steps", lambda *args, **named: whole)
    monkeypatch.setattr(doctor, "read_calls", broken)
    found = examine_program(["any"], tmp_path / "look")
    assert said(found, "unknown") == ["nothing could be read of what was recorded"]
    assert found.outcome is Outcome.UNVERIFIED


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"exit": 3}, "the program ended with status 3"),
        ({"timed_out": True}, "the program took too long"),
        ({"notes": ()}, "no process of the program trained"),
        ({"notes": ({**NOTE, "world": 2},)}, "ranks 1 did not end step 2"),
        ({"complaints": ("bitstep: not recording: x",)},
         "the recorder did not follow the program"),
    ],
)  # fmt: skip
def test_an_execution_that_did_not_come_to_its_end_is_told(tmp_path, monkeypatch, other, what):
    whole = FirstSteps(tmp_path / "none", None, False, (NOTE,), (), (), 1.0)
    one = dataclasses.replace(whole, **other)
    monkeypatch.setattr(doctor, "run_first_steps", lambda *args, **named: one)
    found = examine_program(["any"], tmp_path / "look")
    assert said(found, "unknown") == [what]


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(RunError, match="is not empty"):
        examine_program(["true"], tmp_path)


def case(name, run="a"):
    return sys.executable, str(CASES / f"{name}.py"), "--run", run


@pytest.mark.long
def test_the_case_of_sums_in_the_order_of_arrival_is_named(examined):
    found = examined(command=case("sum_in_arrival_order"))
    assert "modules ran on other threads" in " ".join(said(found, "outside of view"))
    # In 25 steps the order always shows; in two it nearly does.
    if differs := said(found, "differs"):
        assert "added in another order" in differs[0]


@pytest.mark.long
def test_the_case_of_recomputation_is_named_where_it_happens_and_only_there(examined, tmp_path):
    healthy = examined(command=case("recompute_draws_new_dropout"))
    assert said(healthy, "differs") == []
    faulty = examine_program(case("recompute_draws_new_dropout", "b"), tmp_path / "b")
    (differs,) = said(faulty, "differs")
    assert differs.startswith("recomputation draws new random numbers")


@pytest.mark.long
def test_the_case_of_the_thread_count_is_told_as_a_setting(examined):
    found = examined(command=case("thread_count"))
    held = [one for one in found.findings if one.severity == "under a setting"]
    assert any("number of threads" in one.what for one in held)
    assert said(found, *CHANGES) == []


@pytest.mark.long
def test_two_ranks_of_torchrun_are_examined_together(examined):
    torchrun = str(Path(sys.executable).parent / "torchrun")
    program = str(PROGRAMS / "ddp.py")
    found = examined(command=(torchrun, "--nproc-per-node", "2", program, "1000"))
    assert found.compared == "two executions of 2 steps on 2 ranks: the same bits"
    assert found.executions[0].stopped == (0, 1)
    assert any(one.ran.op.startswith("c10d.") and one.ran.ranks == {0, 1}
               for one in found.operations)  # fmt: skip


@pytest.mark.long
def test_the_command_prints_one_screen_or_json_and_its_status(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(doctor, "examine_streams", lambda command, folder: ())
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    command = ["--", sys.executable, str(program), "indexes"]
    assert bitstep(["doctor", *command]) == 1
    screen = capfd.readouterr().out.splitlines()
    assert len(screen) <= 24
    assert screen[0].startswith("different: ")
    assert any(line.startswith("varies     aten.index_put") for line in screen)
    assert bitstep(["doctor", "--json", "-o", str(tmp_path / "kept"), *command]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["format"], found["status"], found["outcome"]) == (1, 1, "different")
    assert Path(found["executions"][0]["recording"]).is_dir()
    assert found["command"] == command[1:]


def test_this_machine_is_examined_in_a_fresh_process(capfd, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    assert bitstep(["doctor", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    rules = {rule["name"]: rule["verdict"] for rule in found["rules"]}
    assert rules["OMP_NUM_THREADS"] == "held"
    assert rules["OMP_DYNAMIC"] == "broken"
    assert found["machine"]["torch"]["threads"] == 1
    assert any(one["what"].startswith("OMP_DYNAMIC: ") for one in found["findings"])
    assert "torch" in found["machine"]["versions"]


NO_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def test_a_machine_without_torch_is_a_finding_and_no_crash(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH)
    path = os.pathsep.join([str(tmp_path), str(TESTS.parent)])
    done = subprocess.run(
        [sys.executable, "-m", "bitstep", "doctor"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert "PyTorch cannot be imported" in done.stdout, done.stderr
    assert re.match(r"(different|unverified): ", done.stdout)
    assert done.returncode == (1 if done.stdout.startswith("different") else 2)
