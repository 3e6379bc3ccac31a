"""What events need from the recorder, and what keeps them from failing the program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol


class Host(Protocol):
    """The recorder, as events see it."""

    def level_of(self, step: int) -> int:
        """The level that is asked for."""

    def leveled(self, level: int) -> None:
        """The level of the step that begins."""

    def opened(self) -> None:
        """The first training step begins."""

    def backward_ended(self) -> None:
        """A backward came back."""

    def step_ends(self, step: int) -> None:
        """The last rows of a step may be written."""


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that cannot fail the program, and whose own work is not recorded."""

    @functools.wraps(method)
    def call(events: Any, *args: Any, **kwargs: Any) -> None:
        if events.asleep or not events.is_ours():
            return
        events.asleep = True
        try:
            method(events, *args, **kwargs)
        except Exception as error:
            events.failed(error)
        finally:
            events.asleep = events.journal.ceiling < 0
            if events.asleep:
                events.drop()

    return call
