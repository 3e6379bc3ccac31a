"""Files that someone made, with a marker that vouches for them, are refused all the same."""

import pytest
from checkpoint_fakes import (
    VALUES,
    refused,
    reseal,
    saved,
    tensor_of,
)

from bitstep.checkpoint import verify
from bitstep.checkpoint.format import canonical, marker_text, parse
from bitstep.errors import CheckpointError


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


def moved(offsets, sizes):
    """Move the second part of a tensor, its key and all."""

    def change(index, tensor):
        key = f"parameters/embed.weight@{','.join(map(str, offsets))}"
        tensor["parts"][1].update(offsets=offsets, sizes=sizes, key=key)

    return change


def renamed_stream(index, tensor):
    for part in tensor["parts"]:
        part["key"] = part["key"].replace("parameters/", "weights/")
    tensor["stream"] = "weights"
    index["tensors"].sort(key=lambda t: (t["stream"], t["name"]))


CONSISTENT = {
    "unknown stream 'weights'": renamed_stream,
    "the part at (6, 0) overlaps another one": moved([6, 0], [6, 6]),
    "is not inside (13, 6)": moved([8, 0], [6, 6]),
    "the parts hold 72 of 78 elements": moved([7, 0], [5, 6]),
    "the part sums do not add up": lambda i, t: t.update(sums=[t["sums"][1], t["sums"][0]]),
    "the root is not that": lambda i, t: i.update(root="0" * 16),
    "is not the key of this part": lambda i, t: t["parts"][0].update(key="x@0,0"),
    "is not the file of a process": lambda i, t: t["parts"][0].update(file="state.json"),
    "once and in order": lambda i, t: i["tensors"].reverse(),
}


@pytest.mark.parametrize("message", CONSISTENT)
def test_each_rule_of_the_index_refuses_with_its_own_sentence(tmp_path, message):
    checkpoint = saved(tmp_path)
    reseal(checkpoint, edited(CONSISTENT[message]))
    refused(checkpoint, "index.json", message)


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


def test_bytes_after_the_last_part_are_refused_although_the_index_counts_them(tmp_path):
    checkpoint = saved(tmp_path)
    name = "rank-00001.safetensors"
    with open(checkpoint / name, "ab") as file:
        file.write(b"junk")
    size = (checkpoint / name).stat().st_size
    reseal(checkpoint, lambda index: index["files"][name].update(bytes=size))
    refused(checkpoint, name, "other parts")
