"""Comparing arms: the first site that is not equal, and which streams part."""

from bitstep.investigate.compare import first_difference, merge, streams_that_differ
from bitstep.records import Site

F32 = ("float32", ())


def site(step, slot, rank=-1, phase="optimizer"):
    return Site(step, rank, phase, slot)


LOSS, ROOT = site(1, "metric.loss", phase="forward"), site(1, "root")


def test_equal_arms_have_no_difference():
    rows = {LOSS: (1, *F32), ROOT: (2, *F32)}
    assert first_difference(rows, dict(reversed(rows.items()))) is None


def test_the_first_difference_is_the_earliest_step_and_the_earliest_place_in_it():
    later = site(2, "metric.loss", phase="forward")
    expected = {later: (7, *F32), LOSS: (1, *F32), ROOT: (2, *F32)}
    found = {later: (8, *F32), LOSS: (1, *F32), ROOT: (3, *F32)}
    difference = first_difference(expected, found)
    assert difference.site == ROOT
    assert str(difference) == ("step 1, optimizer, root: 0000000000000002 against 0000000000000003")


def test_a_logical_rank_is_named():
    batch = site(4, "batch", rank=5, phase="data")
    difference = first_difference({batch: (1, *F32)}, {batch: (2, *F32)})
    assert "step 4, data, batch, logical rank 5" in str(difference)


def test_a_missing_and_an_extra_row_are_differences():
    assert first_difference({LOSS: (1, *F32)}, {}).found is None
    assert first_difference({}, {LOSS: (1, *F32)}).expected is None
    assert "no row" in str(first_difference({LOSS: (1, *F32)}, {}))


def test_dtype_and_shape_count_as_well_as_the_digest():
    assert first_difference({LOSS: (1, "float32", ())}, {LOSS: (1, "bfloat16", ())})
    assert first_difference({LOSS: (1, "float32", (2,))}, {LOSS: (1, "float32", (1, 2))})


def test_attempts_that_agree_where_they_overlap_are_one_arm():
    merged = merge([{LOSS: (1, *F32)}, {LOSS: (1, *F32), ROOT: (2, *F32)}])
    assert merged.rows == {LOSS: (1, *F32), ROOT: (2, *F32)}
    assert merged.conflict is None


def test_attempts_that_disagree_are_a_conflict():
    merged = merge([{ROOT: (1, *F32)}, {ROOT: (2, *F32)}])
    assert merged.conflict.site == ROOT
    assert merged.conflict.expected == (1, *F32)


def test_only_streams_whose_roots_part_are_named():
    moments, data = site(1, "root.moments"), site(1, "root.data")
    expected = {moments: (1, *F32), data: (1, *F32), LOSS: (1, *F32)}
    found = {moments: (2, *F32), data: (1, *F32), LOSS: (2, *F32)}
    assert streams_that_differ(expected, found) == ("moments",)
