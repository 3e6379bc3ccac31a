"""Manifests of an older collection read and compare: what it did not collect is no difference that
must match, and what it did collect still is one. The file was written by version 1."""

import json
from pathlib import Path

import pytest

from bitstep.contract.classes import MUST, UNKNOWN
from bitstep.contract.manifest import Manifest, compare, read_manifest, refuse_if_different
from bitstep.contract.versions import (
    KEY,
    NOT_COLLECTED,
    RENAMED,
    SINCE,
    VERSION,
    digest_of,
    not_collected,
    upgraded,
    version_of,
)
from bitstep.errors import ContractError

GOLDEN = Path(__file__).parents[1] / "golden" / "manifest-1.json"
NEW = {
    KEY: VERSION,
    "arguments.lr": "0.1",
    "caches.inductor.choices": "none",
    "data.named.config": "aa",
    "environment.PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "groups.0-1.ranks": "0-1",
    "hardware.gpus.count": 0,
    "layout.physical.groups.0-1.backend": "gloo",
    "model.model.digest": "aa",
    "program.uncommitted": None,
    "settings.inductor.max_autotune": False,
    "settings.optimize": 0,
    "software.blas": "mkl",
    "software.distributions.yaml": "6.0",
}


@pytest.fixture
def old(tmp_path: Path) -> Manifest:
    (tmp_path / "manifest.json").write_bytes(GOLDEN.read_bytes())
    return read_manifest(tmp_path)[-1].manifest


def as_collected_now(old: Manifest, **changes: object) -> Manifest:
    keys = upgraded(old.keys) | NEW
    place = "environment.TORCHINDUCTOR_CACHE_DIR"
    keys[place] = digest_of(keys[place])  # a path is kept as a digest now
    return Manifest(keys | {k.replace("__", "."): v for k, v in changes.items()})


def test_it_reads_and_is_version_1(old: Manifest) -> None:
    assert version_of(old.keys) == 1
    assert old.keys["software.torch.version"] == "2.13.0+cpu"
    assert compare(old, old) == ()


def test_what_it_did_not_collect_is_said_so_and_nothing_else_differs(old: Manifest) -> None:
    found = compare(old, as_collected_now(old))
    assert {d.key for d in found} == set(NEW)
    assert {(d.a, d.class_, d.bits) for d in found} == {(NOT_COLLECTED, "may differ", UNKNOWN)}
    assert [d.b for d in compare(as_collected_now(old), old)] == [NOT_COLLECTED] * len(NEW)


def test_a_run_of_the_older_version_may_be_resumed(old: Manifest) -> None:
    refuse_if_different(old, as_collected_now(old))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("settings.threads.torch", 7),
        ("software.distributions.numpy", "1.0"),
        ("environment.MKL_CBWR", "AVX2"),
        ("hardware.cpu.flags.avx9", True),
        ("data.digest", "cc"),
    ],
)
def test_what_both_collected_still_must_match(old: Manifest, key: str, value: object) -> None:
    now = Manifest(as_collected_now(old).keys | {key: value})
    assert [d.key for d in compare(old, now) if d.class_ == MUST] == [key]
    with pytest.raises(ContractError, match=key):
        refuse_if_different(old, now)


def test_between_two_of_this_version_an_absent_key_is_a_difference(old: Manifest) -> None:
    now = as_collected_now(old)
    less = Manifest({k: v for k, v in now.keys.items() if k != "settings.optimize"})
    assert [(d.key, d.class_) for d in compare(now, less)] == [("settings.optimize", MUST)]


def test_a_variable_kept_as_a_digest_equals_its_value_of_old(old: Manifest) -> None:
    name = "environment.NCCL_ODD"
    before = Manifest(dict(old.keys) | {name: "7"})
    same = Manifest(as_collected_now(old).keys | {name: digest_of("7")})
    other = Manifest(as_collected_now(old).keys | {name: digest_of("8")})
    assert name not in {d.key for d in compare(before, same)}
    assert name in {d.key for d in compare(before, other)}


def test_names_of_old_are_those_of_now_and_null_is_absent(old: Manifest) -> None:
    keys = upgraded(old.keys)
    assert not set(RENAMED) & set(keys)
    assert keys["software.distributions.numpy"] == old.keys["software.numpy"]
    assert old.keys["software.triton"] is None
    assert "software.distributions.triton" not in keys


def test_no_key_that_version_1_has_is_one_that_it_did_not_collect(old: Manifest) -> None:
    known = [key for key in old.keys if key not in RENAMED]
    assert [key for key in known if not_collected(key, 1)] == []
    assert all(since <= VERSION for _, since in SINCE)


def test_a_version_that_is_no_number_is_the_oldest() -> None:
    assert [version_of({KEY: value}) for value in ("2", None, 2.0, True)] == [1, 1, 1, 1]


def test_the_golden_file_holds_no_path_of_a_machine() -> None:
    text = json.dumps(json.loads(GOLDEN.read_text()))
    assert "/home/" not in text
    assert str(Path.home()) not in text
