"""What the adapter of an engine may use of a recorder.

1. `events` hears where work, steps and phases begin and end, and takes metrics and state.
2. `scope` labels what runs inside: `scope.in_phase("clip")`.
3. `names` gives modules their names; `use` puts the adapter's source of state in place.
4. `undo` takes changes back when the recorder detaches; `gap` says what is not observed.

>>> engine.events.metric("grad_norm", 0.5, "clip")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bitstep.observe.events import Events
from bitstep.observe.names import Names
from bitstep.observe.scope import Scope
from bitstep.observe.snapshot import Source
from bitstep.observe.undo import Undo


@dataclass(frozen=True)
class Engine:
    """A recorder, as the adapter of an engine sees it."""

    events: Events
    scope: Scope
    names: Names
    undo: Undo
    gap: Callable[[str], None]

    def use(self, source: Source) -> None:
        """Read the training state there from now on."""
        self.events.state.source = source

    @property
    def source(self) -> Source:
        """Where the training state is read."""
        return self.events.state.source
