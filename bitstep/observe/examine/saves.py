"""What a program saves, and from what it restores: the calls, and the leaves that they were given.

1. `torch.save`, safetensors' and torch.distributed.checkpoint's functions are wrapped.
2. `saving` hears of a save before it happens; a file that was written is kept under another name,
   as most programs move or replace theirs.
3. Muted, nothing is written: a perturbed child leaves no checkpoint behind.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from bitstep.observe.examine.frames import where
from bitstep.observe.examine.leaves import flatten
from bitstep.observe.imported import when_imported
from bitstep.observe.undo import Undo

LARGEST_COPY: Final = 2 << 30
"""Bytes of a file that is copied where it cannot be linked."""
_CALLS: Final = {
    "safetensors.torch": (("save_file",), ("load_file",)),
    "torch.distributed.checkpoint": (("save", "async_save"), ("load",)),
}
"""Of each module the functions that save, and those that load."""


class Saves:
    """Saves and loads of this process."""

    def __init__(self, folder: Path, saving: Callable[[], int]) -> None:
        self.events: list[dict[str, Any]] = []
        self.loads: list[dict[str, str]] = []
        self.is_muted = False
        self._folder = folder
        self._saving = saving
        """Gives back the step."""
        self._depth = 0

    def attach(self, gap: Callable[[str], None]) -> None:
        """Wrap what is there, and the rest when the program imports it."""
        undo = Undo()
        torch.save = self._around_save("torch.save", torch.save)
        torch.load = self._around_load("torch.load", torch.load)
        for module in _CALLS:  # waited for once: two that wait for one name ask each other
            when_imported(module, self._wrap, undo, gap)

    def _wrap(self, module: ModuleType) -> None:
        saves, loads = _CALLS[module.__name__]
        for names, around in ((saves, self._around_save), (loads, self._around_load)):
            for name in names:
                original = getattr(module, name, None)
                if original is not None:
                    setattr(module, name, around(f"{module.__name__}.{name}", original))

    def _around_save(self, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(state: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return original(state, *args, **kwargs)
            if self.is_muted:
                return None
            event = {"how": call, "where": where(), "step": self._saving(), "copy": ""}
            event["leaves"] = [list(leaf) for leaf in flatten(state)]
            path = _path_of(args, kwargs)
            self._depth += 1
            try:
                return original(state, *args, **kwargs)
            finally:
                self._depth -= 1
                event["path"] = path
                event["copy"] = self._keep(path)
                self.events.append(event)

        return save

    def _around_load(self, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            path = _path_of(args, kwargs)
            if not self._depth:
                self.loads.append({"how": call, "where": where(), "path": path})
            return original(*args, **kwargs)

        return load

    def _keep(self, path: str) -> str:
        """A link to the file in our folder, or a copy; "" where there is no file to be had."""
        if not path or not os.path.isfile(path):
            return ""
        name = f"saved-{os.getpid()}-{len(self.events)}"
        self._folder.mkdir(parents=True, exist_ok=True)
        # Linked, unless the program goes on to write into the same file: torch.save has closed it.
        with contextlib.suppress(OSError):
            if os.path.getsize(path) <= LARGEST_COPY:
                shutil.copyfile(path, self._folder / name)
                return name
            os.link(path, self._folder / name)
            return name
        return ""


def _path_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    for value in (*args, *(kwargs.get(k) for k in ("f", "filename", "checkpoint_id"))):
        if isinstance(value, str | os.PathLike):
            return os.path.abspath(os.fspath(value))
    return ""
