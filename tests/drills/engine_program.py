"""Our engine on two processes, a tiny hybrid model on a tiny corpus.

python engine_program.py RUN [STEPS]
"""

import os
import socket
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from bitstep.launch import environment

environment.apply(threads=1)  # before torch, which is imported once, before the fork

import torch  # noqa: E402, F401
from engine_fakes import TINY, write_corpus  # noqa: E402
from two_processes import fork_two  # noqa: E402

from bitstep.cli import run  # noqa: E402


def main():
    folder, steps = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "2"
    folder.mkdir(parents=True, exist_ok=True)
    corpus = write_corpus(folder / "corpus")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ["MASTER_ADDR"] = "localhost"
    words = ["-q", "pretrain", "nano", "-o", str(folder / "run"), "--steps", steps]
    for change in [*TINY, f"data.folder={str(corpus)!r}", "data.held_out=0.3"]:
        words += ["--set", change]

    def work(rank):
        status = run(words)
        sys.stdout.flush()
        os._exit(status)

    return fork_two(work)


if __name__ == "__main__":
    sys.exit(main())
