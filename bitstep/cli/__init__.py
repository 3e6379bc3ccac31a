"""The command `bitstep`: verbs that parse, call the library function of that name, and print.

1. `main` is the console script, `run` the same without ending the interpreter.
2. A verb returns its exit status: 0 the same, 1 different, 2 could not tell or bad input.
3. `failures` turns every exception into one line on stderr and a status; no traceback without -v.

Libraries are imported inside the verbs, so that `bitstep --help` needs no torch and no time.

>>> run(["recipes", "--unknown"])
2
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from bitstep.cli import (
    bench,
    check,
    checkpoint,
    compile,
    data,
    diff,
    doctor,
    documents,
    drill,
    log,
    manifest,
    megatron,
    pretrain,
    prove,
    recipes,
    record,
    survey,
)
from bitstep.cli.failures import status_of
from bitstep.cli.habits import level, reset_level, version
from bitstep.cli.output import open_missing
from bitstep.cli.run import run as run_program
from bitstep.launch.parent import die_with_parent
from bitstep.launch.torchrun import abandon, is_worker


@click.group(
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@level
@version
def bitstep() -> None:
    """Pretraining with the same bits: repeat it, resume it, spread it, prove it.

    Results go to stdout, everything else to stderr. Exit status: 0 the same or done, 1 different,
    2 could not tell or bad input; of pretrain also 75 stopped and saved, 130 stopped by Ctrl-C.

    Example: bitstep pretrain nano
    """


for verb in (
    pretrain.pretrain,
    prove.prove,
    drill.drill,
    log.log,
    documents.documents,
    checkpoint.checkpoint,
    manifest.manifest,
    megatron.megatron,
    bench.bench,
    recipes.recipes,
    data.data,
    record.record,
    run_program,
    diff.diff,
    doctor.doctor,
    check.check,
    compile.compile_,
    survey.survey,
):
    bitstep.add_command(verb)


def run(words: Sequence[str]) -> int:
    """Carry out a command line, without the word `bitstep`; returns the exit status."""
    reset_level()
    try:
        # Not bitstep.main: it ends with status 1 and no word when a pipe is closed.
        with bitstep.make_context("bitstep", list(words)) as context:
            status = bitstep.invoke(context)
    except BaseException as error:  # every end of a command has one line and one status
        return status_of(error)
    return status if isinstance(status, int) else 0


def main() -> NoReturn:
    """The console script."""
    die_with_parent()
    open_missing()
    status = run(sys.argv[1:])
    if is_worker():
        # gloo may abort, or wait for a dead peer, when it is torn down.
        abandon(status)
    sys.exit(status)
