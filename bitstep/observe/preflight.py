"""What a doctor wants to know from inside of a program, and how it stops it after its first steps.

1. `start` hooks a recorded process: flags and threads are noted at four moments (`import`, `first
   parameter`, `first step`, `end`), and so is what no trace shows (`lints`).
2. When the step after the last one begins, the trace is closed, FOLDER/PID.json is written, and
   the process waits: other ranks may still need it for their own last step.
3. It leaves without a word to the program when FOLDER/leave is there, or after a while.
4. A program that ends earlier writes the same file, with `stopped` false.

>>> start(recorder, Path("/tmp/notes"), steps=2)  # doctest: +SKIP
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from bitstep.contract.variables import variables
from bitstep.observe.attach import close_before_exit
from bitstep.observe.journal import rank_and_world
from bitstep.observe.lints import Lints
from bitstep.observe.options import LEAVE
from bitstep.observe.standings import as_data

if TYPE_CHECKING:
    from bitstep.observe.recorder import Recorder

_cuda: Any = torch.cuda  # no types
_memory: Any = torch.utils.deterministic
PATIENCE: Final = 120.0
"""Seconds after which a stopped process leaves though nobody told it to."""
_POLL: Final = 0.05
_HARMLESS: Final = ("tqdm_monitor",)
"""Threads that touch no tensor."""


class Preflight:
    """The notes of one process."""

    def __init__(self, recorder: Recorder, folder: Path, steps: int) -> None:
        self._recorder = recorder
        self._folder = folder
        self._left = steps
        self._flags: dict[str, dict[str, Any]] = {"import": flags()}
        self._variables = variables(os.environ)
        self._lints = Lints()
        self._written = False
        self._pid = os.getpid()

    def attach(self) -> None:
        """Hook parameters and the recorder's steps."""
        register_module_parameter_registration_hook(self._registered)
        self._lints.watch()
        level_of = self._recorder.level_of

        def begins(step: int) -> int:
            if step > 0:
                self._step_begins()
            return level_of(step)

        self._recorder.level_of = begins  # type: ignore[method-assign]

    def write(self, stopped: bool = False) -> None:
        """Write the notes, once. A process that never trained leaves none."""
        if self._written or "first step" not in self._flags or os.getpid() != self._pid:
            return
        self._written = True
        self._flags["end"] = flags()
        rank, world = rank_and_world()
        said = {
            "rank": rank,
            "world": world,
            "stopped": stopped,
            "device": "cuda" if _cuda.is_initialized() else "cpu",
            "flags": self._flags,
            "variables": self._variables,
            "late variables": self._late_variables(),
            "threads": [one.name for one in threading.enumerate() if _is_of_program(one)],
            **self._lints.found(self._recorder),
            **_rules(),
        }
        with contextlib.suppress(OSError):
            part = self._folder / f"{os.getpid()}.part"
            part.write_text(json.dumps(said))
            part.rename(part.with_suffix(".json"))

    def _registered(self, module: Any, name: str, parameter: Any) -> None:
        if "first parameter" not in self._flags:
            self._flags["first parameter"] = flags()

    def _step_begins(self) -> None:
        self._flags.setdefault("first step", flags())
        if self._left == 0:
            self._stop()
        self._left -= 1

    def _stop(self) -> None:
        self._recorder.close()
        try:
            self.write(stopped=True)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            began = time.monotonic()
            while not (self._folder / LEAVE).exists() and time.monotonic() < began + PATIENCE:
                time.sleep(_POLL)
        finally:
            os._exit(0)

    def _late_variables(self) -> list[str]:
        """Those that were set after torch was imported; torch names its caches itself."""
        before, now = self._variables, variables(os.environ)
        names = sorted(name for name in now if before.get(name) != now[name])
        return [name for name in names if not name.endswith("_CACHE_DIR")]


def flags() -> dict[str, Any]:
    """What decides about kernels and can be set while a program runs."""
    inductor = sys.modules.get("torch._inductor.config")
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": _memory.fill_uninitialized_memory,
        "threads": torch.get_num_threads(),
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "inductor deterministic": getattr(inductor, "deterministic", None),
    }


def _rules() -> dict[str, Any]:
    """The rules in this process, or why that is not known."""
    try:
        from bitstep.contract.enforce import status

        return {"rules": as_data(status())}
    except Exception as error:  # in somebody's program: less is noted
        return {"rules": [], "problem": f"{type(error).__name__}: {error}"}


def _is_of_program(thread: threading.Thread) -> bool:
    is_ours = thread is threading.main_thread() or thread.name in _HARMLESS
    return thread.is_alive() and not is_ours


def start(recorder: Recorder, folder: Path, steps: int) -> Preflight:
    """Note what this process does, and stop it when step `steps` + 1 begins."""
    notes = Preflight(recorder, folder, steps)
    notes.attach()
    atexit.register(notes.write)
    close_before_exit(notes.write)
    return notes
