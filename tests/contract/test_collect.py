import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bitstep.contract.classes import CLASSES, classify
from bitstep.contract.collect import collect
from bitstep.contract.manifest import (
    NAME,
    Manifest,
    append_attempt,
    compare,
    read_manifest,
    refuse_if_different,
)
from bitstep.errors import ContractError

RECIPE = {"run": {"seed": 7, "precision": "float32"}, "layout": {"fan_ins": (2, 2, 2)}}
LAYOUT = {"logical": {"ranks": 8}, "physical": {"processes": 1, "hosts": 1}}


def collected(**changes: Any) -> Manifest:
    arguments: dict[str, Any] = {
        "command": ["bitstep", "pretrain", "nano"],
        "corpus_digest": "aa",
        "order_digest": "bb",
        "layout": LAYOUT,
    }
    return collect(**({"recipe": RECIPE} | arguments | changes))


def test_two_collections_in_one_process_match() -> None:
    differences = compare(collected(), collected())
    assert {d.key for d in differences} <= {"program.time"}


def test_what_is_collected_is_what_the_process_has() -> None:
    keys = collected().keys
    assert keys["software.torch.version"] == torch.__version__
    assert keys["settings.threads.torch"] == torch.get_num_threads()
    assert keys["settings.dtype"] == "float32"
    assert keys["hardware.cpu.capability"] == torch.backends.cpu.get_cpu_capability()
    assert keys["program.pid"] == os.getpid()
    assert keys["recipe.layout.fan_ins"] == [2, 2, 2]
    assert (keys["data.digest"], keys["data.order"]) == ("aa", "bb")
    assert (keys["layout.logical.ranks"], keys["layout.physical.hosts"]) == (8, 1)
    for key in ("hardware.cpu.model", "software.python", "software.onednn", "program.source"):
        assert keys[key]


def test_it_survives_the_file_and_matches_itself(tmp_path: Path) -> None:
    manifest = collected(declared=["run.seed"])
    append_attempt(tmp_path, manifest, None)
    (attempt,) = read_manifest(tmp_path)
    assert attempt.manifest == manifest
    assert attempt.manifest.declared == ("recipe.run.seed",)
    assert (tmp_path / NAME).stat().st_size < 16_000


def test_every_key_that_is_collected_has_a_class_of_its_own() -> None:
    unknown = CLASSES[-1][3]
    assert [key for key in collected().keys if classify(key)[1] == unknown] == []


def refused(a: Manifest, b: Manifest) -> str:
    with pytest.raises(ContractError) as caught:
        refuse_if_different(a, b)
    return str(caught.value)


def test_other_threads_are_refused() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = collected()
        torch.set_num_threads(2)
        two = collected()
    finally:
        torch.set_num_threads(threads)
    assert "settings.threads.torch was 1, is 2" in refused(one, two)


def test_other_settings_are_refused() -> None:
    before = collected()
    try:
        torch.use_deterministic_algorithms(True)
        deterministic = collected()
        torch.set_flush_denormal(True)
        flushing = collected()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_flush_denormal(False)
    assert "deterministic.algorithms was false, is true" in refused(before, deterministic)
    assert "precision.flush_denormal was false, is true" in refused(deterministic, flushing)


def test_another_recipe_corpus_order_or_logical_layout_is_refused() -> None:
    a = collected()
    seed = collected(recipe=RECIPE | {"run": {"seed": 8, "precision": "float32"}})
    assert "recipe.run.seed was 7, is 8" in refused(a, seed)
    assert 'data.digest was "aa", is "cc"' in refused(a, collected(corpus_digest="cc"))
    assert 'data.order was "bb", is "cc"' in refused(a, collected(order_digest="cc"))
    layout = LAYOUT | {"logical": {"ranks": 4}}
    assert "layout.logical.ranks was 8, is 4" in refused(a, collected(layout=layout))


def test_other_processes_and_another_command_are_not_refused() -> None:
    layout = LAYOUT | {"physical": {"processes": 4, "hosts": 2}}
    other = collected(layout=layout, command=["torchrun"])
    refuse_if_different(collected(), other)
    assert {"layout.physical.processes", "program.command"} <= {
        d.key for d in compare(collected(), other)
    }


def test_a_variable_that_bears_on_numerics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    a = collected()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert 'environment.MKL_CBWR was (absent), is "COMPATIBLE"' in refused(a, collected())


def test_no_other_variable_and_no_secret_reaches_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "MY_OMP_NUM_THREADS", "PATH_OMP_X", "NCCL_AUTH_TOKEN", "OMP_A-B"):
        monkeypatch.setenv(name, "hunter2")
    command = ["bitstep", "--token", "hunter2", "--api-key=hunter2", "https://me:hunter2@host/x"]
    append_attempt(tmp_path, collected(command=command), None)
    content = (tmp_path / NAME).read_text()
    assert "hunter2" not in content
    assert "NCCL_AUTH_TOKEN" not in content
    assert "--token" in content


def test_nested_and_dotted_recipes_are_the_same() -> None:
    dotted = {"run.seed": 7, "run.precision": "float32", "layout.fan_ins": [2, 2, 2]}
    assert {d.key for d in compare(collected(), collected(recipe=dotted))} <= {"program.time"}


def test_infinity_is_kept_as_a_word(tmp_path: Path) -> None:
    manifest = collected(recipe={"optimizer": {"clip": float("inf")}})
    assert manifest.keys["recipe.optimizer.clip"] == "inf"
    append_attempt(tmp_path, manifest, None)


def test_a_key_twice_and_a_value_without_json_are_refused() -> None:
    with pytest.raises(ContractError, match=r"recipe\.a\.b stands twice"):
        collected(recipe={"a.b": 1, "a": {"b": 2}})
    with pytest.raises(ContractError, match=r"recipe\.a = PosixPath\('x'\)"):
        collected(recipe={"a": Path("x")})


def test_collecting_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    collected()
    assert torch.get_rng_state().equal(before)
