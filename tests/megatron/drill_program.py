"""The Megatron program on N processes that are forked from one: Megatron is imported once.

python drill_program.py 2 --tp 2 --steps 4
"""

import os
import socket
import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "drills"):
    sys.path.insert(0, str(folder))

import gpt_program  # noqa: E402


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def fork(world):
    """`gpt_program.main()` in each of `world` children; the first status that is not 0."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(free_port()))
    os.environ.update(WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            gpt_program.torch.set_num_threads(1)
            # What it raises ends this process as any other: a recorder has something to write.
            gpt_program.main()
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(fork(int(sys.argv.pop(1))))
