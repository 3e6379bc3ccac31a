"""What holds for every verb."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bitstep.cli import run
from bitstep.cli.habits import numbers, reset_level, show
from bitstep.cli.reference import markdown, walk
from bitstep.version import __version__

ROOT = Path(__file__).parents[2]
COMMANDS = dict(walk())
VERBS = {path: c for path, c in COMMANDS.items() if not isinstance(c, click.Group)}


def test_the_verbs_are_these():
    assert sorted(VERBS) == [
        "bitstep bench fingerprint",
        "bitstep bench record",
        "bitstep bench startup",
        "bitstep bench tax",
        "bitstep check",
        "bitstep checkpoint show",
        "bitstep checkpoint verify",
        "bitstep compile",
        "bitstep data build",
        "bitstep diff",
        "bitstep doctor",
        "bitstep documents",
        "bitstep drill",
        "bitstep log",
        "bitstep manifest diff",
        "bitstep manifest show",
        "bitstep megatron check",
        "bitstep pretrain",
        "bitstep prove",
        "bitstep recipes",
        "bitstep record",
        "bitstep run",
        "bitstep survey",
    ]


def test_docs_cli_md_is_what_help_says():
    page = (ROOT / "docs" / "cli.md").read_text()
    assert page == markdown(), "docs/cli.md is not what --help says: run make docs"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_with_an_example(path):
    text = COMMANDS[path].help or ""
    assert text.count("Example: bitstep ") == 1, text
    assert text[0].isupper()


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_help_with_an_example(path):
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            assert "Example: " in (parameter.help or ""), (path, parameter.name)


@pytest.mark.parametrize("path", VERBS)
def test_every_verb_has_the_shared_options(path):
    options = {word for p in VERBS[path].params for word in p.opts}
    assert {"-v", "--verbose", "-q", "--quiet", "--json", "--version"} <= options


@pytest.mark.parametrize("path", COMMANDS)
def test_examples_in_the_help_parse(path):
    # A command that is given as an example must at least be one.
    line = (COMMANDS[path].help or "").split("Example: ")[1].splitlines()[0]
    words = line.split()
    assert words[0] == "bitstep"
    command: click.Command = COMMANDS["bitstep"]
    rest = words[1:]
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    command.make_context("bitstep", rest)


@pytest.mark.parametrize("words", [["--version"], ["pretrain", "--version"], ["log", "--version"]])
def test_version(words, capsys):
    assert run(words) == 0
    assert capsys.readouterr().out == f"bitstep {__version__}\n"


def test_help_goes_to_stdout_with_status_0(capsys):
    assert run(["--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: bitstep ")
    assert err == ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["pretrian"], "No such command 'pretrian'. Did you mean 'pretrain'? See bitstep --help."),
        ([], "Missing command. See bitstep --help."),
        (["bench"], "Missing command. See bitstep bench --help."),
        (["log"], "Missing argument 'RUN'. See bitstep log --help."),
        (["log", "x", "--xyz"], "No such option '--xyz'. See bitstep log --help."),
        (
            ["pretrain", "nano", "--processes", "0"],
            "Invalid value for '--processes': 0 is not in the range x>=1. "
            "See bitstep pretrain --help.",
        ),
        (
            ["prove", "nano", "--processes", "1,two"],
            "Invalid value for '--processes': 'two' is not a number from 1; "
            "separate them by commas: 1,2,4. See bitstep prove --help.",
        ),
        (
            ["prove", "nano", "--processes", "1,1"],
            "Invalid value for '--processes': 1 is there twice. See bitstep prove --help.",
        ),
        (
            ["pretrain", "nona"],
            "no recipe 'nona': name one of nano, small, or a .toml file",
        ),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_status_2(words, line, capsys):
    assert run(words) == 2
    assert capsys.readouterr() == ("", f"bitstep: {line}\n")


def test_numbers_are_read_in_order():
    option = click.Option(["--processes"])
    assert numbers(click.Context(click.Command("x")), option, "4,1,2") == (4, 1, 2)


@pytest.mark.parametrize("text", ["", "1,,2", "0", "-1", "1.5", "²", "1,1"])
def test_numbers_refuse_everything_else(text):
    with pytest.raises(click.BadParameter):
        numbers(click.Context(click.Command("x")), click.Option(["--processes"]), text)


@pytest.mark.parametrize("words", [["-q", "recipes"], ["recipes", "-q"]])
def test_quiet_before_and_after_the_verb(words):
    assert run(words) == 0
    assert logging.getLogger("bitstep").level == logging.ERROR


def test_the_level_of_one_command_is_not_that_of_the_next():
    run(["-v", "recipes"])
    assert logging.getLogger("bitstep").level == logging.DEBUG
    run(["recipes"])
    assert logging.getLogger("bitstep").level == logging.INFO


def test_json_is_json(capsys):
    assert run(["recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ["nano", "small"]


def test_a_line_stays_a_line_whatever_a_name_holds(capsys):
    reset_level()
    show(None, ["finished, runs/a\nb\x1b[2J\udcff", "Grüße"], as_json=False)
    logging.getLogger("bitstep").info("resuming %s", "a\nb")
    assert capsys.readouterr() == (
        "finished, runs/a\\nb\\x1b[2J\\udcff\nGrüße\n",
        "bitstep: resuming a\\nb\n",
    )


def test_logs_go_to_stderr(capsys):
    run(["recipes"])
    logging.getLogger("bitstep").info("resuming from %s", "step 3")
    assert capsys.readouterr().err == "bitstep: resuming from step 3\n"


def bitstep(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bitstep", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_interpreter_gives_back_the_status():
    assert bitstep("recipes").returncode == 0
    done = bitstep("log", "nowhere")
    assert done.returncode == 2
    assert done.stderr.startswith("bitstep: ")
    assert done.stderr.count("\n") == 1
