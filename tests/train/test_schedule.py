import math

import pytest
from pydantic import ValidationError

from bitstep.errors import RecipeError
from bitstep.train.schedule import ScheduleConfig, check_schedule, learning_rate


def rates(schedule, steps, upto=None):
    return [learning_rate(position, schedule, steps) for position in range(upto or steps)]


def test_warm_up_is_linear_and_ends_at_the_peak():
    assert rates(ScheduleConfig(warmup=4), 100, 4) == [0.25, 0.5, 0.75, 1.0]


def test_wsd_stays_at_the_peak_then_falls_linearly_to_the_floor():
    schedule = ScheduleConfig(kind="wsd", warmup=2, decay=4, floor=0.0)
    assert rates(schedule, 9) == [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_wsd_without_decay_stays_at_the_peak():
    assert rates(ScheduleConfig(kind="wsd", floor=0.5), 3) == [1.0, 1.0, 1.0]


def test_cosine_falls_over_all_steps_after_the_warm_up():
    schedule = ScheduleConfig(kind="cosine", warmup=1, floor=0.5)
    expected = [1.0] + [0.5 + 0.5 * (0.5 * (1.0 + math.cos(math.pi * k / 4))) for k in range(1, 5)]
    assert rates(schedule, 5) == expected
    assert expected[2] == pytest.approx(0.75, abs=1e-15)


def test_the_last_step_is_at_the_floor_and_later_ones_too():
    for schedule in (ScheduleConfig(floor=0.125), ScheduleConfig(kind="wsd", decay=3, floor=0.125)):
        assert [learning_rate(position, schedule, 10) for position in (9, 10, 50)] == [0.125] * 3


def test_a_run_that_is_all_warm_up_ends_at_the_peak():
    assert rates(ScheduleConfig(warmup=2), 2, 3) == [0.5, 1.0, 1.0]


def test_cosine_reads_no_decay():
    assert rates(ScheduleConfig(decay=7), 10) == rates(ScheduleConfig(), 10)


def test_a_schedule_that_does_not_fit_is_refused():
    check_schedule(ScheduleConfig(kind="wsd", warmup=4, decay=6), 10)
    check_schedule(ScheduleConfig(kind="cosine", warmup=4, decay=7), 10)
    with pytest.raises(RecipeError, match="4 warm-up and 7 decay steps does not fit into 10 steps"):
        check_schedule(ScheduleConfig(kind="wsd", warmup=4, decay=7), 10)


@pytest.mark.parametrize(
    "values", [{"kind": "linear"}, {"warmup": -1}, {"floor": 1.5}, {"floor": math.nan}, {"x": 1}]
)
def test_other_values_and_keys_are_refused(values):
    with pytest.raises(ValidationError):
        ScheduleConfig(**values)


def test_a_schedule_is_frozen():
    with pytest.raises(ValidationError):
        ScheduleConfig().warmup = 3
