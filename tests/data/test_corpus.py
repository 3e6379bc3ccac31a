import hashlib
import os
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from bitstep.data import corpus as corpus_module
from bitstep.data.corpus import SEPARATOR, Corpus
from bitstep.errors import DataError
from bitstep.state.keys import key

FILES = {"b.py": b"bb", "a/z.txt": b"zzz", "a/y.md": b"", "a.py": b"\xff\x00", "a-b.rs": b"r"}
IN_ORDER = ("a-b.rs", "a.py", "a/y.md", "a/z.txt", "b.py")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "text", FILES)


def test_documents_are_packed_in_byte_order_of_their_paths(folder: Path) -> None:
    train = Corpus.read(folder).train
    assert train.documents == IN_ORDER
    assert train.offsets.tolist() == [0, 2, 5, 6, 10, 13]
    end = SEPARATOR
    assert train.tokens.tolist() == [114, end, 255, 0, end, end, *b"zzz", end, *b"bb", end]


def test_the_digest_is_what_the_docstring_says(folder: Path) -> None:
    digest = hashlib.sha256()
    for path in IN_ORDER:
        digest.update(len(path).to_bytes(8, "little") + path.encode())
        digest.update(len(FILES[path]).to_bytes(8, "little") + FILES[path])
    assert Corpus.read(folder).digest == digest.hexdigest()
    assert Corpus.read(folder, held_out=0.5).digest == digest.hexdigest()


