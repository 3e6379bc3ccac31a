"""Change a module of torch when the program imports it, and not before.

1. A module that is there already is handed over at once.
2. Else a finder waits for its name; importing it costs seconds (inductor) that only a program that
   uses it may pay, and would change what the program has loaded.
3. `undo` takes the finder away. Whatever `then` raises becomes a sentence for `gap`.

>>> import math
>>> when_imported("math", lambda module: print(module.__name__), Undo(), print)
math
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from bitstep.observe.undo import Undo

Then = Callable[[ModuleType], None]
Gap = Callable[[str], None]


def when_imported(name: str, then: Then, undo: Undo, gap: Gap) -> None:
    """Call `then` with the module, now or once the program has imported it."""

    def change(module: ModuleType) -> None:
        try:
            then(module)
        except Exception as error:
            gap(f"{name} is not observed: {type(error).__name__}: {error}")

    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        change(module)
        return
    finder = _Finder(name, change)
    sys.meta_path.insert(0, finder)
    undo.add(finder.leave)


class _Finder:
    """Finds one module as the finders behind it would, and hears when it has been executed."""

    def __init__(self, name: str, then: Then) -> None:
        self._name = name
        self._then = then

    def leave(self) -> None:
        """Do not wait any longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of the module that is waited for; None for any other name.

        It may be asked without an import, by `importlib.util.find_spec`.
        """
        if name != self._name or self not in sys.meta_path:
            return None
        # Those behind us only: another that waits for the same module asks us, as one of those.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def execute_and_tell(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the loader is as it was
            execute(module)
            if self in sys.meta_path:  # an import that failed before is waited for again
                self.leave()
                self._then(module)

        loader.exec_module = execute_and_tell
