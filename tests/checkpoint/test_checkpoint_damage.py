"""What is not, byte for byte, what was saved is refused by name, and nothing of it is loaded."""

import os
import random
import shutil

import pytest
import torch
from checkpoint_fakes import (
    VALUES,
    blank_of,
    contents,
    files,
    refused,
    reseal,
    run,
    saved,
    state_of,
    tensor_of,
    whole_tensors,
)

from bitstep.checkpoint import newest, restore, save, verify
from bitstep.checkpoint.format import canonical, marker_text, parse
from bitstep.errors import CheckpointError
from bitstep.records import Box
from bitstep.state.streams import Piece

NAMES = [
    "COMPLETE",
    "index.json",
    "rank-00000.safetensors",
    "rank-00001.safetensors",
    "state.json",
]


def test_300_corruptions_uniform_over_all_bytes_are_all_refused_by_name(tmp_path):
    checkpoint = saved(tmp_path)
    whole = files(checkpoint)
    places = [(name, at) for name, content in whole.items() for at in range(len(content))]
    draw = random.Random(300)
    hit = set()
    for name, at in draw.choices(places, k=300):
        damaged = bytearray(whole[name])
        damaged[at] ^= draw.randrange(1, 256)
        (checkpoint / name).write_bytes(damaged)
        refused(checkpoint, name)
        (checkpoint / name).write_bytes(whole[name])
        hit.add(name)
    assert hit == set(NAMES)
    verify(checkpoint)


def test_every_bit_of_the_marker_counts(tmp_path):
    checkpoint = saved(tmp_path, world=1, tensors={("parameters", "w"): torch.zeros(1)})
    whole = (checkpoint / "COMPLETE").read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (checkpoint / "COMPLETE").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="COMPLETE"):
            verify(checkpoint)


def test_a_flipped_bit_names_file_and_tensor(tmp_path):
    checkpoint = saved(tmp_path)
    path = checkpoint / "rank-00001.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    refused(checkpoint, "rank-00001.safetensors", "parameters/norm.weight", world=2)


