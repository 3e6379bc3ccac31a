"""The bootstrap attaches where torch is imported, and is nowhere else to be seen."""

import subprocess
import sys

import pytest
from attach_fakes import ROOT, TRAIN, attached, notes, recording, user_folder

from bitstep.observe.attach import is_helper

SITE_RAN = "sitecustomize of sitecustomize in user"


def test_without_torch_nothing_happens_but_the_users_sitecustomize(tmp_path):
    done = attached(tmp_path, ["-c", "import json, sys; print('torch' in sys.modules)"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert notes(tmp_path) == [SITE_RAN]
    assert not (tmp_path / "run").exists()


def test_the_program_sees_its_own_path_and_its_own_sitecustomize(tmp_path):
    (tmp_path / "look.py").write_text(
        "import sys, sitecustomize\n"
        "print(sitecustomize.__file__, sitecustomize.__spec__.origin)\n"
        "print([path for path in sys.path if 'bootstrap' in path])\n"
    )
    file = user_folder(tmp_path) / "sitecustomize.py"
    assert attached(tmp_path, ["look.py"]).stdout == f"{file} {file}\n[]\n"


def test_a_user_without_a_sitecustomize_misses_none(tmp_path):
    done = attached(tmp_path, ["-c", "print(1)"], PYTHONPATH="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_sitecustomize_that_fails_says_so_as_it_would_alone(tmp_path):
    folder = user_folder(tmp_path)
    folder.joinpath("sitecustomize.py").write_text("raise ValueError('mine')")
    # user_folder is not asked again: the fixture folder is another one.
    bad = tmp_path / "bad"
    folder.rename(bad)
    alone = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(bad)},
    )
    done = attached(tmp_path, ["-c", "print(1)"], PYTHONPATH=str(bad))
    assert "ValueError: mine" in done.stderr
    assert (done.stdout, done.stderr) == (alone.stdout, alone.stderr)


def test_it_attaches_when_torch_is_whole(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN + "train()\n")
    done = attached(tmp_path, ["train.py"])
    assert (done.returncode, done.stderr) == (0, "")
    assert notes(tmp_path) == [SITE_RAN, "attached to train.py"]
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2]}


def test_a_question_whether_torch_is_there_is_no_import(tmp_path):
    code = (
        "import sys, importlib.util as u\n"
        "assert u.find_spec('torch') and u.find_spec('torch') and 'torch' not in sys.modules\n"
        "import torch\n"
        "print('WaitForTorch' in [type(finder).__name__ for finder in sys.meta_path],\n"
        "      'exec_module' in vars(torch.__spec__.loader))\n"
    )
    assert attached(tmp_path, ["-c", code]).stdout == "False False\n"
    assert notes(tmp_path) == [SITE_RAN, "attached to -c"]


