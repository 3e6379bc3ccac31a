"""What a test file leaves in torch is taken away again, so that files may run in any order."""

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
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
