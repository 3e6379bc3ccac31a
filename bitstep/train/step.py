"""One optimizer update, and what is known about it by its bits.

    leaves      forward and backward of each logical rank that this process stands for
    reduce      their gradients, added up in the tree of the recipe
    clip        by the exact norm
    optimizer   AdamW, then the expert bias
    roots       of the gradients before clipping, and of every stream after the update

The processes learn of each other by integer all-reduces alone: the losses by their bits, the norm
in fixed point, the parts of the fingerprints.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from bitstep.fingerprint import root
from bitstep.records import Fingerprint
from bitstep.state.roots import state_root, value_fingerprint, whole_fingerprints
from bitstep.state.streams import TENSOR_STREAMS, Piece
from bitstep.train.build import Engine
from bitstep.train.leaf import run_leaf, share
from bitstep.train.model.router import update_expert_bias
from bitstep.train.norm import clip_, exact_norm
from bitstep.train.reduction import Counter, spread, take_gradients
from bitstep.train.schedule import learning_rate

log = logging.getLogger("bitstep")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step left behind; the same on every process, whatever the layout."""

    step: int
    metrics: dict[str, float]
    """loss, load_balancing, z_loss, mtp_1 ..., total, grad_norm, lr, tokens."""
    leaf_losses: tuple[float, ...]
    """Language-model loss of each logical rank."""
    batches: tuple[Fingerprint, ...]
    """Fingerprint of the tokens of each logical rank."""
    randoms: tuple[Fingerprint, ...]
    """Fingerprint of what keyed the draws of each logical rank."""
    roots: dict[str, int]
    """`gradients`, each stream, and `state`: the state root after the step."""


def train_step(engine: Engine) -> StepResult:
    """Do the next step; afterwards `engine.state` is the state after it."""
    values = engine.state.values
    step = values["step"]["step"] + 1
    counter = Counter(engine.layout, engine.fault)
    leaves = []
    for microbatch, rank in enumerate(engine.layout.leaves()):
        log.debug("step %d: forward and backward of microbatch %d", step, microbatch)
        leaves.append(run_leaf(engine, rank))
        counter.push(take_gradients(engine.model, engine.layout))
    gradients = spread(counter.result(), engine.model, engine.layout, engine.tree)
    log.debug("step %d: clip", step)
    norm = exact_norm(gradients, engine.processes)
    gradient_root = root(whole_fingerprints(_as_pieces(engine, gradients), engine.processes))
    clip_(gradients, norm, engine.recipe.optimizer.clip)
    log.debug("step %d: optimizer", step)
    lr = _update(engine, gradients)
    shared = share(engine, leaves)
    _update_biases(engine, shared.expert_counts)
    randoms = tuple(_randoms(engine))
    _advance(engine)
    log.debug("step %d: roots", step)
    extra = {"grad_norm": norm, "lr": lr, "tokens": engine.recipe.tokens_per_step}
    return StepResult(
        step=step,
        metrics=shared.means() | extra,
        leaf_losses=shared.losses["loss"],
        batches=shared.batches,
        randoms=randoms,
        roots={"gradients": gradient_root, **state_roots(engine)},
    )


def state_roots(engine: Engine) -> dict[str, int]:
    """The root of each stream and of the whole state, as it is now."""
    prints = whole_fingerprints(engine.state.pieces, engine.processes)
    tensors = {
        stream: root({path: f for path, f in prints.items() if path.startswith(f"{stream}/")})
        for stream in TENSOR_STREAMS
    }
    values = {
        stream: root({stream: value_fingerprint(value)})
        for stream, value in engine.state.values.items()
    }
    return tensors | values | {"state": state_root(prints, engine.state.values)}


def _as_pieces(engine: Engine, gradients: Sequence[torch.Tensor]) -> list[Piece]:
    parameters = [piece for piece in engine.state.pieces if piece.stream == "parameters"]
    return [
        Piece("gradients", piece.name, gradient, piece.place)
        for piece, gradient in zip(parameters, gradients, strict=True)
    ]


def _update(engine: Engine, gradients: list[torch.Tensor]) -> float:
    recipe, schedule = engine.recipe, engine.state.values["schedule"]
    fraction = learning_rate(schedule["position"], recipe.schedule, recipe.run.steps)
    lr = recipe.optimizer.lr * fraction
    engine.optimizer.step(gradients, lr=lr, update=schedule["updates"] + 1)
    return lr


def _update_biases(engine: Engine, counts: torch.Tensor) -> None:
    rate = engine.recipe.model.bias_rate
    for bias, count in zip(engine.model.expert_biases(), counts, strict=True):
        update_expert_bias(bias, count.to(bias.device), rate)


def _randoms(engine: Engine) -> Iterable[Fingerprint]:
    keyed = engine.state.values["random"]
    for rank in range(engine.layout.logical_ranks):
        yield value_fingerprint(keyed | {"rank": rank})


def _advance(engine: Engine) -> None:
    values = engine.state.values
    values["schedule"]["position"] += 1
    values["schedule"]["updates"] += 1
    values["random"]["counter"] += 1
    values["data"]["position"] += engine.recipe.sequences_per_step
    values["step"]["step"] += 1
