"""What a program has saved, read back in this process, and which streams it holds.

1. A file of torch.save is read with weights_only, a safetensors file by its library; JSON files
   beside them are read as well. No pickle of anything else is opened: where a file needs it, or is
   gone, the leaves stand in that the program handed over.
2. A leaf is held if the same bits are there; one that another may equal by chance only under its
   own name. Equal bits under another name are `like`.

>>> saved = Saved(leaves=(Leaf("step", "number 3", True, "3"),))
>>> saved.has(Leaf("trainer.step", "number 3", True, "3")), saved.like("number 3")
(True, 'step')
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from bitstep.errors import printable
from bitstep.observe.examine.leaves import Leaf, flatten

_COUNTED: Final = re.compile(r"(^|\.)\d+(\.step)?$")
_CLASS: Final = re.compile(r"GLOBAL ([\w.]+)")
LARGEST: Final = 8 << 30
"""Bytes of a file that is read."""
LARGEST_JSON: Final = 16 << 20


@dataclass(frozen=True)
class Saved:
    """All that was saved at one step."""

    leaves: tuple[Leaf, ...] = ()
    paths: tuple[str, ...] = ()
    where: str = ""
    """The line that saved first."""
    step: int = 0
    needs_pickle: tuple[str, ...] = ()
    """Files that weights_only refuses, each with the reason."""
    unread: tuple[str, ...] = ()
    """Saves of which only what was handed over is known."""

    @cached_property
    def _paths(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for leaf in self.leaves:
            found.setdefault(leaf.digest, []).append(leaf.path)
        return found

    def has(self, leaf: Leaf) -> bool:
        """Whether its bits are there, under its own name if others may have them by chance."""
        paths = self._paths.get(leaf.digest, [])
        if not leaf.common:
            return bool(paths)
        name = _bare(leaf.path.rpartition(".")[2])
        return any(name in map(_bare, path.split(".")) for path in paths)

    def like(self, digest: str) -> str:
        """The shortest name under which these bits are there; "" for none.

        Not a place in a list, and not the count of updates that an optimizer keeps for each
        parameter: every checkpoint has those.
        """
        names = [path for path in self._paths.get(digest, ()) if not _COUNTED.search(path)]
        return min(names, key=len, default="")

    def named(self, leaf: Leaf) -> Leaf | None:
        """What is there under the same last name and with another content."""
        last = leaf.path.rpartition(".")[2]
        return next((o for o in self.leaves if o.path.rpartition(".")[2] == last), None)


def _bare(name: str) -> str:
    return name.lower().strip("_")


def read_saved(events: Sequence[Mapping[str, Any]], folder: Path) -> Saved | None:
    """What the events of one step left, or None without any. `folder`: of the run."""
    if not events:
        return None
    leaves: list[Leaf] = []
    needs_pickle, unread = [], []
    for event in events:
        found, refusal = _read_file(event, folder)
        if refusal:
            needs_pickle.append(f"{Path(event['path']).name}: {refusal}")
        if found is None:
            name = Path(event["path"]).name if event["path"] else "a buffer"
            unread += [] if refusal else [f"{name} of {event['how']}"]
            found = [Leaf(*leaf) for leaf in event["leaves"]]
        leaves += found
    folders = {Path(event["path"]).parent for event in events if event["copy"]}
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        leaves += _read_json(path)
    return Saved(
        leaves=tuple(leaves),
        paths=tuple(dict.fromkeys(event["path"] for event in events if event["path"])),
        where=events[0]["where"],
        step=events[0]["step"],
        needs_pickle=tuple(needs_pickle),
        unread=tuple(unread),
    )


def _read_file(event: Mapping[str, Any], folder: Path) -> tuple[list[Leaf] | None, str]:
    """The leaves of a file, or None; and why weights_only refuses it."""
    file = folder / Path(event["copy"]).name if event["copy"] else None
    if file is None or not file.is_file() or file.stat().st_size > LARGEST:
        return None, ""
    if event["how"].startswith("safetensors"):
        return _tried(lambda: _safetensors(file))[0], ""
    return _tried(lambda: _weights_only(file))


def _tried(read: Callable[[], Any]) -> tuple[list[Leaf] | None, str]:
    try:
        return list(flatten(read())), ""
    except Exception as error:  # a hostile or damaged file may raise anything
        text = str(error)
        if (found := _CLASS.search(text)) is not None:
            return None, f"it needs the class {found[1]}"
        return None, f"{type(error).__name__}: {printable(text.strip().split(chr(10))[0])[:160]}"


def _weights_only(file: Path) -> Any:
    import numpy as np
    import torch

    rebuild: Any = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    dtypes: list[Any] = [np.dtypes.UInt32DType, np.dtypes.Float64DType, np.dtypes.Float32DType]
    dtypes += [np.dtypes.Int64DType, np.dtypes.BoolDType, np.dtype, np.ndarray]
    # Arrays without code of their own: NumPy's generator is kept in one.
    with torch.serialization.safe_globals([rebuild, *dtypes]):
        return torch.load(file, map_location="cpu", weights_only=True)


def _safetensors(file: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(file)


def _read_json(path: Path) -> Iterator[Leaf]:
    try:
        if path.stat().st_size <= LARGEST_JSON:
            yield from flatten(json.loads(path.read_bytes()), path.stem)
    except (OSError, ValueError, RecursionError):
        return
