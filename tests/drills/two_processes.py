"""Run a function on two processes that are forked from this one: torch is imported once."""

import os
import sys


def fork_two(work):
    """`work(rank)` in a child each; the first status that is not 0."""
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            try:
                os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
                os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = "2"
                work(rank)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