def test_the_digest_does_not_know_place_time_or_listing_order(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = Corpus.read(folder).digest
    write(tmp_path / "copy", dict(reversed(FILES.items())))
    os.utime(tmp_path / "copy/b.py", (1, 1))
    assert Corpus.read(tmp_path / "copy").digest == digest
    walk = os.walk

    def backwards(top: Path, **options: object) -> list[tuple[str, list[str], list[str]]]:
        listed = list(walk(top, **options))  # type: ignore[call-overload]
        return [(d, folders, sorted(files, reverse=True)) for d, folders, files in listed[::-1]]

    monkeypatch.setattr(os, "walk", backwards)
    assert Corpus.read(folder).digest == digest


@pytest.mark.parametrize(
    "change",
    [{"b.py": b"bc"}, {"b.py": b"bb "}, {"c.py": b""}, {"a/z.txt": b"zz", "b.py": b"zbb"}],
    ids=["byte", "longer", "another empty file", "byte moved to the next document"],
)
def test_any_change_changes_the_digest(folder: Path, change: dict[str, bytes]) -> None:
    digest = Corpus.read(folder).digest
    assert Corpus.read(write(folder, change)).digest != digest


def test_a_renamed_file_changes_the_digest(folder: Path) -> None:
    digest = Corpus.read(folder).digest
    (folder / "b.py").rename(folder / "c.py")
    assert Corpus.read(folder).digest != digest


def test_other_files_do_not_count(folder: Path) -> None:
    digest = Corpus.read(folder).digest
    others = ("x.pyc", "x.bin", "__pycache__/x.py", "site-packages/x.py", "dist-packages/x.py")
    write(folder, dict.fromkeys((*others, ".git/x.py", "a/.hidden/x.py"), b"x"))
    assert Corpus.read(folder).digest == digest


def test_suffixes_are_known_in_upper_case_too(folder: Path) -> None:
    assert "README.MD" in Corpus.read(write(folder, {"README.MD": b"x"})).train.documents


def test_the_split_is_by_keyed_path_alone(folder: Path) -> None:
    write(folder, {f"more/{number}.py": b"x" for number in range(200)})
    corpus = Corpus.read(folder, held_out=0.25)
    both = {*corpus.train.documents, *corpus.held_out.documents}
    chosen = {path for path in both if key("held-out", path) < 2**62}
    assert set(corpus.held_out.documents) == chosen
    assert len(both) == 205 == len(corpus.train.documents) + len(corpus.held_out.documents)
    assert 35 < len(chosen) < 68
    (folder / "more/0.py").unlink()
    assert set(Corpus.read(folder, held_out=0.25).held_out.documents) == chosen - {"more/0.py"}


def test_sequences_tile_the_stream_and_overlap_by_the_lookahead(folder: Path) -> None:
    train = Corpus.read(folder).train
    assert train.sequences(3, 1) == 4
    assert train.sequences(3, 2) == 3
    rows = [train.sequence(index, 3, 1) for index in range(4)]
    assert np.concatenate([row[:3] for row in rows]).tolist() == train.tokens[:12].tolist()
    assert [int(row[3]) for row in rows] == train.tokens[[3, 6, 9, 12]].tolist()


def test_a_sequence_names_its_documents(folder: Path) -> None:
    train = Corpus.read(folder).train
    assert train.documents_of(0, 2) == ("a-b.rs",)
    assert train.documents_of(0, 3) == ("a-b.rs", "a.py")
    assert train.documents_of(1, 5) == ("a/y.md", "a/z.txt")
    assert train.documents_of(0, 13) == IN_ORDER


def test_documents_of_is_what_a_search_token_by_token_finds(folder: Path) -> None:
    train = Corpus.read(folder).train
    owner = [d for n, d in enumerate(IN_ORDER) for _ in range(len(FILES[d]) + 1)]
    for length in range(1, 14):
        for index in range(train.sequences(length, 0)):
            mine = owner[index * length : (index + 1) * length]
            assert train.documents_of(index, length) == tuple(dict.fromkeys(mine))


def test_tokens_cannot_be_written(folder: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        Corpus.read(folder).train.sequence(0, 3, 1)[0] = 1


@pytest.mark.parametrize("index", [-1, 4])
def test_a_sequence_outside_is_refused(folder: Path, index: int) -> None:
    train = Corpus.read(folder).train
    with pytest.raises(DataError, match=f"sequence {index} of the train split: it has 0 to 3"):
        train.sequence(index, 3, 1)
    with pytest.raises(DataError, match=f"sequence {index}"):
        train.documents_of(index, 3)


def test_less_than_one_sequence_is_refused(folder: Path) -> None:
    assert Corpus.read(folder).train.sequences(12, 1) == 1
    with pytest.raises(DataError, match=r"train split has 13 tokens .* one sequence takes 14"):
        Corpus.read(folder).train.sequences(12, 2)
    with pytest.raises(DataError, match="held-out split has 0 tokens in 0 documents"):
        Corpus.read(folder).held_out.sequences(1, 0)


def test_a_missing_folder_and_a_file_are_refused(folder: Path) -> None:
    for wrong in (folder / "absent", folder / "a.py", str(folder) + "\0"):
        with pytest.raises(DataError, match=r"no such folder; set data\.folder"):
            Corpus.read(wrong)


def test_a_folder_with_nothing_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file in it ends with \.c "):
        Corpus.read(tmp_path)
    with pytest.raises(DataError, match="no file in it ends with"):
        Corpus.read(write(tmp_path, {"model.bin": b"x"}))


def test_a_changed_corpus_is_refused_with_both_digests(folder: Path) -> None:
    before = Corpus.read(folder).digest
    assert Corpus.read(folder, expect=before).digest == before
    after = Corpus.read(write(folder, {"b.py": b"bc"})).digest
    with pytest.raises(DataError, match=f"has changed: digest {after}, on record {before}"):
        Corpus.read(folder, expect=before)


@pytest.mark.parametrize("content", [b"b", b"bbb"], ids=["shorter", "longer"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = corpus_module._pack

    def changed_after_listing(*arguments: object) -> Corpus:
        (folder / "b.py").write_bytes(content)
        return pack(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus_module, "_pack", changed_after_listing)
    with pytest.raises(DataError, match=r"b\.py changed size while it was read"):
        Corpus.read(folder)


def test_what_vanishes_or_becomes_a_link_after_listing_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = corpus_module._pack

    def becomes_link(*arguments: object) -> Corpus:
        (folder / "b.py").unlink()
        (folder / "b.py").symlink_to(folder / "a.py")
        return pack(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus_module, "_pack", becomes_link)
    with pytest.raises(DataError, match=r"cannot read .*b\.py"):
        Corpus.read(folder)


def test_a_link_out_of_the_folder_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"x.py": b"x"})
    for target in (outside / "x.py", outside):
        (folder / "out.py").symlink_to(target)
        with pytest.raises(DataError, match=r"out\.py is a link that leads out of"):
            Corpus.read(folder)
        (folder / "out.py").unlink()


def test_a_folder_beside_with_a_longer_name_is_outside(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "text-more", {"x.py": b"x"})
    (folder / "out").symlink_to(tmp_path / "text-more")
    with pytest.raises(DataError, match="leads out of"):
        Corpus.read(folder)


def test_links_inside_add_nothing_and_the_folder_may_be_one(folder: Path, tmp_path: Path) -> None:
    digest = Corpus.read(folder).digest
    (folder / "copy.py").symlink_to(folder / "b.py")
    (folder / "a/up").symlink_to(folder)
    (folder / "loop.py").symlink_to(folder / "loop.py")
    (tmp_path / "text-link").symlink_to(folder)
    assert Corpus.read(folder).digest == digest
    assert Corpus.read(tmp_path / "text-link").digest == digest


def test_what_is_no_regular_file_is_refused_unopened(folder: Path) -> None:
    os.mkfifo(folder / "pipe.py")
    with pytest.raises(DataError, match=r"pipe\.py is not a regular file"):
        Corpus.read(folder)


@pytest.mark.parametrize("name", [b"\xff.py", b"a\nb.py", b"\x1b[2J.py", b"\x7f.py"])
def test_a_name_that_is_not_text_is_refused(folder: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(b"x")
    with pytest.raises(DataError, match="is not plain UTF-8 text; rename it") as caught:
        Corpus.read(folder)
    assert str(caught.value).isprintable()


def test_an_unreadable_file_or_folder_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Permissions do not stop a superuser, who runs tests in containers.
    def denied(path: object, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denied)
        with pytest.raises(DataError, match=r"cannot read .*a-b\.rs: Permission denied"):
            Corpus.read(folder)
    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match=r"cannot read .*: Permission denied"):
        Corpus.read(folder)


def test_the_default_is_the_standard_library_without_what_was_installed() -> None:
    corpus = Corpus.read(held_out=0.05)
    documents = corpus.train.documents + corpus.held_out.documents
    assert {"argparse.py", "json/decoder.py"} <= set(documents)
    assert all(path.endswith(".py") and "-packages" not in path for path in documents)
    assert corpus.train.tokens.size > 5_000_000
    assert corpus.held_out.tokens.size > 100_000


def test_links_out_of_the_standard_library_are_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "etc", {"sitecustomize.py": b"x"})
    (folder / "sitecustomize.py").symlink_to(tmp_path / "etc/sitecustomize.py")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    assert Corpus.read().train.documents == ("a.py", "b.py")
    shutil.rmtree(folder / "a")
