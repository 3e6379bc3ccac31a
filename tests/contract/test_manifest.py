import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bitstep.contract.classes import CLASSES, DECLARED, MAY, MUST
from bitstep.contract.manifest import (
    ABSENT,
    MAX_BYTES,
    NAME,
    Attempt,
    Manifest,
    Parent,
    append_attempt,
    compare,
    read_manifest,
    refuse_if_different,
)
from bitstep.errors import ContractError, RunError

KEYS: dict[str, Any] = {
    "hardware.cpu.capability": "AVX512",
    "software.torch.version": "2.13.0",
    "settings.threads.torch": 1,
    "environment.MKL_CBWR": "AVX2",
    "recipe.optimizer.lr": 0.001,
    "recipe.run.seed": 7,
    "recipe.run.save_every": 10,
    "data.digest": "aa",
    "data.order": "bb",
    "layout.logical.ranks": 8,
    "layout.physical.processes": 1,
    "program.host": "one",
    "program.command": ["bitstep", "pretrain", "nano"],
}
PARENT: Parent = {"attempt": 0, "step": 20, "root": "0123456789abcdef"}


def changed(declared: tuple[str, ...] = (), **dotted: Any) -> Manifest:
    return Manifest(KEYS | {k.replace("__", "."): v for k, v in dotted.items()}, declared)


MUST_MATCH = [
    ("hardware.cpu.capability", "AVX2"),
    ("hardware.cpu.flags.avx512f", True),
    ("software.torch.version", "2.14.0"),
    ("settings.threads.torch", 2),
    ("environment.MKL_CBWR", "COMPATIBLE"),
    ("environment.OMP_SCHEDULE", "dynamic"),
    ("recipe.optimizer.lr", 0.002),
    ("recipe.run.steps", 50),
    ("data.digest", "cc"),
    ("data.order", "cc"),
    ("layout.logical.ranks", 4),
    ("program.source", "cc"),
    ("key.of.another.version", None),
]
MAY_DIFFER = [
    ("hardware.cpu.cores", 64),
    ("environment.OMP_NUM_THREADS", "4"),
    ("recipe.run.save_every", 5),
    ("recipe.run.keep_last", 5),
    ("recipe.run.eval_every", 5),
    ("recipe.data.folder", "elsewhere"),
    ("layout.physical.processes", 2),
    ("program.host", "two"),
    ("program.time", "2026-01-01T00:00:00+00:00"),
    ("program.pid", 4),
    ("program.command", ["python"]),
    ("program.commit", "cc"),
]


def test_the_same_keys_have_no_difference() -> None:
    assert compare(Manifest(KEYS), changed()) == ()
    refuse_if_different(Manifest(KEYS), changed())


@pytest.mark.parametrize(("key", "value"), MUST_MATCH)
def test_what_must_match_is_refused_with_both_values(key: str, value: Any) -> None:
    now = Manifest(KEYS | {key: value})
    (difference,) = compare(Manifest(KEYS), now)
    assert difference[:4] == (key, MUST, KEYS.get(key, ABSENT), value)
    with pytest.raises(ContractError) as caught:
        refuse_if_different(Manifest(KEYS), now)
    was = json.dumps(KEYS[key]) if key in KEYS else ABSENT
    assert f"{key} was {was}, is {json.dumps(value)} ({difference.reason})" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "value"), MAY_DIFFER)
def test_what_may_differ_is_shown_and_not_refused(key: str, value: Any) -> None:
    now = Manifest(KEYS | {key: value})
    (difference,) = compare(Manifest(KEYS), now)
    assert difference[:4] == (key, MAY, KEYS.get(key, ABSENT), value)
    refuse_if_different(Manifest(KEYS), now)


def test_every_class_says_why_and_the_last_takes_what_is_unknown() -> None:
    assert all(kind in (MUST, MAY) and reason for _, kind, _, reason in CLASSES)
    assert CLASSES[-1][:2] == ("*", MUST)


def test_a_key_that_is_gone_is_a_difference() -> None:
    less = Manifest({k: v for k, v in KEYS.items() if k != "data.digest"})
    assert compare(Manifest(KEYS), less)[0][:4] == ("data.digest", MUST, "aa", ABSENT)
    with pytest.raises(ContractError, match=r'data\.digest was "aa", is \(absent\)'):
        refuse_if_different(Manifest(KEYS), less)


def test_a_key_that_is_null_is_not_absent() -> None:
    assert len(compare(Manifest({"data.x": None}), Manifest({}))) == 1


