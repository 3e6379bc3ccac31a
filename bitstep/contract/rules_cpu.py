"""Rules about environment variables that are read on a CPU: by Python, OpenMP, MKL, oneDNN, torch.

Each is read once, when its library is loaded or first used. Inductor compiles for CPUs and GPUs.

>>> next(rule for rule in CPU if rule.name == "OMP_DYNAMIC").fill
'FALSE'
"""

from __future__ import annotations

from typing import Final

from bitstep.contract.rule import NUMBER, OFF, PIN, Rule

_EFFECTS: Final = "tests/contract/test_rules_effects.py"

CPU: Final[tuple[Rule, ...]] = (
    Rule(
        name="PYTHONHASHSEED",
        kind="variable",
        library="Python",
        accepts=(NUMBER,),
        fill="0",
        why="the order of a set of names varies from process to process, and with it whatever is "
        "built or summed in that order",
        read=("interpreter start",),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="OMP_NUM_THREADS",
        kind="variable",
        library="OpenMP",
        accepts=(NUMBER,),
        fill=None,
        takes_threads=True,
        why="sums are cut into one part a thread: another number adds in another order",
        read=("import torch", "import numpy"),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="OMP_DYNAMIC",
        kind="variable",
        library="OpenMP",
        accepts=("FALSE", "false"),
        fill="FALSE",
        why="else OpenMP takes fewer threads than asked for, by cores and by load",
        read=("import torch", "import numpy"),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="MKL_NUM_THREADS",
        kind="variable",
        library="MKL",
        accepts=(NUMBER,),
        fill=None,
        takes_threads=True,
        why="products of matrices are cut by threads",
        read=("import torch", "import numpy"),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="MKL_DYNAMIC",
        kind="variable",
        library="MKL",
        accepts=("FALSE", "false"),
        fill="FALSE",
        why="else MKL, and torch with it, takes no more threads than there are cores",
        read=("import torch", "import numpy"),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="MKL_CBWR",
        kind="variable",
        library="MKL",
        accepts=("AUTO", "OFF", "COMPATIBLE", "AVX2", "AVX2,STRICT", "AVX512", "AVX512,STRICT",
                 "AVX512_E[1-9]", "AVX512_E[1-9],STRICT", "SSE4_2", "AVX"),
        fill=None,
        why="it chooses the kernels of MKL, and makes its sums free of alignment; " + PIN,
        read=("import torch", "import numpy"),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    Rule(
        name="ATEN_CPU_CAPABILITY",
        kind="variable",
        library="PyTorch",
        accepts=("default", "avx2", "avx512", "vsx", "zvector", "sve*"),
        fill=None,
        why="it caps the instructions of torch's own kernels, seeded random numbers among them; "
        + PIN,
        read=("import torch",),
        cost="",
        evidence=_EFFECTS,
        mark="measured",
    ),
    *(
        Rule(
            name=name,
            kind="variable",
            library="oneDNN",
            accepts=("ALL", "DEFAULT", "SSE41", "AVX", "AVX2", "AVX2_*", "AVX512_CORE",
                     "AVX512_CORE_*", "AVX10_*"),
            fill=None,
            why="it caps the instructions of oneDNN, and with them its bf16 products; " + PIN,
            read=("import torch",),
            cost="",
            evidence=_EFFECTS,
            mark="measured",
        )
        for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
    ),
    Rule(
        name="TORCHINDUCTOR_DETERMINISTIC",
        kind="variable",
        library="Inductor",
        accepts=("1",),
        fill="1",
        why="else compiled kernels are chosen by timing them",
        read=("import torch._inductor",),
        cost="slower kernels where a timed choice was better",
        evidence="torch 2.13 _inductor/config.py:1009, runtime/benchmarking.py:158",
        mark="source only",
    ),
    *(
        Rule(
            name=name,
            kind="variable",
            library="Inductor",
            accepts=OFF,
            fill=None,
            why="it asks for what deterministic mode takes away: kernels chosen by their time",
            read=("import torch._inductor",),
            cost="",
            evidence=f"torch 2.13 _inductor/config.py:{line}",
            mark="source only",
        )
        for name, line in (
            ("TORCHINDUCTOR_MAX_AUTOTUNE", 514),
            ("TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE", 517),
            ("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM", 520),
            ("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING", 757),
        )
    ),
)  # fmt: skip
