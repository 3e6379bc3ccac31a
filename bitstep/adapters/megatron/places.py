"""Where the tensors of Megatron lie in logical tensors, which are the same in every layout.

1. `cuts` takes the places of parameters from Megatron's own `sharded_state_dict`, once.
2. A parameter gives pieces: one, two of a gated MLP, several of an optimizer's shard. They are cut
   once; from then on a stream says whether it is still made of the same (`Held`).
3. Gradients, moments and masters lie where their parameter does. After a reduce-scatter, and while
   a gather may be under way, only the own shard is read: the rest of a buffer is stale.
4. Exactly one process counts a piece of all copies: its `main`.

>>> [piece.name for piece in Places([model], optimizer, None).parameters()]  # doctest: +SKIP
['GPTModel.embedding.word_embeddings.weight', ...]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from torch import Tensor, nn

from bitstep.adapters.megatron.boxes import boxes_of
from bitstep.adapters.megatron.cuts import Cut, cuts_of
from bitstep.adapters.megatron.shards import Kept, Range, is_first_instance, kept, owned
from bitstep.fingerprint import part
from bitstep.fingerprint.logical import contribution
from bitstep.fingerprint.places import whole
from bitstep.observe.snapshot import Held, Item

Cutting = Iterator[tuple[int, Item]]
_MASTER: Final = ("param", "master_param")
"""What precision-aware optimizers call the master that they keep in their state."""


class Places:
    """The pieces that this process holds of a model and of its optimizer."""

    def __init__(
        self, chunks: Sequence[nn.Module], optimizer: Any, vocabulary: int | None = None
    ) -> None:
        """Args:
            chunks: of the model, as a schedule is called with them.
            optimizer: Megatron's, or None.
            vocabulary: rows of the embedding that are no padding, if that is known.

        Raises:
            UsageError: the embedding has fewer rows than that.
            FingerprintError: Megatron cannot say where tensors lie.
        """
        self._key = object()
        """Streams of other places are others."""
        self._parameters, self._buffers = cuts_of(chunks, vocabulary)
        self._kept = {id(found.parameter): found for found in kept(optimizer)}
        self._owned = owned(chunks)
        self._is_first = is_first_instance(chunks)
        self._groups = _bucket_groups(chunks)
        self._late = any(_gathers_late(chunk) for chunk in chunks)
        """Parameters are gathered during the next forward."""

    @property
    def unplaced(self) -> list[str]:
        """Parameters of which Megatron does not say where they lie: no logical root counts them."""
        return [cuts[0].name for _, cuts in self._parameters if cuts and cuts[0].place is None]

    def parameters(self) -> Held:
        """Of every parameter what is valid here."""

        def cut() -> Cutting:
            for at, (parameter, cuts) in enumerate(self._parameters):
                own = self._owned.get(parameter) if self._late else None
                for piece in _pieces("param", parameter.data, cuts, own, self._is_first):
                    yield at, piece

        return Held((self._key, "param"), [parameter for parameter, _ in self._parameters], cut)

    def gradients(
        self,
        *,
        reduced: bool = True,
        of: Collection[Tensor] | None = None,
        only_idle: bool = False,
    ) -> Held:
        """The gradients in Megatron's buffers.

        Args:
            reduced: as they are after synchronisation; else each process has its own.
            of: only those of these parameters.
            only_idle: leave out those that a collective is at work on.
        """
        wanted = None if of is None else {id(parameter) for parameter in of}
        found: dict[int, Tensor] = {}
        for number, (parameter, _) in enumerate(self._parameters):
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is None or (wanted is not None and id(parameter) not in wanted):
                continue
            if only_idle and getattr(self._groups.get(id(parameter)), "grad_reduce_handle", None):
                continue
            found[number] = gradient

        def cut() -> Cutting:
            for at, (number, gradient) in enumerate(found.items()):
                parameter, cuts = self._parameters[number]
                own = self._owned.get(parameter) if reduced else None
                for piece in _pieces("grad", gradient.detach(), cuts, own, self._is_first):
                    yield at, piece if reduced else piece._replace(main=False)

        return Held((self._key, "grad", reduced, tuple(found)), list(found.values()), cut)

    def moments(self) -> Held:
        """What the optimizers keep for each parameter, and its master where it has one."""
        found = [
            (number, slot, tensor)
            for number, (parameter, _) in enumerate(self._parameters)
            if (kept := self._kept.get(id(parameter))) is not None
            for slot, tensor in _tensors(kept)
        ]

        def cut() -> Cutting:
            for at, (number, slot, tensor) in enumerate(found):
                parameter, cuts = self._parameters[number]
                for piece in _kept_pieces(slot, tensor, cuts, self._kept[id(parameter)]):
                    yield at, piece

        names = tuple((number, slot) for number, slot, _ in found)
        return Held((self._key, "moments", names), [tensor for _, _, tensor in found], cut)

    def buffers(self) -> Held:
        """Every buffer, those that no checkpoint holds, too."""
        found = [
            (value, name, main)
            for owner, key, name, main in self._buffers
            if (value := owner._buffers.get(key)) is not None
        ]

        def cut() -> Cutting:
            for at, (value, name, main) in enumerate(found):
                yield at, Item(name, "buffer", value, None, main)

        names = tuple(name for _, name, _ in found)
        return Held((self._key, "buffer", names), [value for value, _, _ in found], cut)


def total(pieces: Iterable[Item]) -> int:
    """What this process adds to the logical root of a stream: the pieces that it counts.

    The sum over all processes, modulo 2^64, is the logical root.
    """
    return sum(_contribution(piece) for piece in pieces if piece.main) % 2**64


def _contribution(piece: Item) -> int:
    place = piece.place or whole(piece.tensor.shape)
    dtype = str(piece.tensor.dtype).removeprefix("torch.")
    found = part(piece.tensor.detach(), place).sum
    return contribution(piece.name, piece.slot, dtype, place.shape, found)


def _pieces(
    slot: str,
    tensor: Tensor,
    cuts: Sequence[Cut],
    own: Range | None,
    counted: bool,
    *,
    is_shard: bool = False,
) -> Iterator[Item]:
    """The pieces of a tensor that lies as its parameter does; of the elements `own` only, if given.

    With `is_shard` the tensor has those elements and no other.
    """
    flat = tensor.reshape(-1)
    low, high = own or (0, cuts[-1].end if cuts else 0)
    shift = low if is_shard else 0
    for cut in cuts:
        start, end = max(low, cut.start), min(high, cut.end)
        if start >= end:
            continue
        if cut.place is None:
            yield Item(cut.name, slot, flat[start - shift : end - shift], None, False)
            continue
        main = cut.main_shard and counted if own else cut.main
        at = start - shift
        for box in boxes_of(start - cut.start, end - cut.start, cut.place):
            local = flat[at : at + math.prod(box.sizes)].view(box.sizes)
            # Without a place it is all of it, and may be read with others at once.
            yield Item(cut.name, slot, local, None if box.sizes == box.shape else box, main)
            at += local.numel()


def _kept_pieces(slot: str, tensor: Tensor, cuts: Sequence[Cut], found: Kept) -> Iterator[Item]:
    if not tensor.dim():
        return _scalar(slot, tensor, cuts, found)
    return _pieces(slot, tensor.detach(), cuts, found.own, found.counted, is_shard=True)


def _scalar(slot: str, tensor: Tensor, cuts: Sequence[Cut], found: Kept) -> Iterator[Item]:
    """A number that is kept for a whole parameter. It is counted where the first element is."""
    if not cuts:
        return
    first = cuts[0]
    main = first.main
    if found.own:
        main = first.main_shard and found.counted and found.own[0] == 0
    is_first = first.place is not None and not any(first.place.offsets)
    yield Item(first.name, slot, tensor, None, main and is_first)


def _tensors(found: Kept) -> Iterator[tuple[str, Tensor]]:
    """Slot and tensor of the master and of each moment, by name: a restored state may have its
    keys in another order."""
    if not _same_memory(found.stepped, found.parameter):
        yield "state.master", found.stepped
    for key, value in sorted(found.state().items()):
        if isinstance(value, Tensor):
            yield "state.master" if key in _MASTER else f"state.{key}", value


def _same_memory(a: Tensor, b: Tensor) -> bool:
    if a is b or a.dtype != b.dtype:
        return a is b
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _bucket_groups(chunks: Sequence[nn.Module]) -> dict[int, Any]:
    """Parameter -> the bucket group that reduces its gradient."""
    found: dict[int, Any] = {}
    for chunk in chunks:
        for parameter, group in getattr(chunk, "param_to_bucket_group", {}).items():
            found[id(parameter)] = group
    return found


def _gathers_late(chunk: nn.Module) -> bool:
    config = getattr(chunk, "ddp_config", None)
    overlaps = getattr(config, "overlap_param_gather", False)
    return bool(overlaps and getattr(config, "use_distributed_optimizer", False))
