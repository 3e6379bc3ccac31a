"""A control file changes the level of a live run from a named step on, and never harms it."""

import logging
import os

import pytest

from bitstep.observe.control import NAME, Control


@pytest.fixture
def file(tmp_path):
    return tmp_path / NAME


@pytest.fixture
def said():
    """What is logged, whatever other tests left at the logger."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("bitstep").addHandler(handler)
    yield lines
    logging.getLogger("bitstep").removeHandler(handler)


def test_without_a_file_the_level_is_the_usual_one(tmp_path):
    assert Control(tmp_path, "phase").level(3) == "phase"


def test_a_file_holds_from_its_step_on(tmp_path, file):
    control = Control(tmp_path, "step")
    assert control.level(1) == "step"
    file.write_text('level = "op"\nfrom_step = 5\n')
    assert [control.level(step) for step in (2, 4, 5, 9)] == ["step", "step", "op", "op"]


def test_to_step_is_the_first_step_of_the_usual_level_again(tmp_path, file):
    file.write_text('level = "op"\nfrom_step = 5\nto_step = 7\n')
    control = Control(tmp_path, "step")
    assert [control.level(step) for step in (4, 5, 6, 7)] == ["step", "op", "op", "step"]


def test_a_file_that_is_removed_is_forgotten(tmp_path, file):
    file.write_text('level = "op"\nfrom_step = 0\n')
    control = Control(tmp_path, "step")
    assert control.level(1) == "op"
    file.unlink()
    assert control.level(2) == "step"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("level = ", "Invalid value"),
        ('level = "ops"\nfrom_step = 1', "level = 'ops': give one of step, phase, module, op"),
        ('level = "op"', "give from_step, and to_step after it, as numbers of steps"),
        ('level = "op"\nfrom_step = 3\nto_step = 3', "give from_step, and to_step after it"),
        ('level = "op"\nfrom_step = true', "give from_step"),
        ('level = "op"\nfrom = 3', "'from' is none of level, from_step, to_step"),
        ("\udcff", "invalid start byte"),
    ],
)
def test_a_file_that_cannot_be_meant_is_reported_once(tmp_path, file, said, text, words):
    file.write_bytes(text.encode(errors="surrogateescape"))
    control = Control(tmp_path, "step")
    assert [control.level(step) for step in (1, 2, 3)] == ["step"] * 3
    (line,) = said
    assert line.startswith(f"{file} is not followed: ")
    assert words in line


def test_a_pipe_is_not_waited_for(tmp_path, file):
    os.mkfifo(file)
    assert Control(tmp_path, "step").level(1) == "step"
