"""The rules for a launch of Megatron: each broken once, kept once, and held against the wheel."""

from __future__ import annotations

import ast
import enum
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitstep.cli import run
from bitstep.contract.megatron import (
    check_config,
    check_launch,
    findings_for_manifest,
    is_broken,
    too_late,
)
from bitstep.contract.megatron_rules import ARGUMENTS, DEFAULTS, FIELDS, RULES, VARIABLES
from bitstep.errors import UsageError

CLEAN = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "NCCL_TOPO_FILE": "/etc/topology.xml",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "PYTHONHASHSEED": "0",
    "TRITON_CACHE_AUTOTUNING": "1",
    "TRITON_CACHE_DIR": "/shared/triton",
}
"""An environment in which no rule is broken and nothing is left to compare."""
KEPT = "--deterministic-mode --attention-backend flash"
MOE = f"{KEPT} --num-experts 8 --moe-token-dispatcher-type alltoall"

ARGUMENT_CASES = {
    "--deterministic-mode": ("broken", "--attention-backend flash --micro-batch-size 1"),
    "--yaml-cfg": ("forgotten", f"{KEPT} --yaml-cfg gpt.yaml"),
    "--cross-entropy-loss-fusion": ("broken", f"{KEPT} --cross-entropy-loss-fusion"),
    "--use-flash-attn": ("broken", f"{KEPT} --use-flash-attn"),
    "--tp-comm-overlap": ("broken", f"{KEPT} --tp-comm-overlap"),
    "--moe-router-fusion": ("broken", f"{MOE} --moe-router-fusion"),
    "--moe-permute-fusion": ("forgotten", f"{MOE} --moe-permute-fusion"),
    "--moe-token-dispatcher-type": ("forgotten", f"{MOE} --moe-token-dispatcher-type flex"),
    "--fp4-format": ("forgotten", f"{KEPT} --fp4-format e2m1"),
    "--experimental-attention-variant": (
        "forgotten",
        f"{KEPT} --experimental-attention-variant dsa",
    ),
    "--fp8-format": ("unchecked", f"{KEPT} --fp8-format hybrid"),
    "--attention-backend": ("unchecked", "--deterministic-mode"),
    "--overlap-grad-reduce": ("unchecked", f"{KEPT} --overlap-grad-reduce"),
    "--overlap-moe-expert-parallel-comm": (
        "unchecked",
        f"{MOE} --overlap-moe-expert-parallel-comm",
    ),
    "--use-sharp": ("unchecked", f"{KEPT} --use-sharp"),
    "--nccl-communicator-config-path": (
        "unchecked",
        f"{KEPT} --nccl-communicator-config-path nccl.yaml",
    ),
}
HYBRID = f"{KEPT} --hybrid-override-pattern M-M*"
VARIABLE_CASES = {
    # what: (arguments, a value that is refused, its kind, kind where it is not set)
    "NCCL_ALGO": (KEPT, "Tree", "broken", "late"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": (KEPT, "1", "broken", "late"),
    "CUBLAS_WORKSPACE_CONFIG": (KEPT, ":4096:2", "broken", "late"),
    "MAMBA_DETERMINISTIC": (KEPT, "0", "broken", None),
    "CAUSAL_CONV1D_DETERMINISTIC": (KEPT, "false", "broken", None),
    "TRITON_CACHE_AUTOTUNING": (HYBRID, "0", "forgotten", "late"),
    "TRITON_CACHE_DIR": (KEPT, "", "broken", "late"),
    "PYTHONOPTIMIZE": (KEPT, "1", "forgotten", None),
    "PYTHONHASHSEED": (KEPT, "random", "forgotten", "late"),
    "NCCL_TOPO_FILE": (KEPT, "", "unchecked", "unchecked"),
    "CUDA_DEVICE_MAX_CONNECTIONS": (KEPT, "1", "unchecked", None),
    "NCCL_PROTO": (KEPT, "Simple", "unchecked", None),
    "NCCL_MIN_NCHANNELS": (KEPT, "8", "unchecked", None),
    "NCCL_MAX_NCHANNELS": (KEPT, "8", "unchecked", None),
    "NCCL_NVLS_ENABLE": (KEPT, "0", "unchecked", None),
    "NVIDIA_TF32_OVERRIDE": (KEPT, "0", "unchecked", None),
}


def found(words: str, environment: dict[str, str]) -> list[tuple[str, str]]:
    launch = f"torchrun --nproc-per-node 8 pretrain_gpt.py {words}".split()
    return [(finding.kind, finding.rule.what) for finding in check_launch(launch, environment)]


def test_every_rule_has_a_case():
    assert list(ARGUMENT_CASES) == [rule.what for rule in ARGUMENTS]
    assert list(VARIABLE_CASES) == [rule.what for rule in VARIABLES]


@pytest.mark.parametrize("words", [KEPT, MOE, HYBRID])
def test_a_launch_that_keeps_every_rule_has_no_finding(words):
    assert found(words, CLEAN) == []


@pytest.mark.parametrize("what", ARGUMENT_CASES)
def test_a_broken_rule_about_an_argument_is_the_only_finding(what):
    kind, words = ARGUMENT_CASES[what]
    assert found(words, CLEAN) == [(kind, what)]


@pytest.mark.parametrize("what", VARIABLE_CASES)
def test_a_broken_rule_about_a_variable_is_the_only_finding(what):
    words, value, kind, _ = VARIABLE_CASES[what]
    assert found(words, CLEAN | {what: value}) == [(kind, what)]


@pytest.mark.parametrize("what", VARIABLE_CASES)
def test_a_variable_that_is_not_set_is_named_where_the_process_needs_it(what):
    words, _, _, unset = VARIABLE_CASES[what]
    rest = {name: value for name, value in CLEAN.items() if name != what}
    assert found(words, rest) == ([(unset, what)] if unset else [])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what)
