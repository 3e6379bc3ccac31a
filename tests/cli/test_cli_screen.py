"""What a person sees of a step."""

from __future__ import annotations

import errno
import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from bitstep.cli.habits import logger, reset_level
from bitstep.cli.screen import SILENCE, Steps, step_line, working

ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def progress(step, steps=300, evaluation=None, saved=None, seconds=2.0):
    metrics = {"loss": 2.81469, "grad_norm": 0.91234, "tokens": 768.0}
    result = SimpleNamespace(step=step, metrics=metrics, roots={"state": 0x00C0FFEE12345678})
    return SimpleNamespace(
        result=result, steps=steps, seconds=seconds, evaluation=evaluation, saved=saved
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def as_terminal(monkeypatch):
    """Make stderr a terminal. In the test itself: pytest puts its own in place after fixtures."""
    reset_level()
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_step_is_one_line():
    assert step_line(progress(120), seconds=0.5) == (
        "step 120/300  loss 2.8147  norm 0.912  384 tokens/s  0:01:30 left  root 00c0ffee"
    )


def test_what_was_evaluated_and_saved_is_said():
    line = step_line(progress(120, evaluation=2.75, saved=Path("c/step-00000120")), 0.5)
    assert line.endswith("  held-out 2.7500  saved step-00000120")


def test_hours_are_hours():
    assert "  2:00:00 left" in step_line(progress(120, steps=7320), seconds=1.0)


def test_without_a_terminal_a_line_now_and_then(capsys, monkeypatch):
    reset_level()
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    steps = Steps()
    for step in range(1, 11):
        steps(progress(step, steps=10, evaluation=1.0 if step == 4 else None))
        clock[0] += SILENCE / 2.5
    shown = [line.split("/")[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["step 1", "step 4", "step 7", "step 10"]


def test_quiet_shows_no_step(capsys):
    reset_level()
    logger.setLevel("ERROR")
    Steps()(progress(1))
    assert capsys.readouterr().err == ""


def test_on_a_terminal_a_bar_moves_and_the_cursor_comes_back(monkeypatch):
    screen = as_terminal(monkeypatch)
    steps = Steps()
    for step in (1, 2):
        steps(progress(step, steps=2))
    steps.close()
    steps.close()
    text = screen.getvalue()
    assert "step 1/2" in text
    assert "step 2/2" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert ANSI_COLOUR.search(text)


def test_a_terminal_that_is_gone_ends_no_training(monkeypatch):
    screen = as_terminal(monkeypatch)
    steps = Steps()
    steps(progress(1))

    def write(text):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(screen, "write", write)
    steps(progress(2))
    steps.close()


def test_no_color_is_honoured(monkeypatch):
    screen = as_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    steps = Steps()
    steps(progress(1))
    steps.close()
    with working("reading"):
        pass
    assert "step 1/300" in screen.getvalue()
    assert not ANSI_COLOUR.search(screen.getvalue())


def test_working_is_silent_without_a_terminal(capsys):
    reset_level()
    with working("reading"):
        pass
    assert capsys.readouterr() == ("", "")
