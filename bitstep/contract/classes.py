"""Which keys of a manifest must match, as data: the first pattern that fits a key decides.

>>> classify("settings.threads.torch")
('must match', 'the order of summation depends on it')
>>> classify("program.pid")[0]
'may differ'
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

KeyClass = Literal["must match", "may differ", "declared"]

MUST: KeyClass = "must match"
MAY: KeyClass = "may differ"
DECLARED: KeyClass = "declared"

CLASSES: tuple[tuple[str, KeyClass, str], ...] = (
    ("hardware.cpu.cores", MAY, "the threads in force are compared instead"),
    ("hardware.cpu.cache", MUST, "libraries size their blocks, and so their sums, by it"),
    ("hardware.*", MUST, "kernels are chosen by it"),
    ("software.pyarrow", MAY, "it writes traces and computes nothing"),
    ("software.libc", MUST, "scalar code calls its mathematics"),
    ("software.*", MUST, "another version may compute other bits"),
    ("settings.threads.*", MUST, "the order of summation depends on it"),
    ("settings.*", MUST, "it changes which code computes"),
    # torchrun sets it to 1 where several processes are on a node: the physical layout shows in it.
    ("environment.OMP_NUM_THREADS", MAY, "the threads in force are compared instead"),
    ("environment.MKL_NUM_THREADS", MAY, "the threads in force are compared instead"),
    ("environment.CUDA_VISIBLE_DEVICES", MAY, "the names of the devices are compared instead"),
    ("environment.CUDA_HOME", MAY, "it says where, and versions are compared"),
    ("environment.CUDA_PATH", MAY, "it says where, and versions are compared"),
    ("environment.CUDA_CACHE_*", MAY, "it says where compiled kernels are kept"),
    ("environment.TORCHINDUCTOR_CACHE_DIR", MAY, "it says where compiled kernels are kept"),
    ("environment.NCCL_DEBUG*", MAY, "it says what is logged"),
    ("environment.NCCL_SOCKET_IFNAME", MAY, "it names an interface of one host"),
    ("environment.*", MUST, "it bears on numerics"),
    ("recipe.data.folder", MAY, "what is in the folder is compared by its digest"),
    ("recipe.data.indexed", MAY, "what is in the dataset is compared by its digest"),
    ("recipe.run.save_every", MAY, "saving changes no bit of training"),
    ("recipe.run.keep_*", MAY, "saving changes no bit of training"),
    ("recipe.run.eval_*", MAY, "evaluating changes no bit of training"),
    ("recipe.*", MUST, "the recipe decides bits"),
    ("data.*", MUST, "other data, or in another order"),
    ("layout.logical.*", MUST, "data, draws and sums are keyed by it"),
    ("layout.physical.*", MAY, "bits do not depend on it"),
    ("program.source", MUST, "the code that trains is another"),
    ("program.files.*", MAY, "not every run loads the same files"),
    ("program.*", MAY, "it says which execution this was"),
    ("*", MUST, "a key that this version does not know"),
)
"""(pattern, class, reason)."""

FOLLOWS: tuple[tuple[str, str], ...] = (
    ("recipe.run.seed", "data.order"),
    ("recipe.data.*", "data.*"),
    ("recipe.layout.*", "layout.logical.*"),
    ("recipe.layout.threads", "settings.threads.*"),
    ("recipe.model.mtp_depth", "data.order"),
)
"""(declared key, key that changes with it): a declared seed declares the order of data, too."""


def classify(key: str, declared: tuple[str, ...] = ()) -> tuple[KeyClass, str]:
    """The class of a key and the reason for it; `declared` are the keys changed by intent."""
    for cause in declared:
        if key == cause:
            return DECLARED, "changed by intent"
        if any(fnmatchcase(cause, c) and fnmatchcase(key, effect) for c, effect in FOLLOWS):
            return DECLARED, f"follows from {cause}"
    return next((kind, why) for pattern, kind, why in CLASSES if fnmatchcase(key, pattern))
