"""Compile what `observe.native` loads, for the torch and the Python of this environment.

1. torch's own tool for extensions does it, in a process of its own, with the compiler that it
   finds: about 20 seconds.
2. What it built is moved to its place at once: nobody ever sees half of it.
3. Then it is loaded: what cannot be is no success.

>>> compile_operations().is_file()  # doctest: +SKIP
True
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bitstep.errors import RunError
from bitstep.observe import native

_PROGRAM: Final = """
import sys
from torch.utils import cpp_extension
name, source, folder = sys.argv[1:]
cpp_extension.load(name, [source], build_directory=folder, extra_cflags=["-O2"])
"""


def compile_operations() -> Path:
    """Build the module, unless one is there that can be loaded; gives back its file.

    Raises RunError without a compiler or ninja, for what they say, where nothing can be written,
    and for a module that cannot be loaded.
    """
    place = native.built()
    native.load.cache_clear()
    if native.load() is not None:
        return place
    try:
        place.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            _compile(Path(folder)).replace(place)
    except OSError as error:
        raise RunError(
            f"cannot write {place}: {error.strerror}: compile as who installed bitstep"
        ) from error
    native.load.cache_clear()
    if native.load() is None:
        raise RunError(f"{place} was compiled and cannot be loaded: record without it")
    return place


def _compile(folder: Path) -> Path:
    words = [sys.executable, "-c", _PROGRAM, native.NAME, str(native.sources()[0]), str(folder)]
    ended = subprocess.run(words, capture_output=True, text=True, errors="replace")
    if ended.returncode:
        raise RunError(f"cannot compile: {_cause(ended.stderr + ended.stdout)}")
    return folder / f"{native.NAME}.so"


def _cause(text: str) -> str:
    """The line that says why, of what may be a whole build."""
    lines = text.strip().splitlines() or ["nothing was said"]
    of_compiler = (line for line in lines if " error: " in line)
    return next(of_compiler, lines[-1]).strip()
