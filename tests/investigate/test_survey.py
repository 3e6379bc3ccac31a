"""The survey: fakes that vary with one thing each must be caught, and those that do not must not;
real operations that are known to vary are found; a process that dies costs one case."""

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bitstep.contract.survey import Measured
from bitstep.contract.survey_file import parse
from bitstep.errors import RunError, UsageError
from bitstep.investigate.survey import survey, without_controls
from bitstep.investigate.survey.case import Case, operations
from bitstep.investigate.survey.cases import all_cases, chosen, identity
from bitstep.investigate.survey.inputs import draw, flags, floats, index, order, positive, ties
from bitstep.investigate.survey.measure import MOST, REPEATS, measure
from bitstep.investigate.survey.training import STABLE, VARIES

X = {"x": floats(64)}
NEVER = ((1, REPEATS),) * 4


def faked(run, **how):
    return measure(Case("fake", "aten.fake", X, run, **how))


def test_a_stable_operation_varies_with_nothing():
    found = faked(lambda x: x * 2, rows=("x",))
    assert (found.off, found.on) == (NEVER, NEVER)
    assert (found.threads, found.alignment, found.rows) == ("aaaa", "a" * 16, "=" * 8)
    assert not found.varies("off")
    assert not found.raises
    assert found.ops == ("aten.mul",)


def test_an_operation_that_is_another_each_time_is_run_as_often_as_possible():
    numbers = itertools.count()
    found = faked(lambda x: x + next(numbers))
    assert found.off == ((MOST, MOST),) * 4
    assert found.varies("off")
    assert found.varies("on")
    assert (found.threads, found.alignment, found.rows) == ("", "", "")


def test_a_race_that_shows_once_in_a_while_is_seen():
    numbers = itertools.count()

    def rarely(x):
        # Call 41 of 64 at two threads, after one plain call and eight at one thread.
        return x + (next(numbers) == 1 + REPEATS + 41)

    assert faked(rarely, often=True).off == ((1, REPEATS), (2, MOST), (1, MOST), (1, MOST))


def test_a_race_that_the_flag_cures_leaves_the_numbers_of_threads_comparable():
    numbers = itertools.count()

    def cured(x):
        steady = torch.are_deterministic_algorithms_enabled()
        return x * (torch.get_num_threads() if steady else 1 + next(numbers))

    found = faked(cured)
    assert found.varies("off")
    assert not found.varies("on")
    assert found.threads == "abcd"


def test_dependence_on_threads_alone_is_told_from_a_race():
    found = faked(lambda x: x + (torch.get_num_threads() > 1))
    assert (found.off, found.threads) == (NEVER, "abbb")


