"""The tensors of a training by name, and their bytes after each update.

    states = States(folder)
    states.meet(root)             # at the first forward
    states.find("grad:0.weight")  # now, or None
    states.write(rank, step, optimizer)

state-rank-00000.jsonl holds a line per update: SHA-256 of parameters, gradients, moments and
buffers by their raw bytes, and the bits of each loss. Two runs with equal lines trained the same.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bitstep.faults.raw import digest, local, raw_bytes


class States:
    """What this process trains."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._roots: list[weakref.ref[nn.Module]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._losses: list[str] = []

    def meet(self, root: nn.Module) -> None:
        """Learn of a root module."""
        if all(known() is not root for known in self._roots):
            self._roots.append(weakref.ref(root))

    def meet_optimizer(self, optimizer: Any) -> None:
        """Learn of an optimizer: of torch, or of our engine."""
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def lose(self, losses: Sequence[Tensor]) -> None:
        """Learn of the tensors that a backward begins at."""
        self._losses += [raw_bytes(loss).hex()[:64] for loss in losses]

    def find(self, name: str) -> Tensor | None:
        """The tensor of that name ("param:0.weight"), if it is there now."""
        return next((tensor for known, tensor in self.named() if known == name), None)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, gradient, buffer and entry of an optimizer's state, as it is now."""
        names: dict[int, str] = {}
        for root in filter(None, (known() for known in self._roots)):
            for name, parameter in root.named_parameters():
                names.setdefault(id(parameter), name)
                yield f"param:{name}", local(parameter)
                if parameter.grad is not None:
                    yield f"grad:{name}", local(parameter.grad)
            yield from ((f"buffer:{name}", local(buffer)) for name, buffer in root.named_buffers())
        for optimizer in filter(None, (known() for known in self._optimizers)):
            yield from _moments(optimizer, names)

    def write(self, rank: int, step: int) -> None:
        """Leave the line of an update."""
        if self._folder is None:
            return
        streams: dict[str, list[tuple[str, Tensor]]] = {}
        for name, tensor in self.named():
            kind = name.partition(":")[0]
            stream = {"param": "parameters", "grad": "gradients", "buffer": "buffers"}
            streams.setdefault(stream.get(kind, "moments"), []).append((name, tensor))
        line = {"step": step, "loss": self._losses, **{s: digest(t) for s, t in streams.items()}}
        self._losses = []
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"state-rank-{rank:05d}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def _moments(optimizer: Any, names: dict[int, str]) -> Iterator[tuple[str, Tensor]]:
    if hasattr(optimizer, "moments"):  # of our engine
        masters = list(optimizer.moments()["exp_avg"])
        for kind, moments in optimizer.moments().items():
            yield from ((f"{kind}:{name}", moment) for name, moment in moments.items())
        gradients = getattr(optimizer, "gradients_of_faults", ())
        pairs = zip(masters, gradients, strict=False)
        yield from ((f"grad:{name}", gradient) for name, gradient in pairs)
        return
    for parameter, state in getattr(optimizer, "state", {}).items():
        name = names.get(id(parameter), "")
        for key, value in state.items():
            if isinstance(value, Tensor):
                yield f"{key}:{name}", local(value)


def first_difference(one: Path, other: Path) -> dict[str, Any] | None:
    """The first line that is not the same in two folders of states; None where all are equal.

    Gradients alone do not count: what is left of them after an update is read by nobody, or shows
    in the next one.
    """
    names = sorted({path.name for f in (one, other) for path in f.glob("state-rank-*.jsonl")})
    found = []
    for name in names:
        for number, (a, b) in enumerate(zip_longest(_lines(one / name), _lines(other / name))):
            if a != b:
                keys = {**(a or {}), **(b or {})}
                parted = [k for k in keys if (a or {}).get(k) != (b or {}).get(k)]
                if parted == ["gradients"]:
                    continue
                step = (a or b or {}).get("step", -1)
                found.append({"step": step, "file": name, "update": number, "streams": parted})
                break
    return min(found, key=lambda d: d["update"], default=None)


def _lines(path: Path) -> list[Any]:
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in path.read_text().splitlines()]
    return []