@pytest.mark.parametrize(("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), ("1", 1), ([1], [1.0])])
def test_values_are_compared_as_json(a: Any, b: Any) -> None:
    assert len(compare(Manifest({"settings.x": a}), Manifest({"settings.x": b}))) == 1
    assert compare(Manifest({"settings.x": a}), Manifest({"settings.x": a})) == ()


def test_must_match_comes_first_then_declared_then_the_rest() -> None:
    now = changed(
        ("recipe.optimizer.lr",), program__host="two", recipe__optimizer__lr=1.0, data__digest="cc"
    )
    assert [d.class_ for d in compare(Manifest(KEYS), now)] == [MUST, DECLARED, MAY]


def test_a_declared_key_is_not_refused_and_takes_along_what_follows_from_it() -> None:
    now = changed(("recipe.run.seed",), recipe__run__seed=8, data__order="cc")
    differences = {d.key: (d.class_, d.reason) for d in compare(Manifest(KEYS), now)}
    assert differences == {
        "recipe.run.seed": (DECLARED, "changed by intent"),
        "data.order": (DECLARED, "follows from recipe.run.seed"),
    }
    refuse_if_different(Manifest(KEYS), now)


def test_a_declared_key_does_not_take_along_what_does_not_follow() -> None:
    now = changed(("recipe.run.seed",), recipe__run__seed=8, data__digest="cc")
    with pytest.raises(ContractError, match=r"data\.digest"):
        refuse_if_different(Manifest(KEYS), now)


def test_what_the_parent_declared_is_not_declared_by_its_child() -> None:
    parent = changed(("recipe.optimizer.lr",), recipe__optimizer__lr=0.1)
    with pytest.raises(ContractError, match=r"recipe\.optimizer\.lr was 0\.1, is 0\.001"):
        refuse_if_different(parent, Manifest(KEYS))


def test_five_are_named_and_the_others_counted() -> None:
    now = Manifest({f"recipe.a.k{n}": n for n in range(8)})
    with pytest.raises(ContractError) as caught:
        refuse_if_different(Manifest({}), now)
    assert [f"recipe.a.k{n} was" in str(caught.value) for n in range(8)] == [True] * 5 + [False] * 3
    assert "; and 3 more: " in str(caught.value)


def test_a_long_or_hostile_value_stays_one_short_plain_line() -> None:
    value = "\n\x1b[2J\u202e" + "x" * 1000
    with pytest.raises(ContractError) as caught:
        refuse_if_different(Manifest({"data.digest": value}), Manifest({}))
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


def test_attempts_are_appended_and_read_back_as_they_were(tmp_path: Path) -> None:
    branch = changed(("recipe.optimizer.lr",), recipe__optimizer__lr=0.1 + 0.2)
    assert append_attempt(tmp_path, Manifest(KEYS), None) == 0
    assert append_attempt(tmp_path, branch, PARENT) == 1
    assert read_manifest(tmp_path) == (
        Attempt(0, None, Manifest(KEYS)),
        Attempt(1, PARENT, branch),
    )
    assert os.listdir(tmp_path) == [NAME]


def test_the_file_is_the_documented_format(tmp_path: Path) -> None:
    append_attempt(tmp_path, Manifest({"a.b": 1}, ("recipe.x",)), PARENT)
    assert json.loads((tmp_path / NAME).read_text()) == {
        "format": 1,
        "attempts": [
            {"attempt": 0, "parent": PARENT, "keys": {"a.b": 1}, "declared": ["recipe.x"]}
        ],
    }


def test_what_a_killed_writer_left_is_ignored_and_overwritten(tmp_path: Path) -> None:
    append_attempt(tmp_path, Manifest(KEYS), None)
    code = (
        "import os, signal, sys, pathlib\n"
        "from bitstep.contract.manifest import Manifest, append_attempt\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)\n"
        "append_attempt(pathlib.Path(sys.argv[1]), Manifest({'a.b': 2}), None)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert [a.manifest.keys for a in read_manifest(tmp_path)] == [KEYS]
    assert append_attempt(tmp_path, Manifest(KEYS), PARENT) == 1
    assert os.listdir(tmp_path) == [NAME]


def test_file_and_folder_are_flushed_around_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        if calls[-1] == "file":
            assert os.fstat(descriptor).st_size > 0
        fsync(descriptor)

    def record_replace(a: Path, b: Path) -> None:
        calls.append("rename")
        replace(a, b)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    append_attempt(tmp_path, Manifest(KEYS), None)
    assert calls == ["file", "rename", "folder"]


def test_a_full_disk_is_one_line_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_attempt(tmp_path, Manifest(KEYS), None)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"manifest\.json: cannot write it: No space left"):
            append_attempt(tmp_path, Manifest(KEYS), PARENT)
    assert os.listdir(tmp_path) == [NAME]
    assert len(read_manifest(tmp_path)) == 1


def test_a_damaged_manifest_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("{")
    with pytest.raises(ContractError, match="not JSON"):
        append_attempt(tmp_path, Manifest(KEYS), None)
    assert (tmp_path / NAME).read_text() == "{"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Path("x"), {1: 2}, b"x"])
