"""Which keys of a manifest must match, and which can change bits, as data: the first pattern that
fits a key decides.

A key *must match* or *may differ*; one that was changed by intent is *declared*. Beside that stands
whether another value can change bits:

    changes bits          it is what the step computes from: other bits are the rule
    can change bits       it chooses code, or the order of a sum
    through another key   only if that key differs as well, which is compared itself
    cannot tell           one of the two runs has not said its value
    cannot change bits    nothing of a step depends on it

>>> classify("settings.threads.torch")[:2]
('must match', 'the order of summation depends on it')
>>> classify("program.pid").bits
'cannot change bits'
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, get_args

KeyClass = Literal["must match", "may differ", "declared"]
Bits = Literal[
    "changes bits", "can change bits", "through another key", "cannot tell", "cannot change bits"
]

MUST: KeyClass = "must match"
MAY: KeyClass = "may differ"
DECLARED: KeyClass = "declared"

CHANGES: Bits = "changes bits"
CAN: Bits = "can change bits"
THROUGH: Bits = "through another key"
UNKNOWN: Bits = "cannot tell"
CANNOT: Bits = "cannot change bits"
RANKED: tuple[Bits, ...] = get_args(Bits)
"""From the most to the least."""


class Classed(NamedTuple):
    """What a difference in one key means."""

    class_: KeyClass
    reason: str
    bits: Bits


TOOLS = (
    "absl-py", "attrs", "certifi", "charset-normalizer", "click", "coverage", "distro", "execnet",
    "filelock", "fonttools", "hypothesis", "idna", "iniconfig", "jinja2", "kiwisolver",
    "markdown-it-py", "markupsafe", "matplotlib", "mdurl", "mypy", "packaging", "pillow", "pip",
    "platformdirs", "pluggy", "psutil", "pyarrow", "pydantic", "pydantic-core", "pygments",
    "pytest", "pytest-*", "python-dateutil", "pytz", "requests", "rich", "ruff", "sentry-sdk",
    "setproctitle", "setuptools", "shellingham", "six", "tensorboard", "tensorboard-*", "tqdm",
    "typer", "typing-extensions", "typing-inspection", "annotated-types", "urllib3", "wandb",
    "werkzeug", "wheel", "zipp", "importlib-metadata", "nvidia-ml-py", "pyyaml", "xxhash",
)  # fmt: skip
"""Distributions that compute nothing of a step: they parse, print, log, fetch or test."""

CLASSES: tuple[tuple[str, KeyClass, Bits, str], ...] = (
    ("manifest.version", MAY, CANNOT, "what the older one did not collect is not compared"),
    ("hardware.cpu.cores", MAY, THROUGH, "the threads in force are compared instead"),
    ("hardware.cpu.cache", MUST, CAN, "libraries size their blocks, and so their sums, by it"),
    ("hardware.cpu.flags.*", MUST, CAN, "kernels are chosen by the instructions there are"),
    ("hardware.cpu.capability", MUST, CAN, "kernels use these instructions"),
    ("hardware.gpu", MUST, CAN, "kernels are chosen by the model of the GPU"),
    ("hardware.gpus.*.uuid", MAY, CANNOT, "another GPU of the same model"),
    ("hardware.gpus.count", MAY, CANNOT, "each process computes on its own; groups are compared"),
    ("hardware.gpus.*", MUST, CAN, "kernels are chosen by it"),
    ("hardware.*", MUST, CAN, "kernels are chosen by it"),
    ("software.driver", MUST, CAN, "it compiles PTX, and libraries choose kernels by it"),
    ("software.kernel", MAY, CANNOT, "the operating system computes nothing of a step"),
    ("software.libc", MUST, CAN, "scalar code calls its mathematics"),
    ("software.bitstep", MUST, CAN, "its code may be another"),
    *((f"software.distributions.{name}", MAY, CANNOT, "it computes nothing of a step")
      for name in TOOLS),
    ("software.distributions.*", MUST, CAN, "its code may be another"),
    ("software.*", MUST, CAN, "its code may be another"),
    ("settings.threads.*", MUST, CAN, "the order of summation depends on it"),
    ("settings.inductor.deterministic", MUST, CAN, "without it kernels are chosen by timing"),
    ("settings.inductor.*", MUST, CAN, "other kernels are generated, or chosen by timing"),
    ("settings.triton.*", MUST, CAN, "configurations of kernels are chosen by timing"),
    ("settings.*", MUST, CAN, "it changes which code computes"),
    ("caches.*.choices", MAY, CAN, "what an earlier timing chose is taken from it"),
    ("caches.*", MAY, THROUGH, "what is compiled anew equals it, unless chosen by timing"),
    # torchrun sets it to 1 where several processes are on a node: the physical layout shows in it.
    ("environment.OMP_NUM_THREADS", MAY, THROUGH, "the threads in force are compared instead"),
    ("environment.MKL_NUM_THREADS", MAY, THROUGH, "the threads in force are compared instead"),
    ("environment.PYTHONHASHSEED", MUST, CAN, "sets are walked in another order"),
    ("environment.ATEN_CPU_CAPABILITY", MUST, CAN, "it chooses instructions"),
    ("environment.ONEDNN_MAX_CPU_ISA", MUST, CAN, "it limits instructions"),
    ("environment.DNNL_MAX_CPU_ISA", MUST, CAN, "it limits instructions"),
    ("environment.MKL_CBWR", MUST, CAN, "it chooses MKL's code path"),
    ("environment.NCCL_ALGO", MUST, CAN, "it decides the order in which a group sums"),
    ("environment.NCCL_PROTO", MUST, CAN, "it decides how a sum is cut"),
    ("environment.CUDA_VISIBLE_DEVICES", MAY, THROUGH, "the devices are compared instead"),
    ("environment.NVIDIA_VISIBLE_DEVICES", MAY, THROUGH, "the devices are compared instead"),
    ("environment.CUDA_HOME", MAY, THROUGH, "it says where, and versions are compared"),
    ("environment.CUDA_PATH", MAY, THROUGH, "it says where, and versions are compared"),
    ("environment.CUDA_CACHE_*", MAY, THROUGH, "it says where compiled kernels are kept"),
    ("environment.TORCHINDUCTOR_CACHE_DIR", MAY, THROUGH, "it says where; choices are compared"),
    ("environment.TRITON_CACHE_DIR", MAY, THROUGH, "it says where; choices are compared"),
    ("environment.TORCH_HOME", MAY, CANNOT, "it says where downloads are kept"),
    ("environment.TORCH_LOGS*", MAY, CANNOT, "it says what is logged"),
    ("environment.TORCH_CPP_LOG_LEVEL", MAY, CANNOT, "it says what is logged"),
    ("environment.TORCH_DISTRIBUTED_DEBUG", MAY, CANNOT, "it says what is checked and logged"),
    # torchrun sets the first of these.
    ("environment.TORCH_NCCL_*ERROR*", MAY, CANNOT, "it says what an error does"),
    ("environment.TORCH_NCCL_*DUMP*", MAY, CANNOT, "it says what is logged"),
    ("environment.TORCH_NCCL_*TRACE*", MAY, CANNOT, "it says what is logged"),
    ("environment.TORCH_NCCL_*HEARTBEAT*", MAY, CANNOT, "it says how long is waited"),
    ("environment.TORCH_FR_*", MAY, CANNOT, "it says what is logged"),
    ("environment.NCCL_DEBUG*", MAY, CANNOT, "it says what is logged"),
    ("environment.NCCL_SOCKET_IFNAME", MAY, CANNOT, "it names an interface of one host"),
    ("environment.GLOO_SOCKET_IFNAME", MAY, CANNOT, "it names an interface of one host"),
    ("environment.*", MUST, CAN, "it bears on numerics or on scheduling"),
    ("recipe.data.folder", MAY, THROUGH, "what is in the folder is compared by its digest"),
    ("recipe.data.indexed", MAY, THROUGH, "what is in the dataset is compared by its digest"),
    ("recipe.run.save_every", MAY, CANNOT, "saving changes no bit of training"),
    ("recipe.run.keep_*", MAY, CANNOT, "saving changes no bit of training"),
    ("recipe.run.eval_*", MAY, CANNOT, "evaluating changes no bit of training"),
    ("recipe.run.seed", MUST, CHANGES, "every draw depends on it"),
    ("recipe.optimizer.*", MUST, CHANGES, "every update depends on it"),
    ("recipe.model.*", MUST, CHANGES, "it is another model"),
    ("recipe.*", MUST, CAN, "the recipe decides bits"),
    # An option that says where results go; what data it names is not known to us.
    *((f"arguments.{name}", MAY, CANNOT, "it says where results go, or what is logged") for name in
      ("output*", "out", "out-dir", "o", "save", "save-dir", "save-path", "log*", "*logdir*",
       "wandb*", "tensorboard*", "run-name", "exp-name", "experiment-name", "verbose", "v")),
    ("arguments.seed", MUST, CHANGES, "every draw depends on it"),
    ("arguments.*", MUST, CAN, "the program was told something else"),
    ("data.named.*", MUST, CAN, "the file that an option names has another content"),
    ("data.*", MUST, CHANGES, "other data, or in another order"),
    ("model.*.tree", MAY, THROUGH, "the digest of the model is compared"),
    ("model.*.parameters", MAY, THROUGH, "the digest of the model is compared"),
    ("model.*", MUST, CHANGES, "it is another model"),
    ("groups.*.measured", MAY, UNKNOWN, "only a measured order of summation can be compared"),
    ("groups.*.name", MAY, CANNOT, "a group sums by its ranks, whatever it is called"),
    ("groups.*.ranks", MUST, CAN, "other ranks sum, or in another order"),
    ("groups.*.backend", MUST, CAN, "another library sums, in an order of its own"),
    ("groups.*.sums.*", MUST, CHANGES, "the group sums in another order"),
    ("groups.*", MUST, CAN, "it bears on the order in which a group sums"),
    ("layout.logical.ranks", MUST, CAN,
     "gradients are summed in another order; logical roots are still compared"),
    ("layout.logical.*", MUST, CHANGES, "data, draws and sums are keyed by it"),
    ("layout.physical.engine", MAY, CAN,
     "gradients are summed in another order; logical roots are still compared"),
    ("layout.physical.hosts", MAY, CAN,
     "NCCL orders a group by hosts; gloo does not"),
    ("layout.physical.started", MAY, CANNOT, "ranks have numbers of their own"),
    ("layout.physical.groups.*", MAY, CANNOT, "the sums of our engine have one tree in any group"),
    ("layout.physical.model.*", MAY, THROUGH, "it shows how tensors are cut"),
    ("layout.physical.*", MAY, CANNOT, "bits do not depend on it"),
    ("program.source", MUST, CAN, "the code that trains is another"),
    ("program.files.*", MUST, CAN, "the code of an imported file is another"),
    ("program.fault", MAY, CHANGES, "a fault was switched on"),
    ("program.findings.*", MAY, THROUGH, "the settings that it speaks of are compared"),
    ("program.commit", MAY, THROUGH, "the digests of the code are compared"),
    ("program.uncommitted", MAY, THROUGH, "the digests of the code are compared"),
    ("program.changes", MAY, THROUGH, "the resolved recipe is compared"),
    ("program.command", MAY, THROUGH, "what it asks for is compared key by key"),
    ("program.recipe*", MAY, THROUGH, "the resolved recipe is compared"),
    ("program.host", MAY, CANNOT, "the hardware is compared, not its name"),
    ("program.pid", MAY, CANNOT, "it says which execution this was"),
    ("program.time", MAY, CANNOT, "it says which execution this was"),
    ("program.*", MAY, CANNOT, "it says which execution this was"),
    ("*", MUST, CAN, "a key that this version does not know"),
)  # fmt: skip
"""(pattern, class, whether another value can change bits, reason)."""

ONE_SIDED: tuple[tuple[str, Classed], ...] = (
    ("software.distributions.*", Classed(MAY, "only one of the runs had imported it", CAN)),
    ("groups.*.sums.*", Classed(MAY, "only one of the runs measured it", UNKNOWN)),
    ("program.files.*", Classed(MAY, "only one of the runs had imported it", CAN)),
)
"""What it means that only one side has the key: a run that resumes imports more than a new one."""

ALWAYS = ("program.pid", "program.time", "manifest.version")
"""Differ between any two runs, and are nothing to show."""

FOLLOWS: tuple[tuple[str, str], ...] = (
    ("recipe.run.seed", "data.order"),
    ("recipe.data.*", "data.*"),
    ("recipe.layout.*", "layout.logical.*"),
    ("recipe.layout.threads", "settings.threads.*"),
    ("recipe.model.*", "model.*"),
    ("recipe.model.mtp_depth", "data.order"),
)
"""(declared key, key that changes with it): a declared seed declares the order of data, too."""


def classify(key: str, declared: tuple[str, ...] = (), one_sided: bool = False) -> Classed:
    """The class of a key, the reason for it, and whether another value can change bits.

    Args:
        declared: keys changed by intent.
        one_sided: only one of the two manifests has the key.
    """
    bits, found = next((b, Classed(k, r, b)) for p, k, b, r in CLASSES if fnmatchcase(key, p))
    for cause in declared:
        if key == cause:
            return Classed(DECLARED, "changed by intent", bits)
        if any(fnmatchcase(cause, c) and fnmatchcase(key, effect) for c, effect in FOLLOWS):
            return Classed(DECLARED, f"follows from {cause}", bits)
    if one_sided and found.class_ == MUST:
        return next((said for p, said in ONE_SIDED if fnmatchcase(key, p)), found)
    return found
