"""`bitstep data build`."""

from __future__ import annotations

from pathlib import Path

import click

from bitstep.cli.habits import habits, show
from bitstep.cli.screen import working


@click.group(no_args_is_help=False)
def data() -> None:
    """Make datasets to train on. Needs no torch.

    Example: bitstep data build text -o data/text
    """


@data.command("build")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "prefix",
    required=True,
    metavar="PREFIX",
    help="Write PREFIX.bin and PREFIX.idx; neither may be there. Example: -o data/text",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Take the tokens of this tokenizer.json of Hugging Face; bytes without it. "
    "Example: --tokenizer tokenizer.json",
)
@click.option(
    "--end",
    metavar="TOKEN",
    help="End-of-document token of the tokenizer; <|endoftext|> by default. Example: --end '</s>'",
)
@habits
def build_verb(
    folder: Path, prefix: str, tokenizer: Path | None, end: str | None, as_json: bool
) -> int:
    """Write the text of FOLDER as an indexed dataset, which Megatron reads, too.

    A file is a document; of a .jsonl every line is one, an object with a string "text". Documents
    stand in the order of their paths, and the same folder always gives the same bytes.

    Example: bitstep data build text -o data/text --tokenizer tokenizer.json
    """
    from bitstep.data.build import build
    from bitstep.data.tokens import END, ByteTokens, FileTokens

    if tokenizer is None and end is not None:
        raise click.UsageError("--end names a token of a tokenizer: give --tokenizer as well")
    with working(f"building {prefix}"):
        tokens = ByteTokens() if tokenizer is None else FileTokens(tokenizer, end or END)
        built = build(folder, prefix, tokens)
    line = (
        f"{prefix}: {built.documents} documents, {built.tokens} tokens as {built.dtype}, "
        f"vocabulary {built.vocabulary}, end of document {built.end}, digest {built.digest}"
    )
    show({"prefix": prefix, **built._asdict()}, [line], as_json)
    return 0
