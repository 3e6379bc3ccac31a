"""What a flip leaves behind: one JSON file, and who read the wrong byte first.

    receipt-rank-00001-0.json    flip, status, site, where, before, after, consumer

status is fired, or unreached with a reason. Where the file is missing the process has not come to
the end of the step of the flip. The consumer is the first call that takes the flipped byte, or
why there is none: it was freed, or overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from bitstep.faults.calls import Info, reads, written
from bitstep.faults.flip import Flip
from bitstep.faults.raw import Memory, holds, is_freed


@dataclass
class Receipt:
    """One flip of this process, from the first step to its end."""

    flip: Flip
    number: int
    folder: Path | None
    status: str = "waiting"
    seen: int = 0
    """Counted calls of the step so far."""
    held: Memory | None = None
    """The output that a later stray write is to hit."""
    text: dict[str, Any] = field(default_factory=dict)
    _where: int = 0
    _storage: StorageWeakRef | None = None

    def fire(self, tensor: Tensor | Memory, name: str, site: dict[str, Any]) -> None:
        """Flip the bit, now; what cannot be flipped is unreached."""
        try:
            memory = tensor if isinstance(tensor, Memory) else Memory.of(tensor)
            before, after = memory.flip(self.flip.element, self.flip.bit)
        except (IndexError, ValueError) as error:
            self.miss(str(error))
            return
        self.status, self._where = "fired", memory.address(self.flip.element)
        self._storage = memory.storage
        self.text = {
            "site": site,
            "tensor": name,
            "shape": memory.shape,
            "dtype": memory.dtype,
            "before": before,
            "after": after,
        }
        self.write()

    def miss(self, reason: str) -> None:
        """It did not happen, and will not."""
        self.status, self.text = "unreached", {"reason": reason}
        self.write()

    @property
    def is_followed(self) -> bool:
        """Whether the first reader of the flipped byte is still to be found."""
        return self.status == "fired" and "consumer" not in self.text

    def follow(self, info: Info, args: Any, kwargs: Any, site: dict[str, Any]) -> None:
        """Called before each later call: does it take the byte?"""
        if self._storage is None or is_freed(self._storage):
            self._close({"status": "freed", **site})
            return
        for slot, tensor in reads(info, args, kwargs):
            if holds(tensor, self._where):
                self._close({"status": "read", "slot": slot, **site})
                return
        for slot, tensor in written(info, args, kwargs, ()):
            if holds(tensor, self._where):
                self._close({"status": "overwritten", "slot": slot, **site})
                return

    def _close(self, consumer: dict[str, Any]) -> None:
        self.text["consumer"] = consumer
        self.write()

    def write(self) -> None:
        """Leave the file, whole or not at all."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"receipt-rank-{self.flip.rank:05d}-{self.number}.json"
        value = {"flip": self.flip.to_json(), "status": self.status, **self.text}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(value, indent=1) + "\n")
        part.rename(path)


def read_receipts(folder: Path) -> Sequence[dict[str, Any]]:
    """The receipts that a program left, by rank and number."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("receipt-rank-*.json"))]
