"""`bitstep data build`: a folder becomes a dataset, the same bytes each time, or nothing at all."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_fakes import TINY, write_corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from bitstep.cli import run
from bitstep.contract.manifest import read_manifest
from bitstep.data.build import build
from bitstep.data.corpus import Corpus
from bitstep.data.indexed import IndexedDataset
from bitstep.data.indexed_corpus import indexed_corpus
from bitstep.data.tokens import ByteTokens, FileTokens
from bitstep.errors import DataError, RecipeError
from bitstep.launch.worker import join, settle
from bitstep.train.documents import documents_of
from bitstep.train.loop import pretrain
from bitstep.train.recipe import load
from bitstep.train.resolve import resolve

FILES = {"b.txt": b"bb", "a/z.md": b"\xff\x00", "a/y.py": b"", "c.jsonl": b'{"text": "\\u00fc"}\n'}
STREAM = [256, 255, 0, 256, 98, 98, 256, 195, 188, 256]


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "text", FILES)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A BPE of 300 tokens; the file says cut at 4, fill up to 9, and begin with <s>."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<|endoftext|>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the line of the document", "the lines of a document"] * 9, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.enable_truncation(max_length=4)
    made.enable_padding(length=9)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def bytes_of(prefix):
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx")]


def test_documents_stand_in_the_order_of_their_paths(folder, tmp_path):
    built = build(folder, tmp_path / "d", ByteTokens())
    dataset = IndexedDataset.open(tmp_path / "d")
    assert dataset.tokens.tolist() == STREAM
    assert dataset.document_offsets().tolist() == [0, 1, 4, 7, 10]
    assert built[:5] == (4, 10, "uint16", 257, 256)
    assert built.digest == dataset.scan.digest


def test_without_a_tokenizer_it_is_the_stream_of_the_corpus(tmp_path):
    text = write_corpus(tmp_path / "text")
    build(text, tmp_path / "d", ByteTokens())
    train, stream = Corpus.read(text).train, IndexedDataset.open(tmp_path / "d")
    assert stream.tokens.tolist() == train.tokens.tolist()
    assert stream.document_offsets().tolist() == train.offsets.tolist()


def test_the_bytes_do_not_know_place_time_or_listing_order(folder, tmp_path, monkeypatch):
    build(folder, tmp_path / "first", ByteTokens())
    write(tmp_path / "copy", dict(reversed(FILES.items())))
    os.utime(tmp_path / "copy/b.txt", (1, 1))
    walk = os.walk

    def backwards(top, **options):
        listed = list(walk(top, **options))
        return [(d, folders, sorted(files, reverse=True)) for d, folders, files in listed[::-1]]

    monkeypatch.setattr(os, "walk", backwards)
    build(tmp_path / "copy", tmp_path / "second", ByteTokens())
    assert bytes_of(tmp_path / "first") == bytes_of(tmp_path / "second")
    write(tmp_path / "copy", {"b.txt": b"bc"})
    build(tmp_path / "copy", tmp_path / "third", ByteTokens())
    assert bytes_of(tmp_path / "first") != bytes_of(tmp_path / "third")


def test_each_line_of_a_jsonl_is_a_document(tmp_path):
    lines = b'{"text": "a", "id": 1}\n\n  \r\n{"text": ""}\r\n{"id": {}, "text": "b\\nc"}'
    build(write(tmp_path / "text", {"x.JSONL": lines}), tmp_path / "d", ByteTokens())
    dataset = IndexedDataset.open(tmp_path / "d")
    assert [bytes(dataset[n][:-1].astype("u1")) for n in range(len(dataset))] == [
        b"a",
        b"",
        b"b\nc",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "no JSON: Expecting property name"),
        (b"\xff", "no JSON: 'utf-8' codec"),
        (b"\xef\xbb\xbf{}", "no JSON: Unexpected UTF-8 BOM"),
        (b"[" * 100_000, "no JSON: maximum recursion depth"),
        (b"9" * 5000, "no JSON: Exceeds the limit"),
        (b"[]", 'no object with a string "text"'),
        (b'{"Text": "a"}', 'no object with a string "text"'),
        (b'{"text": ["a"]}', 'no object with a string "text"'),
        (b'{"text": "\\ud800"}', '"text" holds half a character'),
    ],
)
def test_a_line_that_is_no_document_is_named_and_nothing_is_left(tmp_path, line, words):
    text = write(tmp_path / "text", {"a.txt": b"a", "x.jsonl": b'{"text": "a"}\n' + line + b"\n"})
    with pytest.raises(DataError, match=rf"x\.jsonl, line 2: {words}") as caught:
        build(text, tmp_path / "out/d", ByteTokens())
    assert str(caught.value).isprintable()
    assert list((tmp_path / "out").iterdir()) == []


def test_tokens_are_those_of_the_tokenizer_without_what_the_file_says_of_a_model(
    tmp_path, tokenizer
):
    texts = ["the line of the document", "", "größe <|endoftext|> of lines" * 3]
    files = {f"{number}.txt": text.encode() for number, text in enumerate(texts)}
    tokens = FileTokens(tokenizer)
    built = build(write(tmp_path / "text", files), tmp_path / "d", tokens)
    plain = Tokenizer.from_file(str(tokenizer))
    plain.no_truncation()
    plain.no_padding()
    dataset = IndexedDataset.open(tmp_path / "d")
    for number, text in enumerate(texts):
        ids = plain.encode(text, add_special_tokens=False).ids
        assert dataset[number].tolist() == [*ids, 1]
    assert len(dataset[0]) > 5
    assert (built.vocabulary, built.end, built.dtype) == (plain.get_vocab_size(), 1, "uint16")
    assert plain.decode(dataset[0].tolist()) == texts[0]


def test_the_end_of_a_document_is_named_or_refused(tokenizer):
    assert FileTokens(tokenizer, "</s>").end == 2
    with pytest.raises(
        DataError, match=r"has no token '<end>': .* added <s> <\|endoftext\|> </s>$"
    ):
        FileTokens(tokenizer, "<end>")


def test_a_large_vocabulary_is_stored_as_int32(tmp_path):
    words = {f"w{number}": number for number in range(70_000)}
    made = Tokenizer(models.WordLevel({**words, "<|endoftext|>": 80_000}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    tokens = FileTokens(tmp_path / "tokenizer.json")
    text = write(tmp_path / "text", {"a.txt": b"w69999 w7 ?"})
    built = build(text, tmp_path / "d", tokens)
    assert (built.dtype, built.vocabulary, built.end) == ("int32", 80_001, 80_000)
    assert IndexedDataset.open(tmp_path / "d").tokens.tolist() == [69_999, 7, 0, 80_000]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "X"}}'])
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match=r"name a tokenizer\.json of Hugging Face$") as caught:
        FileTokens(tmp_path / "tokenizer.json")
    assert str(caught.value).isprintable()


def test_a_missing_or_huge_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"No such file or directory; name a tokenizer\.json"):
        FileTokens(tmp_path / "tokenizer.json")
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(DataError, match="above 268435456 bytes"):
        FileTokens(tmp_path / "huge.json")


def test_a_document_that_a_tokenizer_cannot_read_is_named(folder, tmp_path, tokenizer):
    with pytest.raises(DataError, match=r"z\.md: it is not UTF-8 text at byte 0"):
        build(folder, tmp_path / "d", FileTokens(tokenizer))


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".bin.part", ".idx.part"])
def test_nothing_that_is_there_is_replaced(folder, tmp_path, suffix):
    there = tmp_path / f"out/d{suffix}"
    write(tmp_path, {f"out/d{suffix}": b"mine"})
    with pytest.raises(DataError, match="is there: "):
        build(folder, tmp_path / "out/d", ByteTokens())
    assert there.read_bytes() == b"mine"
    assert [path.name for path in there.parent.iterdir()] == [there.name]
    there.unlink()
    there.symlink_to(tmp_path / "absent")
    with pytest.raises(DataError, match="is there: "):
        build(folder, tmp_path / "out/d", ByteTokens())


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_leaves_nothing(folder, tmp_path, monkeypatch, call):
    original, calls = getattr(os, call), []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DataError, match=r"cannot write .*: No space left on device"):
        build(folder, tmp_path / "out/d", ByteTokens())
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.undo()
    assert build(folder, tmp_path / "out/d", ByteTokens()).documents == 4


def test_a_killed_build_is_no_dataset_and_is_told(folder, tmp_path):
    program = (
        "import os, signal, sys; from bitstep.cli import run; from bitstep.data import tokens\n"
        "tokens.ByteTokens.encode = lambda self, texts: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run(['data', 'build', *sys.argv[1:]])"
    )
    words = [str(folder), "-o", str(tmp_path / "d")]
    assert subprocess.run([sys.executable, "-c", program, *words], timeout=60).returncode == -9
    with pytest.raises(DataError, match=r"d\.idx: No such file"):
        IndexedDataset.open(tmp_path / "d")
    with pytest.raises(DataError, match=r"d\.bin\.part is there: .* was killed; remove it"):
        build(folder, tmp_path / "d", ByteTokens())


def test_a_folder_with_nothing_to_read_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such folder; name one with files of text"):
        build(tmp_path / "absent", tmp_path / "d", ByteTokens())
    with pytest.raises(DataError, match=r"no file in it ends with .* \.jsonl; add some"):
        build(tmp_path, tmp_path / "d", ByteTokens())
    (tmp_path / "out.txt").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match=r"out\.txt is a link that leads out of"):
        build(tmp_path, tmp_path / "d", ByteTokens())


def test_the_verb_says_what_it_wrote(folder, tmp_path, tokenizer, capsys):
    prefix = str(tmp_path / "d")
    assert run(["data", "build", str(folder), "-o", prefix]) == 0
    digest = IndexedDataset.open(prefix).scan.digest
    assert capsys.readouterr().out == (
        f"{prefix}: 4 documents, 10 tokens as uint16, vocabulary 257, end of document 256, "
        f"digest {digest}\n"
    )
    (folder / "a/z.md").unlink()
    words = ["--tokenizer", str(tokenizer), "--end", "</s>", "--json"]
    assert run(["data", "build", str(folder), "-o", prefix + "2", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["prefix"], said["documents"], said["end"]) == (prefix + "2", 3, 2)
    assert run(["data", "build", str(folder), "-o", prefix]) == 2
    assert capsys.readouterr().err == (
        f"bitstep: {prefix}.bin is there: choose another prefix with -o, or remove it\n"
    )
    assert run(["data", "build", str(folder), "-o", prefix + "3", "--end", "x"]) == 2
    assert "give --tokenizer as well" in capsys.readouterr().err


def test_without_tokenizers_the_error_names_the_package(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    words = ["-o", str(tmp_path / "d"), "--tokenizer", "tokenizer.json"]
    assert run(["data", "build", str(folder), *words]) == 2
    line = "bitstep: tokenizers is not installed: pip install 'bitstep[data]'\n"
    assert capsys.readouterr().err == line


def test_the_last_documents_are_held_out(tmp_path):
    build(write_corpus(tmp_path / "text"), tmp_path / "d", ByteTokens())
    whole = indexed_corpus(str(tmp_path / "d"), vocabulary=257)
    assert whole.held_out.tokens.size == 0
    corpus = indexed_corpus(str(tmp_path / "d"), vocabulary=257, held_out=0.3)
    both = np.concatenate([corpus.train.tokens, corpus.held_out.tokens])
    assert both.tolist() == whole.train.tokens.tolist()
    assert list(corpus.train.documents) == [f"document {number}" for number in range(9)]
    assert list(corpus.held_out.documents) == [f"document {number}" for number in range(9, 12)]
    assert corpus.held_out.documents_of(0, 5) == ("document 9",)
    assert corpus.held_out.offsets[0] == 0
    assert corpus.train.offsets[-1] == corpus.train.tokens.size


def test_an_empty_document_is_not_named(tmp_path):
    (tmp_path / "d.bin").write_bytes(b"\1\2\3\4")
    index = b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + b"\1"
    index += np.array([3, 4], "<u8").tobytes() + np.array([2, 0, 2], "<i4").tobytes()
    index += np.array([0, 2, 2, 0, 1, 2, 3], "<i8").tobytes()
    (tmp_path / "d.idx").write_bytes(index)
    train = indexed_corpus(str(tmp_path / "d"), vocabulary=5).train
    assert train.documents_of(0, 4) == ("document 0", "document 2")


def test_a_token_outside_the_vocabulary_or_another_digest_is_refused(folder, tmp_path):
    digest = build(folder, tmp_path / "d", ByteTokens()).digest
    prefix = str(tmp_path / "d")
    assert indexed_corpus(prefix, vocabulary=257, expect=digest).digest == digest
    with pytest.raises(DataError, match=r"tokens from 0 to 256: model\.vocabulary = 256 has 0 to"):
        indexed_corpus(prefix, vocabulary=256)
    with pytest.raises(DataError, match=f"has changed: digest {digest}, on record abc"):
        indexed_corpus(prefix, vocabulary=257, expect="abc")


def test_a_recipe_names_a_folder_or_a_dataset():
    with pytest.raises(RecipeError, match=r"data\.folder = 'a' and data\.indexed = 'b': leave one"):
        load("nano", ["data.folder=a", "data.indexed=b"])
    with pytest.raises(RecipeError, match=r"model\.vocabulary = 200"):
        load("nano", ["model.vocabulary=200"])
    assert load("nano", ["model.vocabulary=200", "data.indexed=b"]).data.indexed == "b"


def train(run_folder, *changes):
    settle(1)
    return pretrain(
        resolve("nano", [*TINY, "data.held_out=0.0", "run.steps=3", *changes], run_folder, False),
        run_folder,
        join(),
        command=["pretrain", "nano"],
        should_stop=lambda: False,
        report=lambda progress: None,
    )


def test_training_on_a_dataset_has_the_bits_of_training_on_its_folder(tmp_path):
    text = write_corpus(tmp_path / "text")
    digest = build(text, tmp_path / "d", ByteTokens()).digest
    indexed = train(tmp_path / "a", f"data.indexed={str(tmp_path / 'd')!r}")
    folder = train(tmp_path / "b", f"data.folder={str(text)!r}")
    other = train(tmp_path / "c", f"data.indexed={str(tmp_path / 'd')!r}", "data.held_out=0.3")
    assert indexed.root == folder.root != other.root
    keys = read_manifest(tmp_path / "a")[0].manifest.keys
    assert keys["data.digest"] == digest
    assert keys["data.order"] == read_manifest(tmp_path / "b")[0].manifest.keys["data.order"]
    for mine, paths in zip(
        documents_of(tmp_path / "a", 2), documents_of(tmp_path / "b", 2), strict=True
    ):
        assert mine == tuple(f"document {int(path[9:11])}" for path in paths)


@pytest.mark.long
def test_pretrain_on_a_dataset_built_by_the_command_resumes_on_two_processes(tmp_path):
    text = write_corpus(tmp_path / "text")
    words = [word for change in TINY for word in ("--set", change)]
    words += ["--set", "data.held_out=0.0", "--set", f"data.indexed={str(tmp_path / 'd')!r}"]

    def bitstep(*line):
        command = [sys.executable, "-m", "bitstep", *map(str, line)]
        return subprocess.run(command, capture_output=True, text=True, timeout=250)

    assert bitstep("data", "build", text, "-o", tmp_path / "d").returncode == 0
    once = bitstep("pretrain", "nano", "-o", tmp_path / "a", *words, "--json")
    assert once.returncode == 0, once.stderr
    words += ["--set", "run.save_every=3"]
    twice = bitstep("pretrain", "nano", "-o", tmp_path / "b", *words, "--processes", 2, "--json")
    assert json.loads(twice.stdout)["root"] == json.loads(once.stdout)["root"]
    flipped = bytearray((tmp_path / "d.bin").read_bytes())
    flipped[100] ^= 1
    (tmp_path / "d.bin").write_bytes(flipped)
    changed = bitstep("pretrain", "nano", "-o", tmp_path / "b", "--resume", "--steps", 8)
    assert changed.returncode == 2
    assert "data.digest" in changed.stderr
