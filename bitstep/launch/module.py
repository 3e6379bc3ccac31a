"""Run a module of ours in a fresh process, with an environment of its own, to its end.

>>> run_module("bitstep", ["--version"], dict(os.environ), Path("/tmp/log"), timeout=60)
0
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bitstep.errors import RunError
from bitstep.launch import parent


def run_module(
    module: str, words: Sequence[str], environment: Mapping[str, str], log: Path, timeout: float
) -> int:
    """Run `python -m MODULE WORDS`; its exit status, or minus the signal that ended it.

    Args:
        module: its name; it should call `die_with_parent` first.
        words: the command line after it.
        environment: all of it.
        log: receives stdout and stderr, appended.
        timeout: seconds.

    Raises RunError when it takes longer, and kills it.
    """
    command = [*parent.interpreter(), "-m", module, *words]
    variables = {**environment, **parent.child_environment()}
    with log.open("ab") as said:
        try:
            return subprocess.run(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                timeout=timeout, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunError(f"{module} took longer than {timeout:g} s: see {log}") from None
