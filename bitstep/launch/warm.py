"""Run a Python script many times without importing torch each time: forks of a warm process.

1. `Warm` starts `python -m bitstep.launch.warm`, which imports torch and the recorder, and waits.
2. `Warm.run` has it fork a child, which takes the environment, the words and the log of a run,
   attaches what the environment asks for, and runs the script as `python SCRIPT` would.
3. The status of each child comes back as it ends. Closing kills all of them.

What is read when torch is imported (OMP_NUM_THREADS and the like) is as it was in the starter.

    with Warm(Path("log")) as warm:
        warm.run(["train.py", "--steps", "6"], {**os.environ, ...}, Path("run/log"))
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from bitstep.errors import RunError
from bitstep.launch import parent

POLL = 0.01
"""Seconds between two looks for children that have ended."""


class Warm:
    """A warm process. `run` may be called from several threads."""

    def __init__(self, log: Path) -> None:
        """Start it; what it says itself goes to the log."""
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [*parent.interpreter(), "-m", "bitstep.launch.warm"],
                env={**os.environ, **parent.child_environment()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        self._log = log
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[int]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self, words: Sequence[str], env: Mapping[str, str], log: Path, timeout: float) -> int:
        """Run `python WORDS` with exactly that environment; its exit status. Raises RunError."""
        answer: Future[int] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
            order = {"number": number, "words": list(words), "env": dict(env), "log": str(log)}
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(order) + "\n")
            except OSError:
                raise RunError(f"the warm process has ended: see {self._log}") from None
        try:
            return answer.result(timeout)
        except TimeoutError:
            raise RunError(f"a run took longer than {timeout:g} s: see {log}") from None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, status = json.loads(line)
            self._waiting.pop(number).set_result(status)
        for answer in self._waiting.values():
            answer.set_exception(RunError(f"the warm process has ended: see {self._log}"))

    def close(self) -> None:
        """Kill it with all that it has forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve() -> None:
    """In the warm process: fork a child for each order, answer when it ends."""
    parent.die_with_parent()
    _preload()
    children: dict[int, int] = {}
    unread = b""
    while True:
        if select.select([0], [], [], POLL)[0]:
            given = os.read(0, 1 << 20)
            if not given:
                return
            *orders, unread = (unread + given).split(b"\n")
            for order in orders:
                value = json.loads(order)
                children[_fork(value)] = value["number"]
        _answer(children)


def _answer(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        exit_ = os.waitstatus_to_exitcode(status)
        os.write(1, json.dumps([children.pop(pid), exit_]).encode() + b"\n")


def _preload() -> None:
    import torch
    import torch._inductor  # by use_deterministic_algorithms, and takes longer than torch
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import torch.nn.parallel

    import bitstep.faults.armed
    import bitstep.observe.attach
    import bitstep.observe.recorder
    import bitstep.train.loop  # noqa: F401
    from bitstep.fingerprint import fingerprint

    # Compiled code is loaded by its first use; none of this draws a random number.
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool):
        fingerprint(torch.zeros(4, 3, dtype=dtype))
        fingerprint(torch.zeros(4, 3, dtype=dtype).t())


def _fork(order: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _become(order)
        status = _run(order["words"])
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _become(order: dict[str, Any]) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.clear()
    os.environ.update(order["env"])
    os.environ.pop(parent.VARIABLE, None)  # about another process


def _run(words: list[str]) -> int:
    from bitstep import faults
    from bitstep.adapters import attach_here

    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    attach_here()
    faults.arm()
    try:
        runpy.run_path(words[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.last_value = error  # As Python does: a recorder looks there.
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return status


if __name__ == "__main__":
    serve()
