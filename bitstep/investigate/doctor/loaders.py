"""Findings about loaders: samples that follow the number of workers, orders drawn from a
generator that others draw from, iterators that draw although nothing is shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bitstep.investigate.doctor.finding import Finding
from bitstep.investigate.doctor.runs import Process

_RESTORES: Final = ("torch.set_rng_state", "torch.random.set_rng_state")


def of_workers(
    base: Process, others: Sequence[tuple[str, int]], parts_at: str
) -> Iterator[Finding]:
    """What follows the number of workers.

    Args:
        base: the program as it is.
        others: loaders whose batches are others, and the first such batch.
        parts_at: where bits part when that number alone is another.
    """
    loaders = {loader["name"]: loader for loader in base["loaders"]}
    for name, batch in others:
        loader = loaders[name]
        had = loader["workers"]
        yield Finding(
            severity="under a setting",
            what=f"the samples of {loader['dataset']} depend on the number of workers",
            where=f"DataLoader at {name}",
            why=_why(loader),
            fix=_fix(loader),
            evidence=f"measured: batch {batch} is another with {0 if had else 2} workers than "
            f"with {had}",
        )
    if not others:
        drawn = [loader for loader in base["loaders"] if loader["drawn"]]
        names = ", ".join(f"{loader['dataset']} at {loader['name']}" for loader in drawn)
        yield Finding(
            severity="under a setting",
            what="bits depend on the number of workers, although the batches do not",
            where=names or "DataLoader",
            why="without workers a dataset draws from the generators that the model draws from",
            fix="draw in the dataset from a generator keyed by (seed, epoch, index)",
            evidence=f"measured: with another number of workers runs part at {parts_at}",
        )


def _why(loader: Mapping[str, Any]) -> str:
    if loader["is_iterable"]:
        return "each worker iterates all of it, or a part that follows from how many there are"
    drawn = ", ".join(loader["drawn"])
    from_what = f"draws from the generator of {drawn}, which" if drawn else "draws numbers that"
    return f"it {from_what} each worker seeds by its own number; in no worker it is the program's"


def _fix(loader: Mapping[str, Any]) -> str:
    if loader["is_iterable"]:
        return "have it yield by index: item i for every i of this rank, whoever the worker is"
    return (
        "draw in __getitem__ from a generator of its own, keyed by (seed, epoch, index); "
        "worker_init_fn or base_seed fix a number of workers, and not all of them"
    )


def of_iterators(process: Process) -> Iterator[Finding]:
    """Iterators that draw from the program's generator as they are made."""
    shuffled = [
        loader["name"]
        for loader in process["loaders"]
        if _shuffles(loader) and not loader["has_generator"] and loader["iterators"]
    ]
    for loader in process["loaders"]:
        if loader["has_generator"] or not (loader["iterators"] or loader["is_alive"]):
            continue
        drew = any("torch" in made["drew"] for made in loader["iterators"])
        if loader["iterators"] and not drew:
            continue
        yield _of_order(loader) if _shuffles(loader) else _of_start(loader, shuffled)


def _shuffles(loader: Mapping[str, Any]) -> bool:
    return bool(
        loader["sampler"] in ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler")
    )


def _measured(loader: Mapping[str, Any]) -> str:
    if loader["iterators"]:
        line = loader["iterators"][0]["where"]
        return f"measured: iter() at {line} moved the generator of torch"
    return "source: torch draws a base seed; its iterator was not made in these steps"


def _of_order(loader: Mapping[str, Any]) -> Finding:
    return Finding(
        severity="under a setting",
        what=f"the order of {loader['dataset']} is drawn from the program's own generator",
        where=f"DataLoader at {loader['name']}, {loader['sampler']}",
        why=(
            "whatever else draws before an epoch (an evaluation, a layer, a log) gives it another "
            "order; and a resume that restores the generator and then makes the iterator is off"
        ),
        fix="DataLoader(..., generator=torch.Generator().manual_seed(SEED)), saved with the rest",
        evidence=_measured(loader),
    )


def _of_start(loader: Mapping[str, Any], shuffled: Sequence[str]) -> Finding:
    others = f"the order of {', '.join(shuffled)} and " if shuffled else ""
    return Finding(
        severity="under a setting",
        what=f"making an iterator over {loader['dataset']} draws a number, shuffled or not",
        where=f"DataLoader at {loader['name']}",
        why=(
            f"it comes from the program's generator: {others}every later draw moves by one where "
            "it is iterated once more (an evaluation), or after a restored state is in place"
        ),
        fix="DataLoader(..., generator=torch.Generator()); on resume make the iterator first",
        evidence=_measured(loader),
    )


def after_restore(process: Process) -> Iterator[Finding]:
    """Iterators that were made after the state of the generator was put back."""
    restored = ""
    for event in process["events"][: process.get("events_before", 0)]:
        if event["call"] in _RESTORES:
            restored = event["where"]
        elif restored and "torch" in event.get("drew", ""):
            yield Finding(
                severity="missed by a checkpoint",
                what="a restored generator is drawn from before the first step after it",
                where=f"iter(DataLoader) at {event['where']}, after set_rng_state at {restored}",
                why=(
                    "making the iterator takes a number that the uninterrupted run took long "
                    "before, so that every draw of the steps that follow is another"
                ),
                fix="make the iterator first and restore the state after it, or pass generator=",
                evidence="measured: the state moved between the restore and the first forward",
            )
            restored = ""
