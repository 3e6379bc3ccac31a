"""Attach to the process that this is: start the recorder, and have its trace closed at the end.

1. `attach_here` is what the bootstrap calls once torch is imported: it reads the options and
   starts the recorder, which writes nothing before the first training step. torch's own helpers
   never train, and are spared what the recorder costs at the start.
2. A forked child is told to the recorder: what its parent recorded is not its own.
3. `os._exit` runs no exit handlers, and `multiprocessing` ends its children with it: the trace is
   closed before. A signal that kills leaves a trace that ends with its last whole step.

>>> attach_here()  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from bitstep.observe.options import PREFLIGHT, PROBE, RecordOptions

if TYPE_CHECKING:
    from bitstep.observe.recorder import Recorder

HELPER_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
HELPER_SCRIPTS: Final = ("/torchrun", "/torch/_inductor/compile_worker/__main__.py")


def attach_here() -> Recorder | None:
    """Start the recorder that the environment asks for, if it does.

    What goes wrong is said on stderr, in one line, and None is given back; it is raised if the
    options are strict.
    """
    strict = False
    try:
        if is_helper(sys.orig_argv):
            return None
        _probe_here()
        options = RecordOptions.from_environment()
        if options is None:
            return None
        strict = options.strict
        # Late: it imports what may be missing here.
        from bitstep import observe

        recorder = observe.start(options)
        os.register_at_fork(after_in_child=observe.after_fork)
        close_before_exit(recorder.close)
        _preflight_here(recorder)
    except Exception as error:
        if strict:
            raise
        complain(error)
        return None
    return recorder


def is_helper(words: Sequence[str]) -> bool:
    """Whether a Python with this command line is an agent of torchrun or a compiler of inductor.

    >>> is_helper(["python", "-u", "-m", "torch.distributed.run", "train.py"])
    True
    """
    rest = iter(words[1:])
    for word in rest:
        if word in ("-c", "-m"):
            return word == "-m" and next(rest, "") in HELPER_MODULES
        if word in ("-W", "-X"):
            next(rest, None)
        elif not word.startswith("-"):
            return word.endswith(HELPER_SCRIPTS)
    return False


def _probe_here() -> None:
    """Start the probe of the inertness check, if the environment asks for it."""
    directory = os.environ.get(PROBE)
    if directory:
        from bitstep.observe.probe import start_probe

        close_before_exit(start_probe(Path(directory)).write)


def _preflight_here(recorder: Recorder) -> None:
    """Take the notes of a doctor, if the environment asks for them."""
    steps, _, folder = os.environ.get(PREFLIGHT, "").partition(":")
    if folder:
        from bitstep.observe.preflight import start

        start(recorder, Path(folder), int(steps))


def close_before_exit(close: Callable[[], None]) -> None:
    """Have `close` called before `os._exit` ends the process."""
    leave = os._exit

    @functools.wraps(leave)
    def _exit(status: int) -> NoReturn:
        # A watchdog in another thread must not meet a step that is being written.
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(Exception):
                close()
        leave(status)

    os._exit = _exit


def complain(error: BaseException) -> None:
    """Say on stderr, in one line, why this process is not recorded; nothing where that is gone."""
    words = " ".join(f"{error}".split()) or type(error).__name__
    if not _is_ours(error):
        words = f"{type(error).__name__}: {words}"
    if isinstance(error, ModuleNotFoundError):
        words = f"{error.name} is not installed for {sys.executable}"
    with contextlib.suppress(OSError):
        os.write(2, f"bitstep: not recording: {words}\n".encode(errors="replace"))


def _is_ours(error: BaseException) -> bool:
    from bitstep.errors import BitstepError

    return isinstance(error, BitstepError)