def test_a_rule_says_why_and_what_to_do_in_one_line_each(rule):
    for text in (rule.why, rule.fix, rule.evidence):
        assert text
        assert text.isprintable()
    assert bool(rule.module) == (rule.read == "import")
    # What Megatron refuses is broken; what it does not look at is not.
    assert (rule.kind == "broken") <= (rule.checked_by != "nobody else")


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("NCCL_ALGO", "^NVLS"),
        ("NCCL_ALGO", "Ring, CollnetDirect,"),
        ("CUBLAS_WORKSPACE_CONFIG", ":16:8"),
        ("MAMBA_DETERMINISTIC", ""),
        ("MAMBA_DETERMINISTIC", "1"),
        ("CAUSAL_CONV1D_DETERMINISTIC", "10"),
        ("PYTHONOPTIMIZE", "0"),
        ("PYTHONHASHSEED", "4294967295"),
    ],
)
def test_a_value_that_is_accepted_is_no_finding(what, value):
    assert found(KEPT, CLEAN | {what: value}) == []


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("NCCL_ALGO", "ring"),  # NCCL takes it, Megatron does not
        ("NCCL_ALGO", "RING"),
        ("NCCL_ALGO", "Ring,Tree"),
        ("NCCL_ALGO", ""),
        ("NCCL_ALGO", ","),
        ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "False"),
        ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", ""),
        ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0 "),
        ("CUBLAS_WORKSPACE_CONFIG", "4096:8"),
        ("MAMBA_DETERMINISTIC", "True"),
    ],
)
def test_a_value_that_megatron_does_not_spell_so_is_broken(what, value):
    assert found(KEPT, CLEAN | {what: value}) == [("broken", what)]


def test_a_variable_of_another_case_is_another_variable():
    environment = {name.lower(): value for name, value in CLEAN.items()}
    assert found(KEPT, environment) == found(KEPT, {})


