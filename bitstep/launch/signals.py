"""SIGTERM, SIGUSR1 and Ctrl-C mean: save at the next step boundary, and end.

1. `catch_stop` puts handlers in place and takes them away again. A handler only notes the signal.
2. Where the launcher is asked, it also makes a file that its workers look at. A file cannot come
   too early, as a signal to a worker that is still importing would, and it kills nobody.
3. The loop calls the StopRequest at each step boundary; all processes agree through the loop.
4. A second Ctrl-C raises KeyboardInterrupt: end now. What was being written has no marker yet and
   is not read.

>>> with catch_stop() as stop:
...     stop()
False
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

STOPPED = 75
"""Exit status of an attempt that saved and can be resumed (EX_TEMPFAIL of sysexits.h)."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

FILE_VARIABLE = "BITSTEP_STOP_FILE"
"""Names the file whose presence asks the workers of a launcher to stop."""


@dataclass
class StopRequest:
    """Whether this attempt was asked to stop. Calling it costs one stat at most."""

    heard_from: Path | None = None
    """Asked as well when this file is there."""
    passed_to: Path | None = None
    """Made when a signal comes."""
    on_signal: Callable[[signal.Signals], None] | None = None
    """Called from the handler: it must neither block nor use a buffered stream."""
    caught: signal.Signals | None = None
    """The signal that came, if one did; SIGINT if that was among several."""

    def __call__(self) -> bool:
        """Whether to stop at this step boundary."""
        heard = self.heard_from is not None and self.heard_from.exists()
        return heard or self.caught is not None

    @property
    def exit(self) -> int:
        """Exit status of an attempt that stopped for this request."""
        return INTERRUPTED if self.caught is signal.SIGINT else STOPPED

    def pass_to(self, file: Path) -> None:
        """Have the file made when a signal comes, or now if one came already."""
        self.passed_to = file
        if self.caught is not None:
            file.touch()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        received = signal.Signals(number)
        if received is signal.SIGINT and self.caught is signal.SIGINT:
            raise KeyboardInterrupt
        if self.caught is None or received is signal.SIGINT:
            self.caught = received
            if self.passed_to is not None:
                self.passed_to.touch()
            if self.on_signal is not None:
                self.on_signal(received)


@contextmanager
def catch_stop(on_signal: Callable[[signal.Signals], None] | None = None) -> Iterator[StopRequest]:
    """A StopRequest that hears this process's signals, and its launcher's file if it has one."""
    named = os.environ.get(FILE_VARIABLE)
    stop = StopRequest(heard_from=Path(named) if named else None, on_signal=on_signal)
    before = {number: signal.signal(number, stop.handle) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
