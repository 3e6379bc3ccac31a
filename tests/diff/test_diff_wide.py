"""Of thousands of ranks that ended alike, the last step of one says how far a run went."""

from bitstep.bench.diff import make_wide_pair
from bitstep.diff import compare_runs, coverage


def test_the_ends_of_ranks_that_ended_alike_are_not_read(tmp_path, monkeypatch):
    read = []

    def noted(life, process, last_step=coverage._last_step):
        read.append((life.run, process))
        return last_step(life, process)

    monkeypatch.setattr(coverage, "_last_step", noted)
    pair = make_wide_pair(tmp_path, ranks=40, steps=20)
    found = compare_runs(pair.left, pair.right)
    assert found.causes[0].where.rank == pair.process
    assert {run for run, _ in read} == {"a", "b"}
    assert len({process for _, process in read}) == 1