# Real launch lines.

DENSE = """
    torchrun --nproc_per_node 8 --nnodes 4 --rdzv_backend c10d --rdzv_endpoint node0:29500
    pretrain_gpt.py --use-mcore-models --num-layers 96 --hidden-size 12288
    --num-attention-heads 96 --seq-length 4096 --max-position-embeddings 4096
    --micro-batch-size 1 --global-batch-size 1536 --train-iters 500000 --lr 6.0e-5
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel
    --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --tp-comm-overlap --cross-entropy-loss-fusion --data-path data/text --split 949,50,1
"""
EXPERTS = """
    env CUDA_DEVICE_MAX_CONNECTIONS=1 NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 NCCL_ALGO=^NVLS
    python -m torch.distributed.run --nproc-per-node=8 pretrain_gpt.py --deterministic-mode
    --num-experts=64 --moe-router-topk=6 --moe-grouped-gemm --moe-permute-fusion
    --moe-router-fusion --moe-router-load-balancing-type seq_aux_loss global_aux_loss
    --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8
    --attention-backend fused --micro-batch-size 1
"""
EIGHT_BITS = """
    python -O pretrain_gpt.py --deterministic-mode --fp8-format hybrid --fp8-recipe mxfp8
    --transformer-impl transformer_engine --num-attention-heads 32 --log-interval 1
"""


def subjects(launch: str, environment: dict[str, str]) -> list[tuple[str, str]]:
    return [(f.kind, f.subject) for f in check_launch(launch.split(), environment)]


def test_a_dense_launch_as_it_is_usually_written():
    assert subjects(DENSE, CLEAN) == [
        ("broken", "--deterministic-mode (not given)"),
        ("broken", "--cross-entropy-loss-fusion"),
        ("broken", "--tp-comm-overlap"),
        ("unchecked", "--attention-backend auto"),
        ("unchecked", "--overlap-grad-reduce"),
    ]


def test_a_launch_with_experts_that_deterministic_mode_of_0_16_1_lets_pass():
    assert subjects(EXPERTS, {}) == [
        ("broken", "--moe-router-fusion"),
        ("forgotten", "--moe-permute-fusion"),
        ("late", "CUBLAS_WORKSPACE_CONFIG (not set)"),
        ("late", "TRITON_CACHE_AUTOTUNING (not set)"),
        ("late", "PYTHONHASHSEED (not set)"),
        ("unchecked", "NCCL_TOPO_FILE (not set)"),
        ("unchecked", "CUDA_DEVICE_MAX_CONNECTIONS=1"),
    ]


def test_a_launch_in_8_bits_whose_asserts_are_dropped():
    assert subjects(EIGHT_BITS, CLEAN) == [
        ("forgotten", "PYTHONOPTIMIZE=1"),
        ("unchecked", "--fp8-format hybrid"),
        ("unchecked", "--attention-backend auto"),
    ]


def test_torchrun_does_not_pass_minus_o_on():
    launch = f"python -O -m torch.distributed.run --nnodes 1 pretrain_gpt.py {KEPT}"
    assert subjects(launch, CLEAN) == []


def test_a_command_sets_variables_before_its_script_and_over_those_of_the_shell():
    shell = CLEAN | {"NCCL_ALGO": "Tree"}
    assert subjects(f"env NCCL_ALGO=Ring python pretrain_gpt.py {KEPT}", shell) == []
    assert subjects(f"python pretrain_gpt.py NCCL_ALGO=Ring {KEPT}", shell) == [
        ("broken", "NCCL_ALGO=Tree")
    ]


def test_fusions_of_experts_do_not_matter_without_experts():
    assert found(f"{KEPT} --moe-permute-fusion --moe-router-fusion", CLEAN) == []


