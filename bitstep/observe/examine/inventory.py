"""Every stream of a live program, now: its leaves, and how it is changed.

    parameters  gradients  moments/exp_avg  buffer/running_mean  attribute/expert_bias
    hyperparameter/lr  schedule/sched  scaler/scaler  random/torch  loader/train.py:20
    counter/trainer.seen  tensor/ema

1. Modules, optimizers and loaders are those that the program's first steps have used.
2. Everything else hangs on the program's own variables (`walk`).
3. Tensors of one meaning are one stream: the expert bias of all layers.

>>> take(Program(Names(), none := Optimizers()), none, [])["random/torch"].leaves[0].said
'uint8 (5056,)'
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bitstep.observe.examine import draws
from bitstep.observe.examine.leaves import Leaf, flatten, leaf_of, number
from bitstep.observe.examine.loaders import Watched
from bitstep.observe.examine.walk import Thing, is_scaler, reachable
from bitstep.observe.optimizers import Optimizers
from bitstep.observe.program import Program
from bitstep.observe.snapshot import Item, listed

SEED = 20_11
"""Of the noise that is added to a perturbed tensor."""


@dataclass
class Stream:
    """One thing that may have to be in a checkpoint."""

    name: str
    leaves: list[Leaf] = field(default_factory=list)
    changes: list[Callable[[], None]] = field(default_factory=list)
    """Called one after the other, they perturb it."""

    def to_json(self) -> list[list[Any]]:
        return [list(leaf) for leaf in self.leaves]


def take(program: Program, optimizers: Optimizers, loaders: Iterable[Watched]) -> dict[str, Stream]:
    """All streams of this process, by name."""
    found = _Found()
    known = set()
    for items, stream in (
        (program.parameters(), "parameters"),
        (program.gradients(), "gradients"),
        (program.moments(), ""),
        (program.buffers(), ""),
    ):
        for item in listed(items):
            known.add(id(item.tensor))
            found.tensor(stream or _stream_of(item), _path(item), item.tensor)
    for optimizer in optimizers:
        for at, group in enumerate(optimizer.param_groups):
            found.settings(at, group)
    for name, generator in draws.processwide().items():
        found.generator(name, generator)
        known.add(id(generator))
    for watched in loaders:
        found.loader(watched)
    for thing in reachable():
        if id(thing.value) not in known:
            found.thing(thing)
    return found.streams


class _Found:
    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}

    def at(self, name: str) -> Stream:
        return self.streams.setdefault(name, Stream(name))

    def tensor(self, name: str, path: str, tensor: Tensor) -> None:
        leaf = leaf_of(path, tensor)
        if leaf is None:
            leaf = Leaf(path, "empty", True, "nothing")
        stream = self.at(name)
        stream.leaves.append(leaf)
        stream.changes.append(lambda: shake(tensor))

    def settings(self, at: int, group: dict[str, Any]) -> None:
        for key, value in list(group.items()):
            if isinstance(value, int | float) and not isinstance(value, bool):
                stream = self.at(f"hyperparameter/{key}")
                stream.leaves.append(number(f"param_groups.{at}.{key}", value))
                stream.changes.append(
                    lambda key=key, value=value: group.__setitem__(key, other(value))  # type: ignore[misc]
                )

    def loader(self, watched: Watched) -> None:
        stream = self.at(f"loader/{watched.name}")
        stream.leaves += watched.position()
        stream.changes.append(lambda: _skip(watched))

    def generator(self, name: str, generator: Any) -> None:
        stream = self.at(f"random/{name}")
        stream.leaves.append(draws.state_of(name, generator))
        stream.changes.append(lambda: draws.advance(generator))

    def thing(self, thing: Thing) -> None:
        path, value = thing.path, thing.value
        if isinstance(value, int | float):
            stream = self.at(f"counter/{_without_number(path)}")
            stream.leaves.append(number(path, value))
            stream.changes.append(lambda: thing.put(other(value)))
        elif isinstance(value, Tensor):
            if value.grad_fn is not None:
                return  # a result on its way, not state
            self.tensor(f"tensor/{_without_number(path)}", path, value)
        elif isinstance(value, np.ndarray):
            self._array(path, value)
        elif draws.is_generator(value):
            self.generator(path, value)
        elif is_scaler(value):
            self._states(f"scaler/{path}", value, ("scale", "_growth_tracker"), _grow)
        else:
            self._states(f"schedule/{path}", value, ("last_epoch",), _pass)

    def _array(self, path: str, array: np.ndarray[Any, Any]) -> None:
        leaf = leaf_of(path, array)
        if leaf is not None and array.dtype.kind in "iuf":
            stream = self.at(f"tensor/{_without_number(path)}")
            stream.leaves.append(leaf)
            stream.changes.append(lambda: np.add(array, 1, out=array, casting="unsafe"))

    def _states(
        self, name: str, holder: Any, wanted: tuple[str, ...], change: Callable[[Any], None]
    ) -> None:
        """What moves in the `state_dict` of a schedule or scaler."""
        stream = self.at(name)
        held = [leaf for leaf in flatten(holder.state_dict()) if leaf.path in wanted]
        path = name.partition("/")[2]
        stream.leaves += [leaf._replace(path=f"{path}.{leaf.path}") for leaf in held]
        stream.changes.append(lambda: change(holder))


def digest(items: Iterable[Item]) -> str:
    """One text for the bits of all items, whatever their order."""
    found = hashlib.blake2b(digest_size=8)
    for text in sorted(f"{i.name} {leaf_of('', i.tensor)}" for i in listed(items)):
        found.update(text.encode("utf-8", "backslashreplace"))
    return found.hexdigest()


def _stream_of(item: Item) -> str:
    slot = item.slot.removeprefix("state.")
    if item.slot in ("buffer", "attr"):
        kind = "buffer" if item.slot == "buffer" else "attribute"
        return f"{kind}/{_without_number(item.name).rpartition('.')[2]}"
    return f"moments/{slot}"


def _path(item: Item) -> str:
    if item.slot in ("param", "buffer", "attr"):
        return item.name
    return f"{item.name}.{item.slot.removeprefix('state.')}"


def _without_number(path: str) -> str:
    """ "Net.cache.0" -> "Net.cache": what hangs in one list is one stream."""
    head, _, last = path.rpartition(".")
    return _without_number(head) if head and last.isdecimal() else path


def other(value: int | float) -> int | float:
    """Another number of the same kind."""
    return value + 1 if isinstance(value, int) else value * 1.5 + 1.0


def shake(tensor: Tensor) -> None:
    """Change every element, each in its own way: an offset common to all may cancel."""
    inner = getattr(tensor, "_local_tensor", tensor)
    with _disable_current_modes(), torch.no_grad():
        plain = inner.detach()
        if plain.dtype is torch.bool:
            plain.logical_not_()
        elif plain.is_floating_point() and plain.numel() > 1:
            generator = torch.Generator(plain.device).manual_seed(SEED)
            noise = torch.rand(plain.shape, generator=generator, device=plain.device)
            plain.add_(((plain.abs().float() + 1.0) * noise).to(plain.dtype))
        else:
            plain.add_(1)


def _skip(watched: Watched) -> None:
    watched.skips += 1


def _grow(scaler: Any) -> None:
    # Not by a power of two, which changes no bit of what is scaled and unscaled.
    state = scaler.state_dict()
    scaler.load_state_dict({**state, "scale": state["scale"] * 1.5})


def _pass(schedule: Any) -> None:
    schedule.last_epoch += 1
