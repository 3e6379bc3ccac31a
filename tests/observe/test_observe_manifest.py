"""The manifest of a program that has no recipe: collected in it, without its secrets."""

import sys
from types import ModuleType

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.contract.classes import CLASSES, classify
from bitstep.contract.manifest import read_manifest
from bitstep.observe import manifest
from bitstep.observe.manifest import collected, named_files, source, write_manifest


def module(path):
    made = ModuleType(path.stem)
    made.__file__ = str(path)
    return made


@pytest.fixture
def program(tmp_path):
    """Modules of a program: a script, a file of its own, one that is installed beside it."""
    files = {
        "__main__": tmp_path / "train.py",
        "net": tmp_path / "parts" / "net.py",
        "numpy": tmp_path / "venv/lib/site-packages/numpy.py",
        "os": tmp_path.parent / "os.py",
    }
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.stem)
    return {name: module(path) for name, path in files.items()}


def test_it_is_written_as_the_attempts_of_a_run(tmp_path):
    assert [write_manifest(tmp_path, 2), write_manifest(tmp_path, 2)] == [0, 1]
    keys = read_manifest(tmp_path)[1].manifest.keys
    assert keys["layout.logical.ranks"] == 2
    assert keys["settings.threads.torch"] == torch.get_num_threads()
    assert keys["program.command"][1:] != []
    assert not [key for key in keys if key.startswith(("recipe.", "data.digest", "data.order"))]


def test_another_number_of_processes_must_match():
    said = classify("layout.logical.ranks")
    assert said.class_ == "must match"
    assert said.reason.endswith("logical roots are still compared")


def test_every_key_has_a_class_of_its_own(monkeypatch, program):
    monkeypatch.setattr(manifest, "source", lambda _: source(program))
    unknown = CLASSES[-1][3]
    assert [key for key in collected(1).keys if classify(key)[1] == unknown] == []


def test_the_code_is_the_script_and_what_it_imported_and_nobody_installed(program):
    found = source(program)
    assert set(found) == {"commit", "source", "files"}
    # One beside the script by its place, one from elsewhere by its name alone.
    assert set(found["files"]) == {"parts-net.py", "os"}
    del program["net"], program["os"]
    assert source(program) == {"commit": None, "source": found["source"], "files": {}}


def test_what_belongs_to_python_and_to_us_is_no_file_of_the_program(program):
    import json

    from bitstep import errors

    before = source(program)
    assert source({**program, "json": json, "bitstep.errors": errors}) == before


def test_the_files_that_options_name_are_digested_and_not_those_of_results(tmp_path):
    for name in ("a.yaml", "b.yaml", "out.txt", "key"):
        (tmp_path / name).write_text(name)
    at = {name: str(tmp_path / name) for name in ("a.yaml", "b.yaml", "out.txt", "key")}
    found = named_files({
        "config": at["a.yaml"], "data": [at["a.yaml"], "missing", at["b.yaml"]], "lr": "0.1",
        "output": at["out.txt"], "token": at["key"], "fp16": True, "folder": str(tmp_path),
        "device": "/dev/zero", "odd": "a\0b",
    })  # fmt: skip
    assert set(found) == {"config", "data.0", "data.2"}
    assert found["config"] == found["data.0"] != found["data.2"]


def test_the_model_is_in_it_and_of_an_engine_that_cuts_tensors_as_its_layout():
    model = torch.nn.Linear(2, 1)
    keys = collected(1, roots=[("Linear", model)]).keys
    assert keys["model.Linear.tree"] == ["Linear"]
    assert keys["model.Linear.parameters"] == 3
    cut = collected(2, layout="tp 2", roots=[("Linear", model)]).keys
    assert cut["layout.physical.model.Linear.digest"] == keys["model.Linear.digest"]
    assert not [key for key in cut if key.startswith("model.")]


def test_a_script_of_another_text_has_another_source(program, tmp_path):
    before = source(program)["source"]
    (tmp_path / "train.py").write_text("train()")
    assert source(program)["source"] != before


def test_a_program_without_a_file_has_no_source():
    assert source({"__main__": ModuleType("__main__")}) == {"commit": None, "source": None}


def test_objects_that_pose_as_modules_are_passed_by(program):
    class Trap:
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert source({**program, "trap": Trap()}) == source(program)


def test_secrets_are_left_out(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "t.py", "--api-key", "abc", "--token=abc"])
    monkeypatch.setenv("NCCL_SECRET", "abc")
    assert "abc" not in str(collected(1).keys)


def test_nothing_of_it_is_an_operation_of_the_program():
    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Count.seen += 1
            return function(*args, **(kwargs or {}))

    with Count():
        collected(1)
    assert Count.seen == 0


def test_no_random_number_is_drawn():
    before = torch.get_rng_state()
    collected(1)
    assert torch.equal(torch.get_rng_state(), before)