def test_without_transformer_engine_its_variable_does_not_matter():
    words = "--deterministic-mode --transformer-impl local"
    assert found(words, CLEAN | {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1"}) == []


def test_the_flag_of_the_auxiliary_loss_goes_before_that_of_the_router():
    assert found(f"{MOE} --moe-router-fusion --no-moe-router-aux-loss-fusion", CLEAN) == []
    assert found(f"{MOE} --moe-router-aux-loss-fusion", CLEAN) == [
        ("broken", "--moe-router-fusion")
    ]


def test_a_yaml_file_takes_the_place_of_all_arguments():
    words = "--yaml-cfg gpt.yaml --tp-comm-overlap --use-flash-attn"
    assert found(words, CLEAN | {"NCCL_ALGO": "Tree"}) == [
        ("broken", "NCCL_ALGO"),
        ("forgotten", "--yaml-cfg"),
    ]


# Command lines that are not as they should be.


@pytest.mark.parametrize(
    "launch",
    ["", "bash train.sh", "python train.py --lr 1 --epochs 3", "-- --", "torchrun --nnodes 2"],
)
def test_without_an_argument_of_megatron_it_cannot_be_told(launch):
    with pytest.raises(UsageError, match="no argument of Megatron found: give the launch line"):
        check_launch(launch.split(), CLEAN)


def test_arguments_alone_are_a_launch_line():
    assert check_launch(KEPT.split(), CLEAN) == ()


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        ("--fp8-format", "--fp8-format"),  # its value is missing
        ("--fp8-format=", "--fp8-format "),
        ("--fp8-format e4m3 --fp8-format hybrid", "--fp8-format hybrid"),  # the last one holds
        ("--fp8-format=a=b", "--fp8-format a=b"),
        ("--fp8-format a\nb\x1b[2J", "--fp8-format a b\\x1b[2J"),
    ],
)
def test_a_malformed_argument_is_read_as_far_as_it_goes(words, subject):
    launch = [*KEPT.split(), *words.split()]
    assert [finding.subject for finding in check_launch(launch, CLEAN)] == [subject]


def test_a_value_given_to_a_flag_does_not_turn_it_on():
    # Megatron ends with an error; a reader might believe that the mode is on.
    assert subjects("pretrain_gpt.py --deterministic-mode=true --fp4-format", CLEAN)[0] == (
        "broken",
        "--deterministic-mode true",
    )


def test_unknown_arguments_and_names_cut_short_are_ignored():
    # allow_abbrev is off in Megatron.
    assert found(f"{KEPT} --tp-comm --Tp-Comm-Overlap --tp_comm --mine 3 -x", CLEAN) == []


# A live configuration.


class Backend(enum.Enum):
    auto = 5
    flash = 1


def config(**fields: object) -> SimpleNamespace:
    kept = {"deterministic_mode": True, "attention_backend": Backend.flash}
    return SimpleNamespace(**{**kept, **fields})


def told(configuration: object, environment: dict[str, str] | None = None) -> list[str]:
    return [finding.subject for finding in check_config(configuration, environment)]


def test_a_configuration_is_held_against_the_same_rules():
    assert told(config()) == []
    assert told(config(deterministic_mode=False)) == ["--deterministic-mode (not given)"]
    assert told(config(attention_backend=Backend.auto)) == ["--attention-backend auto"]
    assert told(config(fp8="hybrid", fp4=None)) == ["--fp8-format hybrid"]
    assert told(config(num_moe_experts=4, moe_permute_fusion=True)) == ["--moe-permute-fusion"]
    assert told(config(num_experts=4, moe_permute_fusion=True)) == ["--moe-permute-fusion"]
    assert told(config(num_moe_experts=None, moe_permute_fusion=True)) == []


def test_the_flag_of_the_auxiliary_loss_is_followed_where_it_is_set():
    fused = config(num_moe_experts=4, moe_router_fusion=True)
    assert told(fused) == ["--moe-router-fusion"]
    fused.moe_router_aux_loss_fusion = None
    assert told(fused) == ["--moe-router-fusion"]
    fused.moe_router_aux_loss_fusion = False
    assert told(fused) == []


