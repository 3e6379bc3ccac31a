"""What a person sees while a command works: on stderr, and only as much as stderr can show.

1. `Steps` shows a training: a bar on a terminal; elsewhere a line now and then.
2. `working` turns a wheel on a terminal while something without steps takes its time.

    step 120/300  loss 2.8147  norm 0.912  4210 tokens/s  0:00:41 left  root 5f3c09aa
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from bitstep.cli.output import say, silence

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from bitstep.train.loop import Progress

logger = logging.getLogger("bitstep")

SILENCE = 5.0
"""Seconds between two lines where stderr is not a terminal."""
MEMORY = 0.9
"""Weight of the past in the mean seconds per step."""


class Steps:
    """Call it after each step; close it at the end. Shows nothing with -q."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._seconds = 0.0
        self._last_line = float("-inf")

    def __call__(self, progress: Progress) -> None:
        """Show one step."""
        if not logger.isEnabledFor(logging.INFO):
            return
        first = self._seconds == 0.0
        past = progress.seconds if first else self._seconds
        self._seconds = MEMORY * past + (1 - MEMORY) * progress.seconds
        if sys.stderr.isatty():
            with _that_may_go():
                self._move_bar(progress)
        elif _is_notable(progress) or time.monotonic() - self._last_line >= SILENCE:
            self._last_line = time.monotonic()
            say(step_line(progress, self._seconds))

    def _move_bar(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = _bar()
            self._bar.add_task("", total=progress.steps)
            self._bar.start()
        line = step_line(progress, self._seconds)
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=progress.result.step, description=line, refresh=True)

    def close(self) -> None:
        """Leave the bar as it is and give the terminal back. Once more does nothing."""
        if self._bar is not None:
            with _that_may_go():
                self._bar.stop()
            self._bar = None


@contextmanager
def _that_may_go() -> Iterator[None]:
    """Write to a terminal: when it is gone the training is not."""
    try:
        yield
    except OSError:
        silence(sys.stderr)


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    # No refreshing thread: steps refresh it, and training has the process to itself.
    return Bar(
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        auto_refresh=False,
    )


def _is_notable(progress: Progress) -> bool:
    is_last = progress.result.step == progress.steps
    return is_last or progress.evaluation is not None or progress.saved is not None


def step_line(progress: Progress, seconds: float) -> str:
    """One step as a line; `seconds` is the mean time of a step."""
    metrics = progress.result.metrics
    left = timedelta(seconds=round((progress.steps - progress.result.step) * seconds))
    words = [
        f"step {progress.result.step}/{progress.steps}",
        f"loss {metrics['loss']:.4f}",
        f"norm {metrics['grad_norm']:.3f}",
        f"{metrics['tokens'] / progress.seconds:.0f} tokens/s",
        f"{left} left",
        f"root {progress.result.roots['state']:016x}"[:13],
    ]
    if progress.evaluation is not None:
        words.append(f"held-out {progress.evaluation:.4f}")
    if progress.saved is not None:
        words.append(f"saved {progress.saved.name}")
    return "  ".join(words)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Turn a wheel with the seconds that went by; only on a terminal, and not with -q."""
    if not sys.stderr.isatty() or not logger.isEnabledFor(logging.INFO):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(text, total=None)
        yield
