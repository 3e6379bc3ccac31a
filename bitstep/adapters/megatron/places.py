"""Where the tensors of Megatron lie in logical tensors, which are the same in every layout.

1. `cuts` takes the places of parameters from Megatron's own `sharded_state_dict`, once.
2. A parameter gives pieces: one, two of a gated MLP, several of an optimizer's shard.
3. Gradients, moments and masters lie where their parameter does. After a reduce-scatter, and while
   a gather may be under way, only the own shard is read: the rest of a buffer is stale.
4. Exactly one process counts a piece of all copies: its `main`.

>>> [piece.name for piece in Places([model], optimizer, None).parameters()]  # doctest: +SKIP
['GPTModel.embedding.word_embeddings.weight', ...]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from bitstep.adapters.megatron.boxes import boxes_of
from bitstep.adapters.megatron.cuts import Cut, buffer_cuts, parameter_cuts
from bitstep.adapters.megatron.shards import Shards
from bitstep.records import Box


class Piece(NamedTuple):
    """A local tensor that is a part of a logical one, or all of it."""

    name: str
    """Of the logical tensor: "GPTModel.decoder.layers.3.mlp.linear_fc1.weight"."""
    slot: str
    """param, grad, state.exp_avg, state.master, buffer ..."""
    tensor: Tensor
    place: Box | None
    """None: all of it, or nobody knows where it lies."""
    main: bool
    """Whether this process counts it, of all copies."""


class Places:
    """The pieces that this process holds of a model and of its optimizer."""

    def __init__(
        self, chunks: Sequence[nn.Module], optimizer: Any, vocabulary: int | None = None
    ) -> None:
        """Args:
        chunks: of the model, as a schedule is called with them.
        optimizer: Megatron's, or None.
        vocabulary: rows of the embedding that are no padding, if that is known.
        """
        self._chunks = list(chunks)
        self._shards = Shards(optimizer)
        self._cuts = parameter_cuts(self._chunks, vocabulary)
        self._buffers = buffer_cuts(self._chunks)
        self._groups = _bucket_groups(self._chunks)
        self._late = any(_gathers_late(chunk) for chunk in self._chunks)
        """Parameters are gathered during the next forward."""

    def parameters(self) -> Iterator[Piece]:
        """Of every parameter what is valid here."""
        for parameter, cuts in self._cuts:
            own = self._shards.range_of(parameter) if self._late else None
            yield from _pieces("param", parameter.data, cuts, own)

    def gradients(
        self,
        *,
        reduced: bool = True,
        of: Collection[Tensor] | None = None,
        only_idle: bool = False,
    ) -> Iterator[Piece]:
        """The gradients in Megatron's buffers.

        Args:
            reduced: as they are after synchronisation; else each process has its own.
            of: only those of these parameters.
            only_idle: leave out those that a collective is at work on.
        """
        wanted = None if of is None else {id(parameter) for parameter in of}
        for parameter, cuts in self._cuts:
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is None or (wanted is not None and id(parameter) not in wanted):
                continue
            if only_idle and getattr(self._groups.get(id(parameter)), "grad_reduce_handle", None):
                continue
            own = self._shards.range_of(parameter) if reduced else None
            for piece in _pieces("grad", gradient, cuts, own):
                yield piece if reduced else piece._replace(main=False)

    def moments(self) -> Iterator[Piece]:
        """What the optimizers keep for each parameter, and its master where it has one."""
        for parameter, cuts in self._cuts:
            found = self._shards.state_of(parameter)
            if found is None:
                continue
            own, main, state = found
            if not _same_memory(main, parameter):
                yield from _pieces("state.master", main.detach(), cuts, own, cut_already=True)
            for key, value in state.items():
                if not isinstance(value, Tensor):
                    continue
                if value.numel() == main.numel() and value.dim():
                    yield from _pieces(f"state.{key}", value, cuts, own, cut_already=True)
                elif cuts:
                    first = cuts[0]
                    is_main = (first.main_shard and own[0] == 0) if own else first.main
                    yield Piece(first.name, f"state.{key}", value, None, is_main)

    def buffers(self) -> Iterator[Piece]:
        """Every buffer, those that no checkpoint holds, too."""
        for owner, key, name, place, main in self._buffers:
            value = owner._buffers.get(key)
            if value is not None:
                yield Piece(name, "buffer", value, place, main)


def _pieces(
    slot: str,
    tensor: Tensor,
    cuts: Sequence[Cut],
    own: tuple[int, int] | None,
    *,
    cut_already: bool = False,
) -> Iterator[Piece]:
    """The pieces of a tensor that lies as its parameter does; of the elements `own` only, if given.

    With `cut_already` the tensor is those elements and nothing else.
    """
    flat = tensor.view(-1)
    low, high = own or (0, cuts[-1].end if cuts else 0)
    skipped = low if own and cut_already else 0
    for cut in cuts:
        start, end = max(low, cut.start), min(high, cut.end)
        if start >= end:
            continue
        main = cut.main_shard if own else cut.main
        if cut.place is None:
            yield Piece(cut.name, slot, flat[start - skipped : end - skipped], None, False)
            continue
        at = start
        for box in boxes_of(start - cut.start, end - cut.start, cut.place):
            count = math.prod(box.sizes)
            local = flat[at - skipped : at - skipped + count].view(box.sizes)
            yield Piece(cut.name, slot, local, box, main)
            at += count


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


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