def test_with_an_environment_variables_are_checked_by_what_the_configuration_needs():
    assert told(config(), CLEAN) == []
    assert told(config(), CLEAN | {"NCCL_ALGO": "Tree"}) == ["NCCL_ALGO=Tree"]
    rest = CLEAN | {"TRITON_CACHE_AUTOTUNING": "0"}
    assert told(config(is_hybrid_model=False), rest) == []
    assert told(config(is_hybrid_model=True), rest) == ["TRITON_CACHE_AUTOTUNING=0"]


def test_a_configuration_that_cannot_be_read_has_no_findings():
    class Broken:
        @property
        def deterministic_mode(self) -> bool:
            raise RuntimeError("not now")

    assert told(Broken()) == []
    assert told(None) == []


# When it is too late.


def late(modules: set[str], cuda: bool) -> list[str]:
    return [finding.rule.what for finding in too_late(modules, cuda)]


START = ["PYTHONOPTIMIZE", "PYTHONHASHSEED"]


def test_what_the_interpreter_reads_is_always_too_late():
    assert late(set(), False) == START
    assert late({"torch", "megatron.core"}, False) == START


def test_an_import_makes_it_too_late_for_what_it_reads():
    assert late({"transformer_engine"}, False) == ["NVTE_ALLOW_NONDETERMINISTIC_ALGO", *START]


def test_cuda_in_use_makes_it_too_late_for_all_but_imports_and_validation():
    expected = [
        rule.what
        for rule in RULES
        if rule.kind != "unchecked" and rule.read not in ("import", "validation")
    ]
    assert late(set(), True) == expected
    assert "--deterministic-mode" in expected
    assert "--yaml-cfg" not in expected


def test_the_manifest_says_what_can_no_more_be_put_right():
    launch = f"pretrain_gpt.py {KEPT}".split()
    rest = {k: v for k, v in CLEAN.items() if k != "NVTE_ALLOW_NONDETERMINISTIC_ALGO"}
    [before] = findings_for_manifest(launch, rest)
    [after] = findings_for_manifest(launch, rest, modules={"transformer_engine"})
    assert before.startswith("late: NVTE_ALLOW_NONDETERMINISTIC_ALGO (not set): ")
    assert "; export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 (core/" in before
    assert "ALGO=0, and start again: transformer_engine is imported (core/" in after


def test_the_manifest_of_another_program_has_no_lines():
    assert findings_for_manifest(["train.py", "--lr", "1"], {}) == []
    assert findings_for_manifest(["train.py"], CLEAN, config=config()) == []
    assert len(findings_for_manifest(["train.py"], CLEAN, config=config(fp8="e4m3"))) == 1


# The verb.


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in VARIABLES:
        monkeypatch.delenv(rule.what, raising=False)
    for name, value in CLEAN.items():
        monkeypatch.setenv(name, value)


def check(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str, str]:
    status = run(["megatron", "check", *words.split()])
    streams = capsys.readouterr()
    return status, streams.out, streams.err


@pytest.mark.usefixtures("environment")
def test_the_status_says_whether_a_rule_is_broken(capsys):
    assert check(capsys, f"-- torchrun pretrain_gpt.py {KEPT}") == (0, "no rule is broken\n", "")
    status, out, _ = check(capsys, f"torchrun pretrain_gpt.py {KEPT} --fp8-format hybrid")
    assert (status, out.splitlines()) == (
        0,
        ["no rule is broken", "unchecked  alike in all runs?  --fp8-format hybrid"],
    )
    status, out, _ = check(capsys, f"-- torchrun pretrain_gpt.py {MOE} --moe-permute-fusion")
    assert status == 1
    assert out.splitlines()[1].startswith("forgotten  --moe-permute-fusion  fused unpermute")
    status, out, err = check(capsys, "-- bash train.sh")
    assert (status, out) == (2, "")
    assert err.startswith("bitstep: no argument of Megatron found")


