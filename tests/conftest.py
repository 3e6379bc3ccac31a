"""What a test file leaves in torch is taken away again, so that files may run in any order."""

import logging
import sys

import pytest


@pytest.fixture(autouse=True, scope="module")
def torch_as_it_was():
    yield
    if "torch" not in sys.modules:
        return
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    # A file that trains holds its process to the rules, and one that compiles comes before others.
    if "bitstep.contract.enforce" in sys.modules:
        for held in reversed(list(sys.modules["bitstep.contract.enforce"]._held)):
            held.undo()
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(autouse=True)
def a_logger_that_is_not_quiet():
    """A command with -q that is called in this process leaves its level at the logger."""
    logger = logging.getLogger("bitstep")
    level = logger.level
    yield
    logger.setLevel(level)
