"""The words of `bitstep record` become options, and options cross an environment unchanged."""

from pathlib import Path

import pytest

from bitstep.errors import UsageError
from bitstep.observe.options import END, VARIABLE, RecordOptions


def test_words_become_values():
    options = RecordOptions.parse(
        "/runs/a", "module", "10:20", "0, 3", "layers.3.*,head", "2GB", rehash=True, strict=True
    )
    assert options == RecordOptions(
        directory=Path("/runs/a"),
        level="module",
        steps=(10, 20),
        ranks=(0, 3),
        modules=("layers.3.*", "head"),
        budget=2_000_000_000,
        rehash=True,
        strict=True,
    )


@pytest.mark.parametrize(
    ("text", "steps"), [("10:20", (10, 20)), ("7", (7, 8)), (":5", (0, 5)), ("5:", (5, END))]
)
def test_the_last_step_is_not_among_them(text, steps):
    assert RecordOptions.parse("a", steps=text).steps == steps


@pytest.mark.parametrize(
    ("text", "budget"),
    [("500", 500), ("500MB", 500_000_000), ("1.5 gb", 1_500_000_000), ("2GiB", 2 << 30)],
)
def test_a_budget_has_a_unit(text, budget):
    assert RecordOptions.parse("a", budget=text).budget == budget


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"level": "ops"}, "level 'ops': give one of step, phase, module, op"),
        ({"steps": "20:10"}, "steps 20:10 are none: the last is not among them"),
        ({"steps": "a:b"}, "'a' is no step: give numbers from 0, as in 10:20"),
        ({"ranks": "0,x"}, "'x' is no rank: give numbers from 0, as in 0,3"),
        ({"modules": "a,,b"}, "modules: an empty pattern matches nothing; leave it out"),
        ({"budget": "2 parsecs"}, "'2 parsecs' is no budget: give bytes, as in 500MB, 2GB or 2GiB"),
        ({"budget": "0"}, "a budget of 0 bytes holds nothing: leave it out"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(wrong, line):
    with pytest.raises(UsageError) as refused:
        RecordOptions.parse("a", **wrong)
    assert str(refused.value) == line


def test_options_cross_an_environment_unchanged():
    options = RecordOptions.parse("a", "phase", "1:", "0", "x.*", "3kB", rehash=True)
    assert RecordOptions.from_environment(options.to_environment()) == options
    plain = RecordOptions(Path("b"))
    assert RecordOptions.from_environment(plain.to_environment()) == plain


def test_the_directory_stays_where_it_was_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RecordOptions.parse("runs/a").directory == tmp_path / "runs/a"


def test_without_the_variable_there_is_nothing_to_record():
    assert RecordOptions.from_environment({}) is None
    assert RecordOptions.from_environment({VARIABLE: ""}) is None


@pytest.mark.parametrize("text", ["no json", "[]", "{}", '{"directory": 1}'])
def test_another_content_of_the_variable_is_refused(text):
    with pytest.raises(UsageError, match=r"not what .bitstep record. writes there"):
        RecordOptions.from_environment({VARIABLE: text})
