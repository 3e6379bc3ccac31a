"""A program that enters and leaves deterministic mode in several ways; prints what stayed behind.

What it looks at is not the list of the rules: all of torch's switches that bear on numerics.
"""

import json
import os
import sys

import torch

import bitstep

PRECISION = [
    ("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
    ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
]  # fmt: skip


def seen() -> dict[str, object]:
    """All of it."""
    cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    inductor = sys.modules.get("torch._inductor.config")
    return {
        "environment": dict(os.environ),
        "path": list(sys.path),
        "finders": len(sys.meta_path),
        "mode": torch.get_deterministic_debug_mode(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "matmul": torch.get_float32_matmul_precision(),
        "precision": [torch._C._get_fp32_precision_getter(*pair) for pair in PRECISION],
        "cudnn": [cudnn.enabled, cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32],
        "mkldnn": [mkldnn.enabled, mkldnn.deterministic, mkldnn.allow_tf32],
        "reductions": [
            cuda.matmul.allow_bf16_reduced_precision_reduction,
            cuda.matmul.allow_bf16_reduced_precision_reduction_split_k,
            cuda.matmul.allow_fp16_reduced_precision_reduction,
            cuda.matmul.allow_fp16_reduced_precision_reduction_split_k,
            cuda.matmul.allow_fp16_accumulation,
        ],
        "attention": [
            cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ],
        "random": torch.initial_seed(),
        "inductor": None if inductor is None else inductor.deterministic,
    }  # fmt: skip


def changed(before: dict[str, object], but: tuple[str, ...] = ()) -> list[str]:
    """What is not as it was."""
    now = seen()
    return [name for name in now if name not in but and now[name] != before[name]]


found = {}
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
torch.backends.cudnn.benchmark = False
os.environ["NCCL_ALGO"] = "CollnetChain"
torch.manual_seed(7)
before = seen()

with bitstep.deterministic():
    found["inside"] = changed(before)
found["with"] = changed(before)

handle = bitstep.deterministic()
found["handle"] = [drifted.line for drifted in handle.undo()] + changed(before)
found["twice"] = [*map(str, handle.undo()), *changed(before)]

try:
    with bitstep.deterministic():
        raise KeyError("of the program")
except KeyError as error:
    found["error"] = [repr(error)] if changed(before) else []

outer = bitstep.deterministic()
inner = bitstep.deterministic()
inner.undo()
found["outer holds"] = [] if torch.are_deterministic_algorithms_enabled() else ["off"]
outer.undo()
found["nested"] = changed(before)

torch.backends.cudnn.benchmark = True
refused = seen()
try:
    bitstep.deterministic()
except bitstep.BitstepError as error:
    found["refused"] = changed(refused)
    found["said"] = [str(error)]
torch.backends.cudnn.benchmark = False

try:
    with bitstep.deterministic():
        torch.backends.cudnn.benchmark = True
        os.environ["NCCL_ALGO"] = "Tree"
        del os.environ["OMP_DYNAMIC"]
except bitstep.BitstepError as error:
    found["drift"] = [str(error)]
found["after drift"] = changed(before)

with bitstep.deterministic():
    import torch._inductor.config

    found["inductor inside"] = [str(torch._inductor.config.deterministic)]
found["inductor after"] = [str(torch._inductor.config.deterministic)]
found["at last"] = changed(before, but=("inductor",))
print(json.dumps(found))
