"""Seeded operations whose bits depend on a setting; prints a digest of each as JSON.

Word 1, "variables": what depends on the environment this process was started with. "settings": what
depends on settings of torch, each computed with the value of the rule and with another.
"""

import hashlib
import json
import sys

import torch
from torch import Tensor


def digest(*tensors: Tensor) -> str:
    """The bits of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def variables() -> dict[str, object]:
    """A digest of each operation."""
    torch.manual_seed(0)
    drawn, small = torch.randn(100_000), torch.randn(300, 300)
    long = torch.randn(16, 65_536, dtype=torch.float64)
    return {
        "randn": digest(drawn),
        "sum": digest(drawn.sum()),
        "mm": digest(small @ small.t()),
        "long mm": digest(long @ long.t()),
        "bf16 mm": digest(small.bfloat16() @ small.bfloat16()),
        "threads": torch.get_num_threads(),
    }


def settings() -> dict[str, list[str]]:
    """Of each setting: digests with the value of the rule, and with another."""
    from bitstep.contract import switches
    from bitstep.contract.rules import BY_NAME

    torch.set_num_threads(2)
    found = {}
    for name, (other, operation) in OPERATIONS.items():
        rule, before = BY_NAME[name], switches.read(name)
        pair = []
        for value in (rule.value(threads=2), other):
            switches.write(name, str(value))
            torch.manual_seed(0)
            pair.append(operation())
        found[name] = pair
        switches.write(name, str(before))
    return found


def scattered() -> str:
    """Many values added at few places, again and again: how many results there are."""
    values, places = torch.randn(200_000), torch.randint(0, 10, (200_000,))
    seen = set()
    for _ in range(200):
        seen.add(digest(torch.zeros(10).index_put_((places,), values, accumulate=True)))
        if len(seen) > 1:
            break
    return str(len(seen))


def empty() -> str:
    """What is in memory that nobody wrote: filled, or of the tensor that was there before."""
    torch.use_deterministic_algorithms(True)
    old = torch.full((1000,), 7.0)
    del old
    is_filled = bool(torch.empty(1000).isnan().all())
    torch.use_deterministic_algorithms(False)
    return f"filled {is_filled}"


def product() -> str:
    """Of two float32 matrices."""
    return digest(torch.randn(128, 128) @ torch.randn(128, 128))


def convolution() -> str:
    """In float32."""
    return digest(torch.conv2d(torch.randn(2, 8, 16, 16), torch.randn(8, 8, 3, 3)))


def total() -> str:
    """A full sum."""
    return digest(torch.randn(100_000).sum())


OPERATIONS = {
    "torch.use_deterministic_algorithms": ("off", scattered),
    "torch.utils.deterministic.fill_uninitialized_memory": ("True", empty),
    "torch.set_float32_matmul_precision": ("medium", product),
    "torch.backends.mkldnn.conv.fp32_precision": ("bf16", convolution),
    "torch.get_num_threads": ("1", total),
}

if __name__ == "__main__":
    print(json.dumps(variables() if sys.argv[1] == "variables" else settings()))
