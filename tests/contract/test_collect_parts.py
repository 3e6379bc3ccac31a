"""The parts of a manifest that ask something else than torch: caches, placement, model, classes."""

import json
import os
from pathlib import Path

import pytest
import torch

from bitstep.contract import caches as caches_module
from bitstep.contract.caches import caches
from bitstep.contract.classes import (
    CAN,
    CHANGES,
    CLASSES,
    MAY,
    MUST,
    ONE_SIDED,
    RANKED,
    TOOLS,
    classify,
)
from bitstep.contract.hardware import driver, hardware
from bitstep.contract.manifest import Manifest, append_attempt, compare
from bitstep.contract.model import LINES, models
from bitstep.contract.placement import newest, node, placed, ranks
from bitstep.contract.versions import KEY, VERSION

INDUCTOR = ["torch._inductor.config"]


def cached(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def asked(folder: Path) -> dict[str, str]:
    return caches({"TORCHINDUCTOR_CACHE_DIR": str(folder)}, INDUCTOR)["inductor"]


def test_the_identity_of_a_cache_is_its_choices_and_graphs(tmp_path: Path) -> None:
    empty = asked(tmp_path)
    assert (empty["choices"], empty["graphs"]) == ("none", "none")
    cached(tmp_path, "ab/x.py", "compiled code is no choice")
    cached(tmp_path, "fxgraph/cd/key1", "")
    assert asked(tmp_path)["choices"] == "none"
    assert asked(tmp_path)["graphs"].startswith("1 files sha256:")
    cached(tmp_path, "ab/x.best_config", '{"num_warps": 4}')
    one = asked(tmp_path)["choices"]
    cached(tmp_path, "ab/x.best_config", '{"num_warps": 8}')
    other = asked(tmp_path)["choices"]
    assert one != other
    assert one.startswith("1 files sha256:")
    cached(tmp_path, "ab/x.best_config", '{"num_warps": 4}')
    assert asked(tmp_path)["choices"] == one


def test_a_cache_is_looked_at_only_so_far_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches_module, "BYTES", 8)
    for at in range(4):
        cached(tmp_path, f"ab/{at}.best_config", "12345")
    assert asked(tmp_path)["choices"].endswith(", not all of them read")


def test_the_caches_of_compilers_that_were_not_imported_are_nobodys_business() -> None:
    assert caches(os.environ, []) == {}


def claim(attempt: Path, rank: int, **fields: object) -> None:
    folder = attempt if rank < 1000 else attempt / f"ranks-{rank // 1000:05d}"
    folder.mkdir(parents=True, exist_ok=True)
    said = {"host": "a pid:[1]", "pid": rank, "started": 1000 + rank, "world": 4} | fields
    (folder / f"claim-{rank:05d}.json").write_text(json.dumps(said))


