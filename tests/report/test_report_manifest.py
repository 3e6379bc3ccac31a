"""What differs between two manifests, on one screen: ranked, with reasons, many as one line."""

import json

from bitstep.contract.manifest import Manifest, compare
from bitstep.report.manifest import (
    LINES,
    WIDTH,
    differences_json,
    differences_text,
    head,
    manifest_lines,
)

A = {
    "data.digest": "aa",
    "settings.threads.torch": 1,
    "environment.OMP_NUM_THREADS": "1",
    "program.host": "east",
    "program.pid": 1,
}
B = {
    "data.digest": "bb",
    "settings.threads.torch": 2,
    "environment.OMP_NUM_THREADS": "2",
    "program.host": "west",
    "program.pid": 2,
}
MANY = {f"software.distributions.lib{n}": "1.0" for n in range(100)}
NEWER = dict.fromkeys(MANY, "1.1")


def text(a: dict[str, object], b: dict[str, object], verbose: bool = False) -> list[str]:
    return differences_text(compare(Manifest(a), Manifest(b)), verbose).split("\n")


def test_differences_stand_under_whether_they_can_change_bits_with_the_reason() -> None:
    assert text(A, B) == [
        "4 keys differ, 2 of which must match",
        "changes bits (1)",
        "  data.digest: aa in A, bb in B (must match: other data, or in another order)",
        "can change bits (1)",
        "  settings.threads.torch: 1 in A, 2 in B (must match: the order of summation depends on "
        "it)",
        "through another key (1)",
        "  environment.OMP_NUM_THREADS (may differ: the threads in force are compared instead)",
        "cannot change bits (1)",
        "  program.host: east in A, west in B (may differ: the hardware is compared, not its name)",
    ]


def test_what_always_differs_is_no_difference_to_show() -> None:
    assert text({"program.pid": 1}, {"program.pid": 2}) == ["no key differs"]
    assert text({"program.pid": 1}, {"program.pid": 2}, verbose=True)[1:] == [
        "cannot change bits (1)",
        "  program.pid: 1 in A, 2 in B (may differ: it says which execution this was)",
    ]


def test_a_hundred_other_versions_are_one_line_and_a_hundred_when_asked_for() -> None:
    lines = text(MANY, NEWER)
    assert lines[:3] == [
        "100 keys differ, 100 of which must match",
        "can change bits (100)",
        "  100 keys of software.distributions (must match: its code may be another)",
    ]
    assert len(lines) == 4
    assert len(text(MANY, NEWER, verbose=True)) == 102


def test_whatever_differs_the_first_screen_is_one() -> None:
    wide = {f"{section}.x{n}.y{n}": "v" * 99 for n in range(40) for section in (
        "hardware", "environment", "data", "layout.physical", "caches", "recipe", "groups",
        "program", "made-up", "software", "settings", "arguments", "model",
    )}  # fmt: skip
    lines = text(wide | MANY | A, {k: f"{v}\x1b[2J\n" for k, v in (wide | MANY).items()} | B)
    assert len(lines) <= LINES
    assert all(len(line) <= WIDTH and line.isprintable() for line in lines)
    assert sum("more lines with -v" in line for line in lines) >= 3


def test_the_json_has_every_difference_in_the_order_of_the_screen() -> None:
    found = json.loads(json.dumps(differences_json(compare(Manifest(A | MANY), Manifest(B)))))
    assert list(found[0]) == ["key", "class", "bits", "a", "b", "reason"]
    assert len(found) == 105
    assert [one["key"] for one in found[:2]] == ["data.digest", "settings.threads.torch"]


def test_above_a_comparison_stand_three_lines_at_most_and_one_for_the_rest() -> None:
    lines = list(head(compare(Manifest(A), Manifest(B))))
    assert lines == [
        "changes bits: data.digest: aa in A, bb in B (other data, or in another order)",
        "can change bits: settings.threads.torch: 1 in A, 2 in B (the order of summation depends "
        "on it)",
        "through another key: environment.OMP_NUM_THREADS: 1 in A, 2 in B (the threads in force "
        "are compar...",
    ]
    many = list(head(compare(Manifest(A | MANY), Manifest(B | NEWER))))
    assert len(many) == 5
    assert many[3] == "and 99 more settings that can change bits (bitstep manifest diff)"
    assert list(head(compare(Manifest(A), Manifest(A)))) == []
    assert all(len(line) <= WIDTH for line in many)


def test_the_keys_of_one_manifest_are_lines_and_many_of_a_kind_are_one() -> None:
    keys = {"a.b": 1, "hardware.cpu.flags.avx": True, "hardware.cpu.flags.fma": True,
            "software.distributions.numpy": "2", "software.distributions.yaml": "6"}  # fmt: skip
    assert list(manifest_lines(keys)) == [
        "a.b = 1",
        "hardware.cpu.flags.* = avx, fma",
        "software.distributions.* = numpy 2, yaml 6",
    ]
    assert len(list(manifest_lines(keys, verbose=True))) == 5
