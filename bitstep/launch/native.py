"""Compile what `observe.native` loads, for the torch and the Python of this environment.

1. torch's own tool for extensions does it, with the compiler that it finds: about 20 seconds.
2. What it built is loaded once, then moved to its place at once: nobody ever sees half of it.

>>> compile_operations().is_file()  # doctest: +SKIP
True
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path

from bitstep.errors import RunError
from bitstep.observe import native


def compile_operations() -> Path:
    """Build the module, unless it is there; gives back its file.

    Raises RunError without a compiler or ninja, for what they say, and where nothing can be
    written.
    """
    place = native.built()
    if place.is_file():
        return place
    with tempfile.TemporaryDirectory() as folder:
        _compile(Path(folder))
        try:
            place.parent.mkdir(exist_ok=True)
            moving = place.with_suffix(f".{os.getpid()}")
            shutil.copyfile(Path(folder) / f"{native.NAME}.so", moving)
            moving.replace(place)
        except OSError as error:
            raise RunError(f"cannot write {place}: {error.strerror}: compile as who installed "
                           "bitstep") from error  # fmt: skip
    native.load.cache_clear()
    return place


def _compile(folder: Path) -> None:
    from torch.utils import cpp_extension

    said = io.StringIO()
    try:
        # It tells ninja's output only where it is asked to, and prints it.
        with contextlib.redirect_stdout(said):
            cpp_extension.load(
                native.NAME,
                [str(native.sources()[0])],
                build_directory=str(folder),
                extra_cflags=["-O2"],
                is_python_module=True,
            )
    except (RuntimeError, OSError, ImportError) as error:
        raise RunError(f"cannot compile: {_cause(str(error))}") from error


def _cause(text: str) -> str:
    """The line that says why, of what may be a whole build."""
    lines = text.strip().splitlines() or ["nothing was said"]
    return next((line for line in lines if "error:" in line), lines[0])
