"""Which program this is: the digest of its code, its commit, what is not committed, its options.

1. The code of the engine is digested, and its commit read from git's files; nothing is started.
2. What git knows beyond that a launcher has asked, and handed over in the variable VERSION.
3. The options of a command become a table, without secrets.

>>> options(["--lr", "0.1", "--token=abc", "-v", "data.txt"])
{'lr': '0.1', 'token': '(left out)', 'v': 'data.txt'}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import bitstep
from bitstep.contract.secrets import LEFT_OUT, is_secret, without_secrets

__all__ = [
    "LEFT_OUT", "PACKAGE", "commit", "handed_over", "is_secret", "options", "source_digest",
    "without_secrets",
]  # fmt: skip

PACKAGE = Path(bitstep.__file__).parent
TRAINING = ("data", "state", "train")
"""Rooms whose code decides the bits of a step."""
VERSION: Final = "BITSTEP_VERSION_CONTROL"
"""What a launcher asked git, as JSON, for the processes of the program."""
MOST_OPTIONS: Final = 400

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


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


def handed_over(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What a launcher asked git: "commit" and "uncommitted", a digest; {} without one."""
    try:
        found = json.loads(environment.get(VERSION, "{}"))
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    names = ("commit", "uncommitted")
    return {name: found[name] for name in names if isinstance(found.get(name), str | None)
            and name in found}  # fmt: skip


def options(words: Sequence[str]) -> dict[str, Any]:
    """The options of a command as a table: name to value, true for one that has none.

    Of one that stands twice all values are kept, as a list; what is no option stands under
    "positional". Values are without secrets.
    """
    found: dict[str, list[Any]] = {}
    name = ""
    for word, kept in zip(words, without_secrets(words), strict=True):
        is_option = re.match(r"--?[A-Za-z]", word) is not None
        if is_option:
            name, equals, value = kept.lstrip("-").partition("=")
            name = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:100].replace("_", "-")
            found.setdefault(name, []).append(value if equals else True)
            name = "" if equals else name
        elif name and found[name][-1] is True:
            found[name][-1] = kept
        elif name:
            found[name].append(kept)
        else:
            found.setdefault("positional", []).append(kept)
    tables = {key: values[0] if len(values) == 1 and key != "positional" else values
              for key, values in found.items()}  # fmt: skip
    return dict(sorted(tables.items())[:MOST_OPTIONS])


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