def test_what_json_does_not_hold_is_not_written(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ContractError, match=r"a\.b is not a finite JSON value"):
        append_attempt(tmp_path, Manifest({"a.b": value}), None)
    assert os.listdir(tmp_path) == []


def test_a_manifest_too_large_to_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="would pass"):
        append_attempt(tmp_path, Manifest({"a.b": "x" * MAX_BYTES}), None)
    assert os.listdir(tmp_path) == []


def entry(**changes: Any) -> dict[str, Any]:
    return {"attempt": 0, "parent": None, "keys": {"a.b": 1}, "declared": []} | changes


def text(*entries: Any, **changes: Any) -> str:
    return json.dumps({"format": 1, "attempts": list(entries)} | changes)


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


BAD = {
    "empty": ("", "not JSON"),
    "not UTF-8": (b"\xff\xfe{}", "not JSON"),
    "cut": (text(entry())[:-3], "not JSON"),
    "something after it": (text(entry()) + "{}", "not JSON"),
    "NaN": (text(entry(keys={"a.b": float("nan")})), "a.b is not a finite"),
    "a number past float64": (text(entry()).replace(": 1}", ": 1e999}"), "a.b is not a finite"),
    "an endless number": (text(entry()).replace(": 1}", ": " + "9" * 5000 + "}"), "not JSON"),
    "a key twice": (text(entry()).replace('"a.b": 1', '"a.b": 1, "a.b": 2'), "stands twice"),
    "a million brackets": ("[" * 1_000_000, "nested too deep"),
    "a million objects": ('{"a":' * 1_000_000, "nested too deep"),
    "a deep value": (text(entry(keys={"a.b": nested(9)})), "at most 8 levels"),
    "a list": ("[]", "no format number"),
    "no format": (json.dumps({"attempts": [entry()]}), "no format number"),
    "format true": (text(entry(), format=True), "no format number"),
    "format 2": (text(entry(), format=2), "format 2; this version reads 1"),
    "no attempts": (text(), "list of attempts"),
    "attempts a table": (text(attempts={}), "list of attempts"),
    "something more": (text(entry(), more=1), "nothing else"),
    "attempt a number": (text(7), "attempt 0: it must hold"),
    "attempt with more": (text(entry(more=1)), "attempt 0: it must hold"),
    "attempt with less": (text({"attempt": 0}), "attempt 0: it must hold"),
    "numbers swapped": (text(entry(attempt=1), entry()), "attempt 0: its number is another"),
    "number false": (text(entry(attempt=False)), "its number is another"),
    "parent a number": (text(entry(parent=1)), "its parent is not"),
    "parent without root": (text(entry(parent={"attempt": 0, "step": 1})), "its parent is not"),
    "parent before 0": (text(entry(parent=PARENT | {"step": -1})), "its parent is not"),
    "parent attempt text": (text(entry(parent=PARENT | {"attempt": "0"})), "its parent is not"),
    "root too short": (text(entry(parent=PARENT | {"root": "abc"})), "its parent is not"),
    "root a number": (text(entry(parent=PARENT | {"root": 1})), "its parent is not"),
    "keys a list": (text(entry(keys=[])), "its keys are not"),
    "a key with an escape": (text(entry(keys={"a\x1b[2J": 1})), "its keys are not"),
    "a key too long": (text(entry(keys={"a" * 201: 1})), "its keys are not"),
    "an empty key": (text(entry(keys={"": 1})), "its keys are not"),
    "declared text": (text(entry(declared="a.b")), "its declared keys are not"),
    "declared numbers": (text(entry(declared=[1])), "its declared keys are not"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_manifest_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, named = BAD[name]
    (tmp_path / NAME).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ContractError) as caught:
        read_manifest(tmp_path)
    assert named in str(caught.value)
    assert str(tmp_path / NAME) in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_size_is_looked_at_before_anything_is_read(tmp_path: Path) -> None:
    with (tmp_path / NAME).open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ContractError, match="1099511627776 bytes, more than"):
        read_manifest(tmp_path)


def test_a_missing_manifest_a_link_a_pipe_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="No such file or directory; name the directory of a"):
        read_manifest(tmp_path)
    append_attempt(tmp_path, Manifest(KEYS), None)
    (tmp_path / NAME).rename(tmp_path / "elsewhere")
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ContractError, match="name the directory of a run"):
        read_manifest(tmp_path)
    (tmp_path / NAME).unlink()
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(ContractError, match="not a regular file"):
        read_manifest(tmp_path)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    with pytest.raises(ContractError, match="Is a directory"):
        read_manifest(tmp_path)


def test_comparing_and_reading_do_not_import_torch() -> None:
    code = (
        "import sys, bitstep.contract.manifest, bitstep.contract.collect; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
