"""Indexed datasets: those of megatron-core read here, ours read there, and hostile ones refused."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstep.data.build import build
from bitstep.data.indexed import HEADER, IndexedDataset
from bitstep.data.indexed_writer import IndexedWriter, dtype_for
from bitstep.data.packing import GptSamples, split_ranges
from bitstep.data.tokens import ByteTokens
from bitstep.errors import DataError

ROOT = Path(__file__).parents[2]

DTYPES = ["uint8", "int8", "int16", "int32", "int64", "uint16"]
DOCUMENTS = [[[1, 2, 3], [4]], [], [[], [5, 6]], [[7]], []]
"""Documents of sequences; some have none, some an empty one."""


CASES = [
    # name, seed, length, epochs, split, part of the split
    ("ours", 1234, 64, 0.1, "100,0,0", 0),
    ("ours", 1, 64, 1.0, "100,0,0", 0),
    ("ours", 1, 64, 1.95, "100,0,0", 0),
    ("ours", 1, 64, 1.5, "100,0,0", 0),
    ("ours", 7, 511, 3.4, "100,0,0", 0),
    ("ours", 7, 100, 2.3, "8,3,2", 0),
    ("ours", 2**32 - 1, 33, 1.2, "8,3,2", 1),
    ("theirs-int32", 5, 3, 5.0, "100,0,0", 0),
    ("theirs-int32", 5, 1, 6.0, "100,0,0", 0),
    ("theirs-int32", 6, 20, 30.0, "100,0,0", 0),
]
LAST_EPOCH_APART = range(3, 7)
SPLITS = [("969,30,1", 1000), ("969,30,1", 13), ("98,2", 77), ("1", 5), ("0.1,0.2,0.7", 333)]


def with_samples(folder, name, seed, length, epochs, split, part):
    tokens = 7
    if name == "ours":
        dataset = IndexedDataset.open(folder / name)
        chosen = split_ranges(split, len(dataset))[part]
        tokens = int(dataset.lengths[chosen.start : chosen.stop].sum())
    samples = int(epochs * tokens / length)
    words = {"name": name, "seed": seed, "length": length, "samples": samples}
    return {**words, "split": split, "part": part}


def cases_of(folder):
    return json.loads((folder / "wanted.json").read_text())["cases"]


@pytest.fixture(scope="module")
def megatron(tmp_path_factory):
    """The folder of `megatron_reads`, after its process has been there: imports take seconds."""
    folder = tmp_path_factory.mktemp("megatron")
    (folder / "text").mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, folder / "text")
    build(folder / "text", folder / "ours", ByteTokens())
    cases = [with_samples(folder, *words) for words in CASES]
    wanted = {"dtypes": DTYPES, "documents": DOCUMENTS, "cases": cases, "splits": SPLITS}
    (folder / "wanted.json").write_text(json.dumps(wanted))
    program = Path(__file__).with_name("megatron_reads.py")
    done = subprocess.run(
        [sys.executable, program, folder], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return folder


def write_dataset(prefix, documents, dtype="<u2"):
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for document in documents:
            writer.add(np.array(document, np.int64), end=9)
    return IndexedDataset.open(prefix)


@pytest.fixture
def prefix(tmp_path):
    write_dataset(tmp_path / "tiny", [[1, 2], [], [3, 4, 5], [6], [7]])
    return tmp_path / "tiny"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_megatron_wrote_is_read_here(megatron, dtype):
    dataset = IndexedDataset.open(megatron / f"theirs-{dtype}")
    assert dataset.tokens.dtype == dtype
    sequences = [sequence for document in DOCUMENTS for sequence in document]
    assert [dataset[number].tolist() for number in range(len(dataset))] == sequences
    assert np.diff(dataset.documents).tolist() == [len(document) for document in DOCUMENTS]
    assert dataset.document_offsets().tolist() == [0, 4, 4, 6, 7, 7]


def test_what_was_built_here_is_read_by_megatron(megatron):
    mine, theirs = IndexedDataset.open(megatron / "ours"), np.load(megatron / "read.npz")
    assert theirs["dtype"] == "uint16" == mine.tokens.dtype
    assert theirs["documents"].tolist() == mine.documents.tolist()
    assert theirs["lengths"].tolist() == mine.lengths.tolist()
    assert theirs["tokens"].tolist() == mine.tokens.tolist()
    pages = sorted((megatron / "text").iterdir())
    for number, page in enumerate(pages):
        assert mine[number].tolist() == [*page.read_bytes(), 256]
    assert len(mine) == len(pages)


def samples_of(folder, order):
    dataset = IndexedDataset.open(folder / order["name"])
    return GptSamples(
        dataset,
        seed=order["seed"],
        length=order["length"],
        samples=order["samples"],
        documents=split_ranges(order["split"], len(dataset))[order["part"]],
    )


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: str(CASES[n]))
def test_samples_are_those_of_megatrons_gpt_dataset(megatron, number):
    case, theirs = cases_of(megatron)[number], np.load(megatron / f"samples-{number}.npy")
    samples = samples_of(megatron, case)
    assert len(samples) == len(theirs) >= case["samples"]
    for index, row in enumerate(theirs):
        assert np.array_equal(samples[index], row), index


@pytest.mark.parametrize("change", [{"seed": 2}, {"samples": 10}, {"split": "8,3,2"}])
def test_the_comparison_with_megatron_can_fail(megatron, change):
    samples = samples_of(megatron, {**cases_of(megatron)[3], **change})
    theirs = np.load(megatron / "samples-3.npy")
    assert any(not np.array_equal(samples[index], theirs[index]) for index in range(20))


def test_the_cases_have_last_epochs_of_both_kinds(megatron):
    # Shuffled apart, the first samples shown are all of the first part of the stream.
    for number, case in enumerate(cases_of(megatron)[:7]):
        order = samples_of(megatron, case)._order
        whole = [k for k in range(2, order.size) if order[:k].max() < k]
        assert bool(whole) == (number in LAST_EPOCH_APART), case


def naive(dataset, seed, length, samples):
    random = np.random.RandomState(seed)
    epoch = dataset.tokens.size
    epochs = next(n for n in range(1, 10**6) if n * epoch >= samples * length + 1)
    before = ((epochs - 1) * epoch - 1) // length
    apart = epochs > 1 and samples - before < int(0.8 * ((epoch - 1) // length))
    numbers = []
    for count in (epochs - 1, 1) if apart else (epochs,):
        part = np.array(list(range(len(dataset))) * count)
        random.shuffle(part)
        numbers += part.tolist()
    stream = [int(token) for number in numbers for token in dataset[number]]
    total = (len(stream) - 1) // length
    order = []
    for part in ([*range(before)], [*range(before, total)]) if apart else ([*range(total)],):
        shuffled = np.array(part, int)
        random.shuffle(shuffled)
        order += shuffled.tolist()
    return [stream[s * length : s * length + length + 1] for s in order]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 30),
    samples=st.integers(1, 60),
)
def test_samples_are_the_stream_cut_one_by_one(tmp_path_factory, sizes, seed, length, samples):
    documents = [[100 * number + k for k in range(size)] for number, size in enumerate(sizes)]
    dataset = write_dataset(tmp_path_factory.mktemp("d") / "d", documents)
    mine = GptSamples(dataset, seed=seed, length=length, samples=samples)
    expected = naive(dataset, seed, length, samples)
    assert [mine[index].tolist() for index in range(len(mine))] == expected
    assert {len(sample) for sample in expected} == {length + 1}


def test_a_sample_names_the_sequences_it_is_made_of(megatron):
    dataset = IndexedDataset.open(megatron / "theirs-int32")
    samples = GptSamples(dataset, seed=3, length=4, samples=20)
    holds = {n: set(dataset[n].tolist()) for n in range(len(dataset))}
    for index in range(len(samples)):
        named = samples.documents_of(index)
        assert all(holds[number] & set(samples[index].tolist()) for number in named)
        assert set(samples[index].tolist()) <= set().union(*(holds[n] for n in named))


def test_a_sample_of_a_long_document_does_not_read_all_of_it(tmp_path):
    dataset = write_dataset(tmp_path / "long", [np.zeros(2_000_000)])
    samples = GptSamples(dataset, seed=1, length=8, samples=5)
    tracemalloc.start()
    samples[3]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 2**32}, "seed 4294967296: this order takes one from 0 to 4294967295"),
        ({"seed": -1}, "seed -1"),
        ({"length": 0}, "5 samples of 0 tokens: ask for at least one of each"),
        ({"samples": 0}, "0 samples of 3 tokens"),
        ({"documents": range(6)}, r"range\(0, 6\) of .*tiny: it has 5 sequences; stay inside"),
        ({"documents": range(2, 2)}, "holds no token; choose a larger part"),
    ],
)
def test_an_order_that_cannot_be_meant_is_refused(prefix, change, words):
    with pytest.raises(DataError, match=words):
        GptSamples(IndexedDataset.open(prefix), **{"seed": 1, "length": 3, "samples": 5, **change})


def test_a_sample_outside_is_refused(prefix):
    samples = GptSamples(IndexedDataset.open(prefix), seed=1, length=3, samples=4)
    for index in (-1, len(samples)):
        with pytest.raises(DataError, match=f"sample {index}: there are 0 to 6; name one of them"):
            samples[index]


@pytest.mark.parametrize("split", ["", "1,2,3,4", "0,0", "-1,2", "a,b", "nan,1", "inf"])
def test_a_split_that_cannot_be_meant_is_refused(split):
    with pytest.raises(DataError, match="write the shares of train, valid, test, as in 969,30,1"):
        split_ranges(split, 10)


def test_a_split_is_that_of_megatron(megatron):
    theirs = json.loads((megatron / "splits.json").read_text())
    for (split, sequences), ends in zip(SPLITS, theirs, strict=True):
        mine = split_ranges(split, sequences)
        assert [[part.start, part.stop] if part else None for part in mine] == ends


def test_a_split_covers_every_sequence_once():
    for split, sizes in (("969,30,1", [969, 30, 1]), ("1", [1000, 0, 0]), ("98,2", [980, 20, 0])):
        parts = split_ranges(split, 1000)
        assert [len(part) for part in parts] == sizes
        assert [number for part in parts for number in part] == list(range(1000))


def test_the_bytes_of_an_index_are_these(tmp_path):
    write_dataset(tmp_path / "two", [[1, 2], []])
    expected = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3)
    expected += struct.pack("<2i2q3q", 3, 1, 0, 6, 0, 1, 2)
    assert (tmp_path / "two.idx").read_bytes() == expected
    assert (tmp_path / "two.bin").read_bytes() == struct.pack("<4H", 1, 2, 9, 9)


@pytest.mark.parametrize(("below", "dtype"), [(65_499, "uint16"), (65_500, "int32")])
def test_small_vocabularies_are_stored_as_uint16(below, dtype):
    assert dtype_for(below) == dtype


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 2**15)), min_size=1), dtype=st.sampled_from(DTYPES)
)
def test_what_is_written_is_read(tmp_path_factory, documents, dtype):
    documents = [[token % 128 for token in document] for document in documents]
    dataset = write_dataset(tmp_path_factory.mktemp("d") / "d", documents, dtype)
    assert [dataset[n].tolist() for n in range(len(dataset))] == [[*d, 9] for d in documents]
    assert dataset.documents.tolist() == list(range(len(documents) + 1))


def test_tokens_are_views_of_a_mapping_that_cannot_be_written(prefix):
    dataset = IndexedDataset.open(prefix)
    for view in (dataset.tokens, dataset[0], dataset.lengths, dataset.pointers, dataset.documents):
        assert not view.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_a_file_larger_than_memory_is_opened_without_reading_it(tmp_path):
    tokens = 2**31 - 1
    with open(tmp_path / "big.bin", "wb") as file:
        file.truncate(16 * tokens)  # 32 GiB, none of it on the disk
    index = HEADER.pack(b"MMIDIDX\0\0", 1, 5, 2, 3)
    index += struct.pack("<2i2q3q", tokens, tokens, 0, 8 * tokens, 0, 1, 2)
    (tmp_path / "big.idx").write_bytes(index)
    tracemalloc.start()
    dataset = IndexedDataset.open(tmp_path / "big")
    assert dataset[1][-3:].tolist() == [0, 0, 0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def patched(prefix, offset, kind, value):
    path = Path(f"{prefix}.idx")
    content = bytearray(path.read_bytes())
    struct.pack_into(kind, content, offset, value)
    path.write_bytes(content)


LENGTHS, POINTERS, BOUNDARIES = 34, 34 + 5 * 4, 34 + 5 * 12


@pytest.mark.parametrize(
    ("offset", "kind", "value", "words"),
    [
        (0, "<B", 0, r"begins with .*, not b'MMIDIDX"),
        (9, "<Q", 2, "version 2; only 1 is known"),
        (17, "<B", 0, "dtype code 0 is none of tokens; those are 1 uint8, "),
        (17, "<B", 7, "dtype code 7 is none of tokens"),
        (17, "<B", 5, "sequence 1 begins at byte 6, which is not where"),
        (17, "<B", 2, "sequence 1 begins at byte 6, which is not where"),
        (18, "<Q", 2**61, "take 27670116110564327506; it is damaged or cut"),
        (18, "<Q", 6, "142 bytes, and 6 sequences with 6 boundaries of documents take 154"),
        (26, "<Q", 2**63, "142 bytes, and 5 sequences with 9223372036854775808 boundaries"),
        (LENGTHS, "<i", -1, "sequence 0 has length -1; it is damaged"),
        (LENGTHS + 16, "<i", 3, "its sequences reach at least byte 26 and the .bin has 24"),
        (LENGTHS + 16, "<i", 1, "its sequences reach byte 22 and the .bin has 24"),
        (LENGTHS, "<i", 2**31 - 1, "sequence 1 begins at byte 6, which is not where"),
        (POINTERS, "<q", -2, "sequence 0 begins at byte -2, which is not where the one before it"),
        (POINTERS + 8, "<q", 2**62, "sequence 1 begins at byte 4611686018427387904"),
        (POINTERS + 8, "<q", 7, "sequence 1 begins at byte 7"),
        (BOUNDARIES, "<q", 1, "its documents do not go from 0 to 5"),
        (BOUNDARIES + 40, "<q", 4, "its documents do not go from 0 to 5"),
        (BOUNDARIES + 8, "<q", 3, "document 1 ends before it begins"),
        (BOUNDARIES + 8, "<q", -1, "document 0 ends before it begins"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(prefix, offset, kind, value, words):
    patched(prefix, offset, kind, value)
    with pytest.raises(DataError, match=words) as caught:
        IndexedDataset.open(prefix)
    assert str(caught.value).startswith(str(prefix))
    assert str(caught.value).isprintable()


def test_every_flipped_bit_is_refused_or_moves_a_boundary_of_documents(prefix):
    whole, good = Path(f"{prefix}.idx").read_bytes(), IndexedDataset.open(prefix)
    digest, tokens = good.scan.digest, good.tokens.tolist()
    read = 0
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        Path(f"{prefix}.idx").write_bytes(flipped)
        try:
            dataset = IndexedDataset.open(prefix)
        except DataError:
            continue
        read += 1
        assert bit // 8 >= BOUNDARIES
        assert dataset.tokens.tolist() == tokens
        assert dataset.scan.digest != digest
        assert (np.diff(dataset.document_offsets()) >= 0).all()
    assert 0 < read < 12


def test_every_cut_and_every_longer_file_is_refused(prefix):
    for suffix in (".idx", ".bin"):
        path = Path(f"{prefix}{suffix}")
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            with pytest.raises(DataError, match=r"cut|no index|no tokens|the \.bin has"):
                IndexedDataset.open(prefix)
        for more in (b"\0", b"\0\0", b"\0" * 8):
            path.write_bytes(whole + more)
            with pytest.raises(DataError, match=r"cut|no tokens|the \.bin has"):
                IndexedDataset.open(prefix)
        path.write_bytes(whole)
    assert len(IndexedDataset.open(prefix)) == 5


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=200), header=st.booleans())
def test_any_bytes_are_refused_in_one_line(tmp_path_factory, content, header):
    folder = tmp_path_factory.mktemp("d")
    magic = b"MMIDIDX\0\0" + struct.pack("<QB", 1, 8) if header else b""
    (folder / "x.idx").write_bytes(magic + content)
    (folder / "x.bin").write_bytes(b"\0" * 26)
    with pytest.raises(DataError) as caught:
        IndexedDataset.open(folder / "x")
    assert str(caught.value).isprintable()


def test_a_multimodal_dataset_is_refused_by_name(megatron):
    with pytest.raises(DataError, match=r"modes\.idx: has modes, so it is multimodal"):
        IndexedDataset.open(megatron / "modes")


def test_what_is_missing_a_link_or_no_file_is_refused(prefix, tmp_path):
    with pytest.raises(DataError, match=r"absent\.idx: No such file"):
        IndexedDataset.open(tmp_path / "absent")
    with pytest.raises(DataError, match="null"):
        IndexedDataset.open("a\0b")
    for suffix in (".idx", ".bin"):
        path = tmp_path / f"tiny{suffix}"
        path.rename(tmp_path / "aside")
        path.symlink_to(tmp_path / "aside")
        with pytest.raises(DataError, match=rf"tiny\{suffix}: a link is not followed"):
            IndexedDataset.open(prefix)
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(DataError, match=rf"tiny\{suffix} is not a regular file"):
            IndexedDataset.open(prefix)
        path.unlink()
        path.mkdir()
        with pytest.raises(DataError, match=rf"tiny\{suffix} is not a regular file"):
            IndexedDataset.open(prefix)
        path.rmdir()
        (tmp_path / "aside").rename(path)


def test_the_digest_is_that_of_both_files(prefix):
    done = subprocess.run(
        f"cat {prefix}.idx {prefix}.bin | sha256sum", shell=True, capture_output=True, text=True
    )
    scan = IndexedDataset.open(prefix).scan
    assert scan.digest == done.stdout.split()[0]
    assert (scan.least, scan.largest) == (1, 9)