@pytest.mark.usefixtures("environment")
def test_as_json_a_finding_has_all_of_its_rule(capsys):
    _, out, _ = check(capsys, f"--json -- pretrain_gpt.py {KEPT} --tp-comm-overlap")
    [finding] = json.loads(out)
    assert list(finding) == [
        "kind", "what", "value", "accepts", "why", "fix", "read", "checked_by", "cost", "evidence",
    ]  # fmt: skip
    assert finding["kind"] == "broken"
    assert finding["checked_by"] == "Megatron after 0.16.1"


def test_all_rules_broken_at_once_fit_on_one_screen(capsys, monkeypatch):
    for rule in VARIABLES:
        monkeypatch.delenv(rule.what, raising=False)
    words = " ".join(
        words.removeprefix(MOE).removeprefix(KEPT) for _, words in ARGUMENT_CASES.values()
    ).replace("--yaml-cfg gpt.yaml", "--num-experts 8")
    monkeypatch.setenv("MAMBA_DETERMINISTIC", "0")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    status, out, _ = check(
        capsys, f"-- pretrain_gpt.py {words}".replace("--deterministic-mode", "")
    )
    lines = out.splitlines()
    assert status == 1
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


def test_the_document_shows_what_is_printed(capsys, monkeypatch):
    for rule in VARIABLES:
        monkeypatch.delenv(rule.what, raising=False)
    page = (Path(__file__).parents[2] / "docs" / "megatron.md").read_text()
    section = page[page.index("## Is this launch deterministic?") :]
    command, shown = re.findall(r"```(?:bash|text)\n(.*?)```", section, re.DOTALL)[:2]
    words = command.replace("\\\n", " ").removeprefix("bitstep megatron check ")
    status, out, _ = check(capsys, words)
    assert status == 1
    assert out.startswith(shown)
    [code] = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.startswith("forgotten: --moe-permute-fusion: fused unpermute")