@pytest.mark.parametrize("name", NAMES)
def test_truncation_and_growth_are_refused(tmp_path, name):
    checkpoint = saved(tmp_path)
    whole = (checkpoint / name).read_bytes()
    for text in (
        b"",
        whole[:1],
        whole[: len(whole) // 2],
        whole[:-1],
        whole + b"\0",
        whole + b"\n",
    ):
        (checkpoint / name).write_bytes(text)
        refused(checkpoint, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_refused(tmp_path, name):
    checkpoint = saved(tmp_path)
    (checkpoint / name).unlink()
    refused(checkpoint, name)


def test_files_of_another_step_are_refused_one_by_one_and_all_but_one(tmp_path):
    earlier = VALUES | {"step": {"step": 10}}
    old = saved(tmp_path, 10, values=earlier)
    new = saved(tmp_path, 20, tensors=whole_tensors(seed=1))
    mine, theirs = files(new), files(old)
    for name in NAMES:
        (new / name).write_bytes(theirs[name])
        refused(new, str(new))
        (new / name).write_bytes(mine[name])
    verify(new)
    for kept in NAMES:
        for name in NAMES:
            (new / name).write_bytes(mine[name] if name == kept else theirs[name])
        refused(new, str(new))


def test_an_old_rank_file_in_place_is_refused_by_name(tmp_path):
    old, new = saved(tmp_path, 10), saved(tmp_path, 20, tensors=whole_tensors(seed=1))
    shutil.copy(old / "rank-00001.safetensors", new)
    refused(new, "rank-00001.safetensors")


def test_index_and_marker_of_another_step_are_refused(tmp_path):
    old, new = saved(tmp_path, 10), saved(tmp_path, 20)
    for name in ("index.json", "COMPLETE"):
        shutil.copy(old / name, new)
    refused(new, "index.json", "step 10", "step-00000010")


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    checkpoint = saved(tmp_path, 10)
    checkpoint.rename(tmp_path / "step-00000020")
    refused(tmp_path / "step-00000020", "index.json", "step 10")


def test_a_checkpoint_under_a_name_of_ones_own_is_fine(tmp_path):
    verify(saved(tmp_path, 10).rename(tmp_path / "best"))


def test_files_swapped_between_processes_are_refused(tmp_path):
    tensors = {("parameters", "w"): torch.arange(8.0), ("moments", "m"): torch.zeros(8)}
    checkpoint = saved(tmp_path, tensors=tensors)
    first, second = checkpoint / NAMES[2], checkpoint / NAMES[3]
    assert first.stat().st_size == second.stat().st_size
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    refused(checkpoint, "rank-0000", tensors=tensors)


@pytest.mark.parametrize("name", ["rank-00002.safetensors", "COMPLETE.tmp", "notes.txt", ".hidden"])
def test_a_file_that_is_not_of_the_checkpoint_is_refused(tmp_path, name):
    checkpoint = saved(tmp_path)
    (checkpoint / name).write_bytes(b"")
    refused(checkpoint, name)


def test_links_and_folders_in_the_place_of_files_are_refused(tmp_path):
    checkpoint = saved(tmp_path)
    for name in NAMES:
        (checkpoint / name).rename(tmp_path / name)
        (checkpoint / name).symlink_to(tmp_path / name)
        refused(checkpoint, name, "not a plain file")
        (checkpoint / name).unlink()
        (checkpoint / name).mkdir()
        refused(checkpoint, name, "not a plain file")
        (checkpoint / name).rmdir()
        os.mkfifo(checkpoint / name)
        refused(checkpoint, name, "not a plain file")
        (checkpoint / name).unlink()
        (tmp_path / name).rename(checkpoint / name)
    verify(checkpoint)


def test_a_link_to_a_checkpoint_is_not_followed(tmp_path):
    checkpoint = saved(tmp_path / "elsewhere")
    (tmp_path / "step-00000020").symlink_to(checkpoint)
    refused(tmp_path / "step-00000020", "not a folder")
    assert newest(tmp_path)[0] is None


def test_a_folder_that_is_not_there_is_an_error_and_no_traceback(tmp_path):
    refused(tmp_path / "step-00000099", "step-00000099", "No such file")


# What follows has a marker that vouches for the index: made by someone, not by an accident.


def edited(edit):
    """Change one field of the tensor parameters/embed.weight or of its first part."""

    def change(index):
        edit(index, tensor_of(index, "parameters/embed.weight"))

    return change


HOSTILE = {
    "a path out of the folder": lambda i, t: t["parts"][0].update(file="../rank-00000.safetensors"),
    "an absolute path": lambda i, t: t["parts"][0].update(file="/etc/passwd"),
    "a part in the JSON": lambda i, t: t["parts"][0].update(file="state.json"),
    "another key": lambda i, t: t["parts"][0].update(key="parameters/embed.weight@1,0"),
    "a part twice": lambda i, t: t["parts"].append(t["parts"][0]),
    "a part lost": lambda i, t: t["parts"].pop(),
    "no parts": lambda i, t: t.update(parts=[]),
    "a part outside": lambda i, t: t["parts"][1].update(offsets=[12, 0]),
    "a part that overlaps": lambda i, t: t["parts"][1].update(offsets=[6, 0]),
    "an empty part": lambda i, t: t["parts"][0].update(sizes=[0, 6]),
    "a part with more dimensions": lambda i, t: t["parts"][0].update(sizes=[7, 6, 1]),
    "a huge part": lambda i, t: t["parts"][0].update(sizes=[2**62, 6]),
    "a huge tensor": lambda i, t: t.update(shape=[2**40, 2**40]),
    "a size above 63 bits": lambda i, t: t.update(shape=[2**70, 6]),
    "a negative size": lambda i, t: t.update(shape=[-13, -6]),
    "a size that is a truth value": lambda i, t: t.update(shape=[True, 6]),
    "a size that is a float": lambda i, t: t.update(shape=[13.0, 6]),
    "a size that is a string": lambda i, t: t.update(shape=["13", 6]),
    "another part sum": lambda i, t: t["parts"][0].update(sums=["0" * 16, "0" * 16]),
    "another digest": lambda i, t: t.update(sums=["0" * 16, "0" * 16]),
    "the digest of one table": lambda i, t: t.update(sums=[t["sums"][0], "0" * 16]),
    "one sum": lambda i, t: t.update(sums=t["sums"][:1]),
    "a sum in capitals": lambda i, t: t.update(sums=["F" * 16, "F" * 16]),
    "an unknown stream": lambda i, t: t.update(stream="weights"),
    "an unknown dtype": lambda i, t: t.update(dtype="float7"),
    "a cast": lambda i, t: t.update(dtype="float64"),
    "a cast of equal width": lambda i, t: t.update(dtype="int32"),
    "a name that is none": lambda i, t: t.update(name=None),
    "an unknown field": lambda i, t: t.update(code="print()"),
    "a lost field": lambda i, t: t.pop("dtype"),
    "a tensor twice": lambda i, t: i["tensors"].append(t),
    "a tensor lost": lambda i, t: i["tensors"].remove(t),
    "tensors in another order": lambda i, t: i["tensors"].reverse(),
    "another root": lambda i, t: i.update(root="0" * 16),
    "another step": lambda i, t: i.update(step=21),
    "another world": lambda i, t: i.update(world=1),
    "a huge world": lambda i, t: i.update(world=2**30),
    "no world": lambda i, t: i.update(world=0),
    "another fingerprint": lambda i, t: i.update(definition="bitstep-2"),
    "an older format": lambda i, t: i.update(format=0),
    "a format that is a truth value": lambda i, t: i.update(format=True),
    "a file too much": lambda i, t: i["files"].update({"../x": i["files"]["state.json"]}),
    "a file lost": lambda i, t: i["files"].pop("rank-00001.safetensors"),
    "a file of another size": lambda i, t: i["files"]["rank-00001.safetensors"].update(bytes=2**50),
    "a file without checksum": lambda i, t: i["files"]["rank-00001.safetensors"].pop("sha256"),
    "another checksum": lambda i, t: i["files"]["rank-00001.safetensors"].update(sha256="0" * 64),
    "values of another checksum": lambda i, t: i["files"]["state.json"].update(sha256="0" * 64),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_an_index_that_makes_no_sense_is_refused_although_the_marker_vouches_for_it(tmp_path, what):
    checkpoint = saved(tmp_path)
    reseal(checkpoint, edited(HOSTILE[what]))
    refused(checkpoint, str(checkpoint))


def test_an_index_that_is_only_resealed_passes(tmp_path):
    checkpoint = saved(tmp_path)
    reseal(checkpoint, lambda index: None)
    verify(checkpoint)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null\n",
        b"[]\n",
        b"7\n",
        b'{"format":1}\n',
        b'{"format":1,"format":1}\n',
        b"[" * 100_000,
        b"9" * 10_000 + b"\n",
        b"\xff\xfe",
        b"NaN\n",
    ],
)
def test_json_that_is_no_index_is_refused(tmp_path, text):
    checkpoint = saved(tmp_path)
    (checkpoint / "index.json").write_bytes(text)
    (checkpoint / "COMPLETE").write_bytes(marker_text(text))
    refused(checkpoint, "index.json")


@pytest.mark.parametrize("text", [b"", b"null\n", b"[]\n", b"{}\n", b"[" * 9999, b"\0" * 100_000])
def test_json_that_is_no_marker_is_refused(tmp_path, text):
    checkpoint = saved(tmp_path)
    (checkpoint / "COMPLETE").write_bytes(text)
    refused(checkpoint, "COMPLETE")


def test_a_newer_format_is_refused_with_what_to_do(tmp_path):
    checkpoint = saved(tmp_path)
    reseal(checkpoint, lambda index: index.update(format=2, novelty=[]))
    refused(checkpoint, "index.json", "format 2", "install a newer one")


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1}\n',
        b'{"a":1}',
        b'{"a":1}\n\n',
        b'{"b":1,"a":1}\n',
        b'{"a":1,"a":1}\n',
        b'{"a":1e0}\n',
        b'{"a":1.00}\n',
        b'{"a":NaN}\n',
        b'{"a":-Infinity}\n',
        b'{"\\u0061":1}\n',
        '{"\u00e9":1}\n'.encode(),
        b'\xef\xbb\xbf{"a":1}\n',
    ],
)
def test_a_value_has_one_text_and_every_other_is_refused(text):
    with pytest.raises(CheckpointError, match=r"x\.json"):
        parse(text, "x.json")


