"""That least squares repeat with one driver and not with the default one, flag or not."""

import pytest
import torch

from bitstep.investigate.survey.inputs import draw, floats

RANK = 4
DEFAULT = "gelsy"


def ranks(driver, times=64):
    """Of one matrix of rank 4, with numbers of others left in the memory that is free."""
    matrix, right = torch.eye(5), torch.ones(5, 1)
    matrix[0] = 0
    found = set()
    for number in range(times):
        torch.full((5,), number % 2, dtype=torch.int32)
        found.add(int(torch.linalg.lstsq(matrix, right, driver=driver).rank))
    return found


@pytest.fixture
def flag():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_the_default_driver_takes_numbers_of_others_for_its_own():
    assert ranks(DEFAULT) == {0, RANK}


def test_with_the_flag_it_repeats_and_is_wrong(flag):
    assert ranks(DEFAULT) == {0}


def test_the_driver_for_full_rank_has_one_solution():
    matrix, right = draw("a", floats(40, 30)), draw("b", floats(40, 5))
    found = set()
    for number in range(64):
        torch.full((30,), number % 2, dtype=torch.int32)
        solution = torch.linalg.lstsq(matrix, right, driver="gels").solution
        found.add(solution.contiguous().numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
def test_other_drivers_are_right_each_time(driver):
    assert ranks(driver) == {RANK}
