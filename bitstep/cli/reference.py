"""docs/cli.md, from the commands themselves: `python -m bitstep.cli.reference > docs/cli.md`.

1. Every verb is walked in order, groups before their verbs.
2. Each gets a title and the text that `--help` prints, at a fixed width.

A test compares the file with this text.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from bitstep.cli import bitstep

WIDTH = 96
"""Of the help texts; a page of Markdown shows no more."""

HEAD = """# The command line

This page is made from `--help` by `make docs`; edit the help texts instead.

Results go to stdout, logs and progress to stderr. Every verb has `-v`, `-q`, `--json` and
`--version`; colour is left out where NO_COLOR is set or stderr is no terminal. An error is one line
that says what happened, with which value, and what to do. A closed pipe is none: a result that
nobody reads is dropped, and a training whose stderr is gone goes on in silence.

| exit status | meaning |
| --- | --- |
| 0 | done; the same; proven |
| 1 | different; refuted |
| 2 | could not tell; unverified; bad input; an error |
| 75 | `pretrain` was asked to stop (SIGTERM, SIGUSR1): it saved and can be resumed |
| 130 | Ctrl-C: `pretrain` saved as well, unless it came twice |

torchrun has a status of its own: 1 for everything but 0. A signal in the first third of a second,
before `pretrain` listens, ends it with that signal: nothing was begun.
"""


def markdown() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(path, verb) for path, verb in walk())])


def walk() -> Iterator[tuple[str, click.Command]]:
    """Every command with its words, groups before their verbs."""
    yield from _walk("bitstep", bitstep)


def _walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, verb in sorted(command.commands.items()):
            yield from _walk(f"{path} {name}", verb)


def _section(path: str, command: click.Command) -> str:
    settings = {**bitstep.context_settings, "terminal_width": WIDTH}
    context = click.Context(command, info_name=path, **settings)
    return f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    click.echo(markdown(), nl=False)
