"""Which program this is: the digest of its code, the commit, and the command without secrets.

>>> without_secrets(["bitstep", "pretrain", "nano", "--token=abc"])
['bitstep', 'pretrain', 'nano', '--token=(left out)']
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import bitstep

PACKAGE = Path(bitstep.__file__).parent
TRAINING = ("data", "state", "train")
"""Rooms whose code decides the bits of a step."""
LEFT_OUT = "(left out)"

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SECRET = re.compile(
    r"(?i)(?<![a-z])(token|secret|password|passwd|credentials?|auth|(api|access)[-_]?key)(?![a-z])"
)
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def source_digest(package: Path = PACKAGE) -> str:
    """SHA-256 in hex over (path length, path, size, bytes) of the Python files in TRAINING."""
    digest = hashlib.sha256()
    files = (file for room in TRAINING for file in (package / room).rglob("*.py"))
    for path, file in sorted((file.relative_to(package).as_posix(), file) for file in files):
        for part in (path.encode(), file.read_bytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def commit(root: Path = PACKAGE.parent) -> str | None:
    """The commit that is checked out in `root`, or None. Reads git's files and starts nothing."""
    try:
        folder = _git_folder(root)
        head = (folder / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        found = head if name == head else _reference(folder, name)
    except (OSError, UnicodeDecodeError):
        return None
    return found if _COMMIT.fullmatch(found) else None


def without_secrets(command: Sequence[str]) -> list[str]:
    """The command with the values of secrets left out, by the names of their options."""
    words: list[str] = []
    secret = False
    for word in command:
        name, equals, _ = word.partition("=")
        if secret:
            words.append(LEFT_OUT)
        elif equals and is_secret(name):
            words.append(f"{name}={LEFT_OUT}")
        else:
            words.append(_USER_IN_ADDRESS.sub(LEFT_OUT, word))
        secret = not equals and word.startswith("-") and is_secret(word)
    return words


def is_secret(name: str) -> bool:
    """Whether an option or a variable of this name may hold a secret."""
    return _SECRET.search(name) is not None


def _git_folder(root: Path) -> Path:
    folder = root / ".git"
    if folder.is_file():  # a work tree beside another
        folder = root / folder.read_text().strip().removeprefix("gitdir: ")
    return folder


def _reference(folder: Path, name: str) -> str:
    shared = folder / "commondir"
    common = folder / shared.read_text().strip() if shared.is_file() else folder
    for place in (folder, common):
        if (place / name).is_file():
            return (place / name).read_text().strip()
    lines = (common / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")