def test_an_unknown_value_stream_is_refused(tmp_path):
    checkpoint = saved(tmp_path)
    text = canonical(VALUES | {"weather": {"wind": 3}})
    (checkpoint / "state.json").write_bytes(text)

    def edit(index):
        from hashlib import sha256

        index["files"]["state.json"] = {"bytes": len(text), "sha256": sha256(text).hexdigest()}

    reseal(checkpoint, edit)
    refused(checkpoint, "state.json", "unknown stream 'weather'")


# A sound checkpoint and a state that is not the one it was saved from.


def restore_into(checkpoint, state):
    before = contents(state)
    with pytest.raises(CheckpointError) as error:
        run(1, lambda p: restore(checkpoint, state, p))
    assert contents(state) == before
    return str(error.value)


def test_a_cast_is_refused_in_both_directions(tmp_path):
    tensors = whole_tensors()
    checkpoint = saved(tmp_path, tensors=tensors)
    cast = {key: whole.bfloat16() for key, whole in tensors.items()}
    assert "is float32 in" in restore_into(checkpoint, state_of(cast))
    same_width = {key: whole.view(torch.int32) for key, whole in tensors.items()}
    assert "and int32 here" in restore_into(checkpoint, state_of(same_width))


def test_another_shape_is_refused_even_with_as_many_elements(tmp_path):
    checkpoint = saved(tmp_path)
    tensors = whole_tensors()
    tensors["parameters", "embed.weight"] = torch.zeros(6, 13)
    message = restore_into(checkpoint, state_of(tensors))
    assert "parameters/embed.weight has shape (13, 6)" in message


