import os
import subprocess
import sys
from pathlib import Path

import pytest

import bitstep
from bitstep.faults import fault_environment, parse_flips
from bitstep.faults.receipts import read_receipts

RECORDER = Path(bitstep.__file__).parent / "observe" / "bootstrap"
FAULTS = Path(bitstep.__file__).parent / "faults" / "bootstrap"

PROGRAM = """
import sys
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("user" if hasattr(sys, "user_was_here") else "no user")
print([type(m).__name__ for m in torch.utils._python_dispatch._get_current_dispatch_mode_stack()])
"""


def run(folder, path, variables):
    (folder / "user").mkdir()
    (folder / "user" / "sitecustomize.py").write_text(
        "import sys\nassert not hasattr(sys, 'user_was_here')\nsys.user_was_here = True\n"
    )
    (folder / "program.py").write_text(PROGRAM)
    python_path = os.pathsep.join(str(entry) for entry in (*path, folder / "user"))
    return subprocess.run(
        [sys.executable, str(folder / "program.py")],
        env={**os.environ, **variables, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "path", [(FAULTS,), (FAULTS, RECORDER), (RECORDER, FAULTS)], ids=["alone", "first", "last"]
)
def test_a_program_is_armed_beside_a_recorder_in_either_order(path, tmp_path):
    from bitstep.observe.options import RecordOptions

    flips = parse_flips("output step=2 op=aten.addmm element=1 bit=20")
    variables = fault_environment(tmp_path / "faults", flips)
    if RECORDER in path:
        variables |= RecordOptions(tmp_path / "recording").to_environment()
    ended = run(tmp_path, path, variables)
    assert ended.stderr == ""
    names = ["Below", *["Operations"] * (RECORDER in path), "Above"]
    assert ended.stdout.splitlines() == ["user", str(names)]
    assert [receipt["status"] for receipt in read_receipts(tmp_path / "faults")] == ["fired"]


def test_without_the_variable_nothing_is_armed(tmp_path):
    ended = run(tmp_path, (FAULTS,), {"BITSTEP_FAULT": ""})
    assert (ended.stdout.splitlines(), ended.stderr) == (["user", "[]"], "")


def test_a_fault_that_cannot_be_understood_ends_the_program(tmp_path):
    ended = run(tmp_path, (FAULTS,), {"BITSTEP_FAULT": "upset step=1"})
    assert ended.returncode == 1
    assert "UsageError: no kind of flip is named 'upset'" in ended.stderr


def test_the_variables_put_our_folder_before_what_was_there():
    variables = fault_environment(Path("out"), before={"PYTHONPATH": "src"})
    assert variables["PYTHONPATH"] == f"{FAULTS}{os.pathsep}src"
    assert fault_environment(Path("out"), before={})["PYTHONPATH"] == str(FAULTS)