def test_neither_torch_nor_megatron_is_imported():
    code = (
        "import sys; from bitstep.cli import run; "
        f"run('megatron check -- torchrun pretrain_gpt.py {KEPT}'.split()); "
        "sys.exit(any(m.split('.')[0] in ('torch', 'megatron', 'numpy') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | CLEAN).returncode == 0


# The wheel of megatron-core, as text: it is not imported.


@pytest.fixture(scope="module")
def core() -> Path:
    wheel = importlib.metadata.distribution("megatron-core")
    assert wheel.version == "0.16.1", "the rules cite 0.16.1: look at them again"
    return Path(str(wheel.locate_file("megatron/core")))


@pytest.fixture(scope="module")
def fields(core: Path) -> dict[str, ast.expr | None]:
    """Fields of TransformerConfig and of the configuration of DDP, with their defaults."""
    files = {
        "model_parallel_config.py": "ModelParallelConfig",
        "transformer/transformer_config.py": "TransformerConfig",
        "distributed/distributed_data_parallel_config.py": "DistributedDataParallelConfig",
    }
    return {
        line.target.id: line.value
        for file, name in files.items()
        for part in ast.parse((core / file).read_text()).body
        if isinstance(part, ast.ClassDef) and part.name == name
        for line in part.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }


TRAINING_ONLY = {
    "--yaml-cfg",
    "--use-flash-attn",
    "--use-sharp",
    "--nccl-communicator-config-path",
}
"""Arguments of megatron.training, which is not in the wheel."""


def names_of(what: str) -> list[str]:
    return [*FIELDS.get(what, ()), what.removeprefix("--").replace("-", "_")]


def test_every_argument_of_a_rule_is_a_field_of_this_megatron(fields):
    unknown = {rule.what for rule in ARGUMENTS if not fields.keys() & set(names_of(rule.what))}
    assert unknown == TRAINING_ONLY


def test_every_condition_of_a_rule_is_a_field_of_this_megatron(fields):
    needed = {need.partition("=")[0] for rule in RULES for need in rule.needs}
    arguments = {need for need in needed if need.startswith("--")}
    unknown = {need for need in arguments if not fields.keys() & set(names_of(need))}
    assert unknown == {"--hybrid-layer-pattern"}  # newer; 0.16.1 has --hybrid-override-pattern


def test_defaults_are_those_of_this_megatron(fields):
    for rule in ARGUMENTS:
        name = next((name for name in names_of(rule.what) if name in fields), None)
        if name is None:
            continue
        default = fields[name]
        value = default.attr if isinstance(default, ast.Attribute) else default
        if isinstance(value, ast.Call):  # field(default=None, ...)
            value = next(word.value for word in value.keywords if word.arg == "default")
        if isinstance(value, ast.Constant):
            value = value.value
        assert DEFAULTS.get(rule.what, value) == value, rule.what
        assert rule.what in DEFAULTS or value in (False, None), rule.what


def test_what_a_rule_cites_of_core_is_there(core):
    cited = [
        (rule, path, [int(number) for number in re.findall(r"\d+", lines)])
        for rule in RULES
        for path, lines in re.findall(r"(?<!\S)core/(\S+\.py)(?::([\d, -]+\d))?", rule.evidence)
    ]
    assert len(cited) >= 6
    for rule, path, numbers in cited:
        lines = (core / path).read_text().splitlines()
        words = [*names_of(rule.what), "fused", "bucket_size", "deterministic_mode"]
        for number in numbers:
            assert any(word in lines[number - 1] for word in words), (rule.what, path, number)


def test_this_megatron_raises_where_transformer_engine_may_choose_freely(core):
    text = (core / "extensions/transformer_engine.py").read_text()
    assert 'int(os.getenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1")) != 0' in text


def branches_on_the_mode(core: Path) -> list[str]:
    """File and condition of every branch of the package that reads a deterministic mode."""
    found = []
    for file in sorted(core.rglob("*.py")):
        text = file.read_text()
        if "determinis" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            condition = ast.unparse(node.test) if isinstance(node, ast.If) else ""
            if re.search(r"deterministic_mode|are_deterministic_algorithms", condition):
                found.append(f"{file.relative_to(core)}: {condition}")
    return found


def test_this_megatron_looks_at_its_mode_in_six_places_and_at_no_fusion(core):
    assert branches_on_the_mode(core) == [
        "extensions/transformer_engine.py: self.config.deterministic_mode",
        "ssm/gated_delta_net.py: causal_conv1d_fn is None or self.config.deterministic_mode",
        "ssm/gated_delta_net.py: self.config.deterministic_mode",
        "tensor_parallel/layers.py: self.deterministic_mode",
        "transformer/moe/moe_utils.py: torch.are_deterministic_algorithms_enabled()",
        "transformer/moe/moe_utils.py: torch.are_deterministic_algorithms_enabled()",
    ]


def test_the_fused_unpermute_of_this_megatron_returns_before_it_looks_at_the_mode(core):
    module = ast.parse((core / "transformer/moe/moe_utils.py").read_text())
    functions = [part for part in module.body if isinstance(part, ast.FunctionDef)]
    [unpermute] = [function for function in functions if function.name == "unpermute"]
    conditions = [ast.unparse(part.test) for part in unpermute.body if isinstance(part, ast.If)]
    assert conditions[0] == "fused"
    assert conditions[-1] == "torch.are_deterministic_algorithms_enabled()"


def test_is_broken_tells_notes_from_findings():
    assert not is_broken(())
    assert not is_broken(check_launch(["--deterministic-mode"], CLEAN))
    assert is_broken(check_launch(["--deterministic-mode"], {}))