def test_a_missing_and_an_unexpected_tensor_are_named(tmp_path):
    checkpoint = saved(tmp_path)
    more, fewer = whole_tensors(), whole_tensors()
    more["buffers", "new"] = torch.zeros(2)
    del fewer["buffers", "router.bias"]
    assert "does not hold the tensor buffers/new" in restore_into(checkpoint, state_of(more))
    assert "holds the tensor buffers/router.bias" in restore_into(checkpoint, state_of(fewer))


def test_a_missing_and_an_unexpected_stream_are_named(tmp_path):
    fewer = {k: v for k, v in VALUES.items() if k != "data"}
    checkpoint = saved(tmp_path, values=fewer)
    assert "does not hold the stream data" in restore_into(checkpoint, state_of(whole_tensors()))
    checkpoint = saved(tmp_path / "all")
    state = state_of(whole_tensors(), values=fewer)
    assert "holds the stream data" in restore_into(checkpoint, state)


def test_a_stream_that_nobody_knows_cannot_be_saved(tmp_path):
    state = state_of(whole_tensors(), values={})
    state.pieces.append(Piece("weather", "wind", torch.zeros(2), Box((2,), (0,), (2,))))
    with pytest.raises(CheckpointError, match="weather/wind: unknown stream 'weather'"):
        run(1, lambda p: save(tmp_path, 20, state, p))


def test_what_is_damaged_between_check_and_load_is_found_after_the_load(tmp_path, monkeypatch):
    import bitstep.checkpoint.load as load
    from bitstep.checkpoint import restore as function

    checkpoint = saved(tmp_path)
    honest = load.read

    def flipping(descriptor, start, nbytes, path):
        data = honest(descriptor, start, nbytes, path)
        data[0] ^= 1
        return data

    monkeypatch.setattr(load, "read", flipping)
    for world in (1, 2):
        with pytest.raises(CheckpointError, match=r"buffers/router\.bias from rank-00000"):
            run(
                world, lambda p: function(checkpoint, blank_of(whole_tensors(), p.rank, p.world), p)
            )
