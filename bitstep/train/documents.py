"""Which documents a step was trained on: the first thing to look at when a loss jumps.

The order of data is a pure function of (seed, epoch, index), so nothing was stored for this. What
comes out is checked: the tokens are made again and must have the fingerprints that the step
recorded, so a corpus or a recipe that is not the run's cannot name wrong documents.

    documents_of(Path("runs/a"), step=120)[5]    # of logical rank 5
"""

from __future__ import annotations

from pathlib import Path

from bitstep.contract.manifest import read_manifest
from bitstep.data.loader import Loader
from bitstep.errors import DataError, TraceError
from bitstep.fingerprint import fingerprint
from bitstep.trace.run import read_run
from bitstep.train.data import read_corpus
from bitstep.train.recipe import Recipe, load
from bitstep.train.resolve import CHANGES, SOURCE


def documents_of(run: Path, step: int) -> tuple[tuple[str, ...], ...]:
    """For each logical rank, the relative paths of the documents in its microbatch of a step.

    Raises TraceError if the run has not recorded the step, DataError if the corpus is another or
    the documents cannot be told.
    """
    recorded = _recorded_batches(run, step)
    last = read_manifest(run)[-1].manifest.keys
    recipe = load(last[SOURCE], last[CHANGES])
    corpus = read_corpus(recipe, expect=last["data.digest"])
    loader = Loader(
        corpus,
        "train",
        seed=recipe.run.seed,
        sequence=recipe.data.sequence,
        lookahead=recipe.lookahead,
    )
    return tuple(
        _documents(loader, recipe, step, rank, recorded.get(rank))
        for rank in range(recipe.layout.logical_ranks)
    )


def _documents(
    loader: Loader, recipe: Recipe, step: int, rank: int, recorded: int | None
) -> tuple[str, ...]:
    count = recipe.data.sequences
    position = (step - 1) * recipe.sequences_per_step + rank * count
    if fingerprint(loader.tokens(position, count)).sum != recorded:
        raise DataError(
            f"step {step}, logical rank {rank}: the recorded batch is not the one of this recipe; "
            "the run has a branch that changed its data: look at `bitstep manifest show`"
        )
    named = (path for row in loader.documents(position, count) for path in row)
    return tuple(dict.fromkeys(named))


def _recorded_batches(run: Path, step: int) -> dict[int, int]:
    """Fingerprint sum of each logical rank's batch, from the newest attempt that did the step."""
    for attempt in reversed(read_run(run)):
        batches = {
            record.site.rank: record.digest
            for record in attempt.trace.records()
            if record.site.step == step and record.site.slot == "batch"
        }
        if batches:
            return batches
    raise TraceError(f"{run} has not recorded step {step}: see `bitstep log {run}`")