def test_dependence_on_the_address_is_seen_in_its_classes():
    found = faked(lambda x: x + x.data_ptr() // 4 % 4)
    assert found.alignment == "abcd" * 4


def test_dependence_on_the_number_of_rows_is_seen_at_that_number():
    found = faked(lambda x: x + (len(x) == 3), rows=("x",))
    assert found.rows == "==x====="


def test_what_the_flag_refuses_is_told_with_its_words():
    def refused(x):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("fake has no deterministic way")
        return x

    found = faked(refused)
    assert (found.off, found.on) == (NEVER, ())
    assert found.raises == "RuntimeError: fake has no deterministic way"
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_cannot_run_at_all_is_no_result():
    def missing(x):
        raise NotImplementedError("not on this machine\nwith more words")

    found = faked(missing)
    assert found == Measured(op="aten.fake", failed="NotImplementedError: not on this machine")


def test_of_several_results_those_that_vary_are_named():
    found = faked(lambda x: (x, x + torch.get_num_threads()))
    assert found.parts == {"threads": ("out.1",)}


def test_signed_zeros_and_payloads_of_nan_count():
    zeros, numbers = itertools.count(), itertools.count()

    def other_zero(x):
        return x * 0.0 * (-1) ** next(zeros)

    def other_nan(x):
        return torch.full((4,), 0x7FC00000 + next(numbers), dtype=torch.int32).view(torch.float32)

    assert faked(other_zero).varies("off")
    assert faked(other_nan).varies("off")


def test_the_settings_of_this_process_are_as_before():
    before = torch.get_num_threads()
    faked(lambda x: x)
    assert torch.get_num_threads() == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_backward_case_gives_the_gradients_of_floating_inputs():
    case = Case("pick", "aten.index_put", {"x": floats(5), "i": index(9, below=5)},
                lambda x, i: x[i], backward=True)  # fmt: skip
    assert list(case.compute(case.inputs())) == ["grad.x"]


def test_a_sum_depends_on_the_number_of_threads_for_real():
    found = measure(all_cases()["sum f32"])
    assert found.off == NEVER
    assert len(set(found.threads)) > 1


def test_writing_to_one_place_from_several_threads_is_seen_to_race_for_real():
    case = all_cases()["index_put_ accumulate, duplicates f32"]
    for _ in range(10):  # a race is seen by chance: 64 of 64 results differed at 8 threads
        found = measure(case)
        assert found.off[0] == (1, REPEATS)
        assert found.on == ((1, REPEATS), *((1, MOST),) * 3)
        if found.varies("off"):
            return
    pytest.fail("index_put_ with duplicates never varied in 10 times 192 repeats")


def test_inputs_are_the_same_everywhere():
    golden = ["0x1.db494p+2", "-0x1.0725d8p-4", "0x1.0254700000000p+1"]
    assert draw("x", floats(3)).tolist() == [float.fromhex(text) for text in golden]
    assert draw("i", index(5, below=50)).tolist() == [21, 44, 32, 30, 5]


def test_a_smaller_input_is_the_beginning_of_a_larger_one():
    for make in (floats, positive, ties, flags):
        assert torch.equal(draw("x", make(7, 3)), draw("x", make(20, 3))[:7])
    assert sorted(draw("i", order(100)).tolist()) == list(range(100))
    assert len(set(draw("i", index(1000, below=10)).tolist())) == 10


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about what is in beta
def test_every_case_runs_and_calls_the_operation_that_it_is_about():
    for name, case in all_cases().items():
        assert case.op in operations(case, case.inputs()), name


def test_cases_are_chosen_by_name_or_by_operation():
    assert chosen("sum f64")[2:] == ["sum f64"]
    assert "x[i] backward f32" in chosen("index_put")
    assert chosen("sum f64")[:2] == [VARIES.name, STABLE.name]
    with pytest.raises(UsageError, match="no case of the survey fits 'nothing'"):
        chosen("nothing")


def test_another_input_is_another_survey(monkeypatch):
    before = identity()
    monkeypatch.setattr("bitstep.investigate.survey.training.LENGTH", 7)
    assert identity() != before


def test_a_survey_that_does_not_see_its_controls_reports_nothing():
    varies = Measured(op="aten.add", off=((64, 64),), environments="abc")
    stable = Measured(op="aten.add", off=((1, 8),), environments="aaa")
    good = {VARIES.name: varies, STABLE.name: stable, "sum": stable}
    assert without_controls(good) == {"sum": stable}
    blind = replace(varies, off=((1, 8),))
    wild = replace(stable, environments="aab")
    for bad in ({**good, VARIES.name: blind}, {**good, STABLE.name: wild}):
        with pytest.raises(RunError, match="does not see its own controls"):
            without_controls(bad)


@pytest.mark.long
def test_a_whole_survey_in_its_processes(monkeypatch):
    # A variable that chooses kernels is taken away, so that two machines can be compared.
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    said = []
    report = survey("cpu", "dot f32", said.append)
    assert list(report.cases) == ["dot f32"]
    found = report.cases["dot f32"]
    assert found.environments[:2] == "aa"
    assert found.environments[-1] != "a", "the first process was measured with MKL_CBWR"
    assert said[0] == "measuring 3 cases"
    assert parse(report.text().encode(), Path("mine.json")) == report


@pytest.mark.long
def test_a_case_that_kills_its_process_costs_that_case_alone(monkeypatch, tmp_path):
    monkeypatch.setattr("bitstep.investigate.survey.ENVIRONMENTS", {"cpu": ()})
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.getcwd()}")
    report = survey("cpu", "outer*")
    assert report.cases["outer f32"].failed == f"the process ended with {-signal.SIGKILL}"
    assert report.cases["outer f32"].bits == ""
    assert report.cases["outer f64"].threads == "aaaa"


KILLER = """
import os, signal, sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "bitstep.investigate.survey.machine" and "worker" in sys.orig_argv[-2]:
            import torch
            plain = torch.outer
            def outer(x, y):
                if x.dtype == torch.float32:
                    os.kill(os.getpid(), signal.SIGKILL)
                return plain(x, y)
            torch.outer = outer
        return None

sys.meta_path.insert(0, Finder)
"""
