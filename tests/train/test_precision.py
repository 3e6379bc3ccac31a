"""`run.precision`: what is quantized in the engine, and what the bits then depend on."""

import random
import re
import subprocess
import sys

import pytest
import torch
from engine_fakes import TINY, tiny_engine, tiny_recipe, write_corpus

from bitstep.errors import UsageError
from bitstep.faults import Fault
from bitstep.investigate.judge import INERT
from bitstep.launch.arm import run_arm
from bitstep.train.evaluate import evaluate
from bitstep.train.model.linear import Linear
from bitstep.train.model.quantized import QuantizedLinear
from bitstep.train.precision import software
from bitstep.train.step import train_step

QUANTIZED = ["mxfp8", "nvfp4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def engine_of(folder, precision, *changes, fault=None):
    return tiny_engine(folder, f"run.precision={precision}", *changes, fault=fault)


def roots(engine, steps=2, between=lambda engine: None):
    results = []
    for _ in range(steps):
        between(engine)
        results.append(train_step(engine).roots)
    return results


def disturb(engine):
    torch.rand(random.randrange(1, 9))


@pytest.mark.parametrize("precision", QUANTIZED)
def test_the_linear_layers_of_the_blocks_are_quantized_and_no_others(folder, precision):
    modules = dict(engine_of(folder, precision).model.named_modules())
    quantized = {n: m for n, m in modules.items() if isinstance(m, QuantizedLinear)}
    plain = {n for n, m in modules.items() if isinstance(m, Linear) and n not in quantized}
    assert plain == {"head", "mtp.0.join"}
    layers = ["up", "down", *(f"experts.{i}.{layer}" for i in range(3) for layer in ("up", "down"))]
    assert set(quantized) == {
        "blocks.0.mixer.project", "blocks.0.mixer.out",
        *(f"blocks.1.mixer.{layer}" for layer in ("query", "key", "value", "out")),
        *(f"blocks.2.mixer.{layer}" for layer in (*layers[2:], "shared.up", "shared.down")),
        *(f"blocks.3.mixer.{layer}" for layer in layers[:2]),
        *(f"mtp.0.blocks.0.mixer.{layer}" for layer in ("query", "key", "value", "out")),
        *(f"mtp.0.blocks.1.mixer.{layer}" for layer in layers[:2]),
    }  # fmt: skip
    assert all(layer.name == name for name, layer in quantized.items())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_nothing_is_quantized_otherwise(folder, precision):
    modules = engine_of(folder, precision).model.modules()
    assert not any(isinstance(module, QuantizedLinear) for module in modules)


def test_each_precision_has_bits_of_its_own_and_the_first_values_of_all(folder):
    engines = [engine_of(folder, p) for p in ("float32", "bfloat16", *QUANTIZED)]
    first = [engine.state.pieces[0].tensor.clone() for engine in engines]
    assert all(torch.equal(first[0], other) for other in first)
    assert len({train_step(engine).roots["gradients"] for engine in engines}) == 4


@pytest.mark.parametrize("precision", QUANTIZED)
def test_two_engines_have_the_same_bits_and_recomputation_changes_none(folder, precision):
    kept = roots(engine_of(folder, precision))
    assert roots(engine_of(folder, precision)) == kept
    assert roots(engine_of(folder, precision, "run.recompute=true")) == kept


@pytest.mark.parametrize("precision", QUANTIZED)
def test_masters_and_moments_are_float32(folder, precision):
    engine = engine_of(folder, precision)
    train_step(engine)
    assert {piece.tensor.dtype for piece in engine.state.pieces} == {torch.float32}


def test_rounding_neither_reads_nor_moves_the_generator_of_the_process(folder):
    engine = engine_of(folder, "nvfp4")
    state = torch.get_rng_state()
    train_step(engine)
    assert torch.equal(torch.get_rng_state(), state)
    undisturbed = roots(engine_of(folder, "nvfp4"))
    assert roots(engine_of(folder, "nvfp4"), between=disturb) == undisturbed


def test_rounding_by_the_generator_of_the_process_is_seen(folder):
    fault = Fault("process-wide-rounding")
    torch.manual_seed(0)
    first = roots(engine_of(folder, "nvfp4", fault=fault))
    torch.manual_seed(0)
    assert roots(engine_of(folder, "nvfp4", fault=fault)) == first
    torch.manual_seed(0)
    assert roots(engine_of(folder, "nvfp4", fault=fault), between=disturb) != first


@pytest.mark.parametrize("precision", ["bfloat16", "mxfp8"])
def test_a_fault_of_rounding_is_refused_where_nothing_is_rounded_by_draws(folder, precision):
    with pytest.raises(UsageError, match=f"with run.precision = {precision} nothing is rounded"):
        engine_of(folder, precision, fault=Fault("process-wide-rounding"))


def test_evaluating_changes_no_bit_of_training(folder):
    plain = roots(engine_of(folder, "nvfp4"))
    assert roots(engine_of(folder, "nvfp4", "run.eval_every=1"), between=evaluate) == plain


def test_without_dropout_nvfp4_still_needs_its_random_stream(folder):
    applies, _ = INERT["random"]
    without = {p: tiny_recipe(folder, "model.dropout=0.0", f"run.precision={p}") for p in QUANTIZED}
    assert applies(without["mxfp8"])
    assert not applies(without["nvfp4"])
    first, second = (
        engine_of(folder, "nvfp4", "model.dropout=0.0", "run.steps=8") for _ in range(2)
    )
    second.state.values["random"]["counter"] += 1
    assert train_step(first).roots["gradients"] != train_step(second).roots["gradients"]


def test_the_version_of_torchao_belongs_to_the_contract_of_quantized_runs_only():
    assert software("mxfp8").keys() == software("nvfp4").keys() == {"software.torchao"}
    assert re.fullmatch(r"0\.18\.\d+\S*", software("nvfp4")["software.torchao"])
    assert software("bfloat16") == {}


@pytest.mark.parametrize("precision", QUANTIZED)
def test_the_loss_falls(folder, precision):
    engine = engine_of(folder, precision, "run.steps=12", "optimizer.lr=0.01")
    losses = [train_step(engine).metrics["loss"] for _ in range(12)]
    assert losses[-1] < losses[0] - 0.5


WITHOUT_TORCHAO = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchao":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from bitstep.cli import run
sys.exit(run(sys.argv[1:]))
"""


def test_without_torchao_it_says_what_to_install(folder, tmp_path):
    words = ["pretrain", "nano", "-o", str(tmp_path / "run"), "--set", "run.precision=mxfp8"]
    words += ["--set", f"data.folder={folder}", "--set", "data.held_out=0.3"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCHAO, *words], capture_output=True, text=True
    )
    assert done.stderr.endswith(
        "bitstep: torchao is not installed: pip install 'bitstep[quantized]'\n"
    )
    assert done.returncode == 2
    assert not (tmp_path / "run" / "attempt-000").exists()


def test_two_processes_have_the_bits_of_one(folder, tmp_path):
    changes = [*TINY, f"data.folder={folder}", "data.held_out=0.3", "run.precision=nvfp4"]
    words = ["pretrain", "nano", "-o", str(tmp_path / "run"), "--processes", "2", "--steps", "3"]
    words += [word for change in changes for word in ("--set", change)]
    result = run_arm(words, {}, log := tmp_path / "log", 120)
    assert result.exit == 0, log.read_text()
    one = roots(engine_of(folder, "nvfp4", "run.steps=3"), steps=3)[-1]["state"]
    assert f"finished at step 3, state root {one:016x}, " in log.read_text()
    assert "torchao" not in log.read_text()


def prove(tmp_path, *words):
    short = ["--steps", "8", "--set", "schedule.warmup=2", "--processes", "1,2"]
    log = tmp_path / "log"
    result = run_arm(["prove", "nano", *short, "-o", str(tmp_path / "proof"), *words], {}, log, 800)
    return result.exit, log.read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", QUANTIZED)
def test_nano_is_proven(tmp_path, precision):
    status, said = prove(tmp_path, "--set", f"run.precision={precision}")
    assert status == 0, said
    assert said.count(" proven ") == 3
    assert said.count(" caught ") == 7


@pytest.mark.long
@pytest.mark.timeout(900)
def test_with_rounding_by_the_generator_of_the_process_nano_is_refuted(tmp_path):
    fewer = ["--set", "layout.fan_ins=[2, 2]"]
    fault = ["--set", "run.precision=nvfp4", "--fault", "process-wide-rounding"]
    status, said = prove(tmp_path, *fewer, *fault)
    assert status == 1, said
    assert re.findall(r"^(\S.*\S) +refuted ", said, re.MULTILINE) == [
        "repeatability", "exact resume", "layout freedom",
    ]  # fmt: skip
