"""A comparison of twenty lines: the first row of each rank that is not the same, and no more."""

from bitstep.diff.difference import Cause, Covered, Difference, Kind, Where
from bitstep.records import Outcome
from bitstep.trace.run import read_run


def compare_rows(a, b):
    expected, found = (_rows(run) for run in (a, b))
    first = {}
    for site, record in expected.items():
        other = found.get(site)
        if other is None or other.digest != record.digest:
            first.setdefault(site.rank, record)
    ordered = tuple(_cause(r.site) for r in sorted(first.values(), key=lambda r: r.seq))
    return difference_of(a, b, ordered)


def difference_of(a, b, causes):
    """What `compare_runs` would give for these causes."""
    outcome = Outcome.DIFFERENT if causes else Outcome.SAME
    title = causes[0].title if causes else "the same"
    covered = Covered((), None, 0, "op")
    return Difference(
        outcome, title, str(a), str(b), (), (), tuple(causes), (), (), None, covered, (), (), (), ()
    )


def _rows(run):
    records = [r for attempt in read_run(run) for r in attempt.trace.records()]
    # Python's own generator is not seeded by the programs, and a root is about later rows.
    kept = [r for r in records if r.site.step and r.site.slot[:4] not in ("coun", "root", "rng")]
    kept = [r for r in kept if not r.site.op.startswith("c10d")]
    return {r.site: r for r in sorted(kept, key=lambda r: (r.site.rank, r.seq))}


def _cause(site):
    kind = Kind.ORIGIN if site.slot.startswith(("out", "mutated")) else Kind.UNSEEN
    where = Where(*site[:3], *site[4:9], site.slot, 0, 0)
    title = f"step {site.step} {site.phase} {site.module} {site.op} {site.slot}"
    return Cause(kind, where, title, (), "", None, None, (site.rank,), 0, "")