def test_another_that_waits_for_torch_the_same_way_is_no_harm(tmp_path):
    ours = (ROOT / "bitstep/observe/bootstrap/sitecustomize.py").read_text()
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(ours)
    path = f"{other}:{user_folder(tmp_path)}"
    done = attached(tmp_path, ["-c", "import torch; print('trains')"], PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trains\n", "")
    assert notes(tmp_path) == [SITE_RAN, "attached to -c", "attached to -c"]


def test_an_import_of_torch_that_fails_is_tried_again(tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\nif not os.environ.pop('WORKS', ''): raise ImportError('no library')\n"
    )
    code = (
        "import os, importlib.util as u\n"
        "try: import torch\n"
        "except ImportError as error: print(error)\n"
        "os.environ['WORKS'] = '1'\n"
        "spec = u.find_spec('torch')\n"
        "import torch; print('there')\n"
        # Again, from a spec that was asked for before: it is attached already.
        "os.environ['WORKS'] = '1'\n"
        "spec.loader.exec_module(u.module_from_spec(spec))\n"
    )
    done = attached(tmp_path, ["-c", code], FAIL_TO_START="1")
    assert done.stdout == "no library\nthere\n"
    assert done.stderr == "bitstep: not recording: RuntimeError: no room\n"


def test_an_error_of_ours_is_one_line_and_the_program_goes_on(tmp_path):
    done = attached(tmp_path, ["-c", "import torch; print('trains')"], FAIL_TO_START="1")
    assert (done.returncode, done.stdout) == (0, "trains\n")
    assert done.stderr == "bitstep: not recording: RuntimeError: no room\n"


def test_options_that_cannot_be_read_are_one_line(tmp_path):
    code = "import os; os.environ['BITSTEP_RECORD'] = '?'; import torch; print('trains')"
    done = attached(tmp_path, ["-c", code])
    assert (done.returncode, done.stdout) == (0, "trains\n")
    assert done.stderr.startswith("bitstep: not recording: BITSTEP_RECORD is not what")
    assert done.stderr.count("\n") == 1


def test_without_options_nothing_is_attached(tmp_path):
    code = "import sys; print([f for f in sys.meta_path if type(f).__name__ == 'WaitForTorch'])"
    bootstrap = ROOT / "bitstep/observe/bootstrap"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(bootstrap)},
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_where_bitstep_is_not_installed_it_is_found_beside_the_bootstrap(tmp_path):
    (tmp_path / "torch.py").write_text("")
    code = "import torch, sys; print('bitstep' in sys.modules, *sys.path)"
    # -S would hide the bootstrap too: without the site folder by hand.
    hide = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    finders = "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
    done = attached(tmp_path, ["-c", hide + finders + code], PYTHONPATH="", FAIL_TO_START="")
    assert done.stdout.startswith("True ")
    assert str(ROOT) not in done.stdout.split()


@pytest.mark.parametrize(
    ("words", "helps"),
    [
        ("python /venv/bin/torchrun train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python -W error -u /venv/torch/_inductor/compile_worker/__main__.py --kind=fork", True),
        ("python train.py -m torch.distributed.run", False),
        ("python -m train torchrun", False),
        ("python -c pass torchrun", False),
        ("python", False),
    ],
)
def test_helpers_of_torch_are_known_by_their_command(words, helps):
    assert is_helper(words.split()) == helps


def test_os_exit_leaves_a_closed_trace(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN + "train()\nos._exit(5)\n")
    assert attached(tmp_path, ["train.py"]).returncode == 5
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2]}


def test_os_exit_in_a_thread_does_not_touch_the_trace(tmp_path):
    (tmp_path / "train.py").write_text(
        TRAIN + "train()\nimport threading\n"
        "threading.Thread(target=os._exit, args=(5,)).start()\nimport time; time.sleep(60)\n"
    )
    assert attached(tmp_path, ["train.py"]).returncode == 5
    assert (tmp_path / "run/attempt-000/rank-00000.000.index").exists()


def test_a_forked_child_of_a_parent_that_recorded_is_silent(tmp_path):
    (tmp_path / "train.py").write_text(
        TRAIN + "train(2)\npid = os.fork()\ntrain(3)\nif pid: os.wait()\nelse: os._exit(0)\n"
    )
    assert attached(tmp_path, ["train.py"]).returncode == 0
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2, 3, 4]}


def test_a_forked_child_of_a_parent_that_did_not_record_is_fresh(tmp_path):
    (tmp_path / "train.py").write_text(
        TRAIN + "import multiprocessing as mp\n"
        "child = mp.get_context('fork').Process(target=train)\nchild.start(); child.join()\n"
    )
    assert attached(tmp_path, ["train.py"]).returncode == 0
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2]}


def test_a_fork_before_torch_attaches_in_the_child(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\npid = os.fork()\nif pid: os.wait(); os._exit(0)\n" + TRAIN + "train()\n"
    )
    assert attached(tmp_path, ["train.py"]).returncode == 0
    assert recording(tmp_path / "run") == {"0/0": [0, 1, 2]}
