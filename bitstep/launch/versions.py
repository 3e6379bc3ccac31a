"""What git says about a program: its commit, and a digest of what is not committed.

1. `asked` runs git in the folder of the script, or where we are: with a time limit for all of it,
   no more than BYTES of changes, nothing of the repository's configuration that names a program,
   and no lock.
2. `handed_over` is the variable that takes the answer to the processes of the program, whose
   manifest has it.

The digest is over the text of the changes and the content of new files that git does not ignore.

>>> handed_over(["python", "train.py"])  # doctest: +SKIP
{'BITSTEP_VERSION_CONTROL': '{"commit": "5d41...", "uncommitted": null}'}
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bitstep.contract.program import PACKAGE, VERSION

SECONDS: Final = 2.0
"""For all questions together; a repository on a slow disk must not hold up the program."""
BYTES: Final = 16 << 20
"""Of changes and of new files; beyond, the digest says that it has not seen all."""
FILES: Final = 2000
_GIT: Final = (
    "git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null",
)  # fmt: skip
_WHERE: Final = ("rev-parse", "--show-toplevel", "--git-path", "index", "HEAD")
_CHANGES: Final = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "HEAD")
_NEW: Final = ("ls-files", "--others", "--exclude-standard", "-z", "--full-name", ":/")


def handed_over(command: Sequence[str], seconds: float = SECONDS) -> dict[str, str]:
    """The variable for the processes of this command: what `asked` says, as JSON."""
    return {VERSION: json.dumps(asked(_folder(command), seconds))}


def of_engine() -> dict[str, str]:
    """The same for our own engine, where it runs from a checkout."""
    root = PACKAGE.parent
    return {VERSION: json.dumps(asked(root) if (root / ".git").exists() else {})}


def asked(folder: Path, seconds: float = SECONDS) -> dict[str, str | None]:
    """ "commit", and "uncommitted": a digest, None where all is committed, or why nobody knows.

    {} without git, without a repository, and without an answer in time.
    """
    until = time.monotonic() + seconds
    try:
        said = b"".join(_ask(folder, _WHERE, until)).decode().splitlines()
        top, index, commit = said
    except (OSError, ValueError, TimeoutError):
        return {}
    try:
        found = _digest(Path(top), folder / index, until)
    except TimeoutError:
        found = f"not known: git took longer than {seconds:g} s"
    except OSError as error:
        found = f"not known: {error.strerror or 'git failed'}"
    return {"commit": commit, "uncommitted": found}


def _folder(command: Sequence[str]) -> Path:
    script = next((word for word in command if word.endswith(".py")), "")
    return Path(script).absolute().parent if script and Path(script).is_file() else Path.cwd()


def _digest(top: Path, index: Path, until: float) -> str | None:
    digest, left = hashlib.sha256(), BYTES
    with tempfile.TemporaryDirectory(prefix="bitstep-") as place:
        # `git diff` refreshes the index, and locks it for that: it gets one of its own.
        mine = shutil.copy(index, place)
        for part in _parts(top, mine, until):
            if time.monotonic() > until:
                raise TimeoutError
            digest.update(part[:left])
            left -= len(part)
            if left < 0:
                return f"sha256:{digest.hexdigest()[:16]}, of the first {BYTES} bytes"
    return None if left == BYTES else f"sha256:{digest.hexdigest()[:16]}"


def _parts(top: Path, index: str, until: float) -> Iterator[bytes]:
    yield from _ask(top, _CHANGES, until, index)
    names = b"".join(_ask(top, _NEW, until, index)).split(b"\0")
    for name in sorted(filter(None, names))[:FILES]:
        path = top / os.fsdecode(name)
        yield name + b"\0"
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                yield file.read(BYTES + 1)


def _ask(
    folder: Path, words: Sequence[str], until: float, index: str | None = None
) -> Iterator[bytes]:
    """What git prints, in pieces. Raises TimeoutError, and OSError if it fails or says too much."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("GIT_")}
    environment |= {"GIT_INDEX_FILE": index} if index else {}
    process = subprocess.Popen(
        [*_GIT, "-C", str(folder), *words],
        env={**environment, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield from _read(process, until)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    if process.returncode:
        raise OSError(0, "git failed")


def _read(process: subprocess.Popen[bytes], until: float) -> Iterator[bytes]:
    assert process.stdout is not None
    file = process.stdout.fileno()
    left = BYTES
    while left >= 0:
        readable, _, _ = select.select([file], [], [], max(until - time.monotonic(), 0))
        if not readable:
            raise TimeoutError
        part = os.read(file, 1 << 16)
        if not part:
            process.wait()
            return
        left -= len(part)
        yield part