def test_ranks_hosts_and_the_order_of_starts_are_put_together_from_claims(tmp_path: Path) -> None:
    for rank, host in enumerate(["a pid:[1]", "a pid:[2]", "b pid:[1]", "a pid:[3]"]):
        claim(tmp_path, rank, host=host)
    assert placed(tmp_path) == {"layout.physical.hosts": ["a: 0-1", "b: 2", "a: 3"]}
    claim(tmp_path, 2, host="a", started=5000)
    claim(tmp_path, 1000, started=200)
    assert placed(tmp_path) == {
        "layout.physical.hosts": ["a: 0-3,1000"],
        "layout.physical.started": ["1000", "0-1,3", "2"],
    }
    assert ranks([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_claims_that_are_damaged_or_hostile_are_passed_by(tmp_path: Path) -> None:
    claim(tmp_path, 0)
    claim(tmp_path, 1, host=["x"] * 5, started="soon")
    (tmp_path / "claim-00002.json").write_text("{" * 9000)
    (tmp_path / "claim-00003.json").symlink_to(tmp_path / "claim-00000.json")
    os.mkfifo(tmp_path / "claim-00004.json")
    (tmp_path / "claim-00005.json").mkdir()
    assert placed(tmp_path) == {"layout.physical.hosts": ["a: 0", "unknown: 1"]}
    assert placed(tmp_path / "nowhere") == {}


def test_the_newest_manifest_has_where_its_ranks_were(tmp_path: Path) -> None:
    append_attempt(tmp_path, Manifest({"a.b": 1}), None)
    claim(tmp_path / "attempt-000", 0)
    assert newest(tmp_path).keys == {"a.b": 1}  # one process says all itself
    claim(tmp_path / "attempt-000", 1)
    assert newest(tmp_path).keys["layout.physical.hosts"] == ["a: 0-1"]


def test_a_launcher_says_how_many_nodes_there_are() -> None:
    assert node({"GROUP_WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "8"}) == {"nodes": 3, "on_a_node": 8}
    assert node({"SLURM_NNODES": "2", "LOCAL_WORLD_SIZE": "x"}) == {"nodes": 2}
    assert node({}) == {}


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, width)


def digest(module: torch.nn.Module) -> str:
    return str(models([("m", module)])["m"]["digest"])


def test_another_class_name_shape_dtype_or_buffer_is_another_model() -> None:
    def net(**changes: int) -> torch.nn.Module:
        return torch.nn.Sequential(Block(changes.get("width", 2)), torch.nn.ReLU())

    buffered, renamed = net(), net()
    buffered.register_buffer("b", torch.zeros(1))
    renamed.add_module("2", torch.nn.ReLU())
    others = [net(width=3), net().double(), buffered, renamed, torch.nn.Sequential(Block(2))]
    assert len({digest(net()), *map(digest, others)}) == 6
    assert digest(net()) == digest(net())


def test_the_tree_of_a_model_is_short() -> None:
    deep = torch.nn.Sequential(*(Block(2) for _ in range(48)))
    assert models([("Net#1", deep)])["Net-1"]["tree"] == [
        "Sequential", "*: Block x 48", "*.up: Linear x 48",
    ]  # fmt: skip
    wide = torch.nn.ModuleDict({f"part{n}": torch.nn.ReLU() for n in range(90)})
    tree = models([("m", wide)])["m"]["tree"]
    assert (len(tree), tree[-1]) == (LINES + 1, "and 51 more")


def test_a_lazy_parameter_has_no_shape_yet() -> None:
    assert models([("m", torch.nn.LazyLinear(3))])["m"]["parameters"] == 2


def test_the_hardware_is_the_first_processors_and_no_gpu_is_woken() -> None:
    found = hardware(torch, uses_gpu=False)
    assert found["cpu"]["model"]
    assert (found["gpu"], found["gpus"]) == ([], {"count": 0})
    assert driver() is None or driver()


def test_every_class_has_a_reason_and_says_whether_it_can_change_bits() -> None:
    assert all(
        kind in (MUST, MAY) and bits in RANKED and reason for _, kind, bits, reason in CLASSES
    )
    # What must match can change bits: nobody is held up for anything else.
    assert {bits for _, kind, bits, _ in CLASSES if kind == MUST} == {CHANGES, CAN}


def test_every_section_and_every_word_of_the_classes_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text()
    sections = {pattern.split(".")[0] for pattern, *_ in CLASSES} - {"*"}
    assert [name for name in sorted(sections) if f"`{name}." not in page] == []
    assert [word for word in (*RANKED, MUST, MAY) if f"| {word} |" not in page] == []


def test_what_only_one_run_imported_may_differ_and_another_version_must_match() -> None:
    for key in ("software.distributions.numpy", "program.files.net"):
        now = {KEY: VERSION}
        (both,) = compare(Manifest(now | {key: "1"}), Manifest(now | {key: "2"}))
        (one,) = compare(Manifest(now | {key: "1"}), Manifest(now))
        assert (both.class_, both.bits) == (MUST, CAN)
        assert (one.class_, one.bits, one.reason) == (MAY, CAN, ONE_SIDED[0][1].reason)


def test_a_tool_of_another_version_cannot_change_bits() -> None:
    assert {classify(f"software.distributions.{name}").bits for name in TOOLS} == {
        "cannot change bits"
    }
