import subprocess
from pathlib import Path

import pytest

from bitstep.contract.program import LEFT_OUT, PACKAGE, commit, source_digest, without_secrets

A, B = "a" * 40, "b" * 40


def checkout(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_the_commit_is_found_wherever_git_keeps_it(tmp_path: Path) -> None:
    head = {".git/HEAD": "ref: refs/heads/main\n"}
    packed = {".git/packed-refs": f"# pack-refs\n{B} refs/heads/other\n{A} refs/heads/main\n"}
    loose = {".git/refs/heads/main": f"{B}\n"}
    assert commit(checkout(tmp_path / "detached", {".git/HEAD": f"{A}\n"})) == A
    assert commit(checkout(tmp_path / "packed", head | packed)) == A
    assert commit(checkout(tmp_path / "loose", head | packed | loose)) == B


def test_the_commit_of_a_work_tree_beside_another_is_found(tmp_path: Path) -> None:
    checkout(
        tmp_path,
        {
            "main/.git/refs/heads/side": f"{A}\n",
            "main/.git/worktrees/side/HEAD": "ref: refs/heads/side\n",
            "main/.git/worktrees/side/commondir": "../..\n",
            "side/.git": f"gitdir: {tmp_path}/main/.git/worktrees/side\n",
        },
    )
    assert commit(tmp_path / "side") == A


def test_git_agrees(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    try:
        subprocess.run([*git, "init", "-q"], check=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert commit(tmp_path) == head.stdout.strip()


def test_no_checkout_no_commit_and_nothing_else_is_read_as_one(tmp_path: Path) -> None:
    secret = checkout(tmp_path, {"secret": "not a commit"})
    assert commit(tmp_path) is None
    assert commit(checkout(tmp_path / "new", {".git/HEAD": "ref: refs/heads/main\n"})) is None
    outside = {".git/HEAD": f"ref: ../../{secret.name}/secret\n", ".git/packed-refs": ""}
    assert commit(checkout(tmp_path / "odd", outside)) is None
    assert commit(checkout(tmp_path / "cut", {".git/HEAD": A[:-1]})) is None


def test_the_source_digest_is_of_the_rooms_that_train(tmp_path: Path) -> None:
    files = {"train/a.py": "1", "data/b.py": "2", "state/c.py": "3", "train/model/d.py": "4"}
    before = source_digest(checkout(tmp_path, files))
    assert source_digest(checkout(tmp_path, {"cli/a.py": "x", "train/a.pyc": "x"})) == before
    digests = [source_digest(checkout(tmp_path, {name: "changed"})) for name in files]
    assert len({before, *digests}) == 5
    assert source_digest(PACKAGE) == source_digest()


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["a", "--token", "x", "b"], ["a", "--token", LEFT_OUT, "b"]),
        (["--token", "-x"], ["--token", LEFT_OUT]),
        (["--API_KEY=x"], [f"--API_KEY={LEFT_OUT}"]),
        (["--set", "hub.password=x"], ["--set", f"hub.password={LEFT_OUT}"]),
        (["HF_TOKEN=x"], [f"HF_TOKEN={LEFT_OUT}"]),
        (["https://u:p@h/x"], [f"https://{LEFT_OUT}@h/x"]),
        (["--tokens", "5", "--author=x", "a@b"], ["--tokens", "5", "--author=x", "a@b"]),
        (["--token=x", "b"], [f"--token={LEFT_OUT}", "b"]),
    ],
)
def test_a_command_is_kept_without_its_secrets(command: list[str], kept: list[str]) -> None:
    assert without_secrets(command) == kept
