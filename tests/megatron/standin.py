"""A stand-in for torch.cuda, so that Megatron Core trains on CPU over gloo.

1. `torch.cuda` answers as if the CPU were its one device: streams, events, synchronisation and
   memory counters do nothing; what is asked of its generators, the CPU generator answers.
2. A TorchFunctionMode takes `device="cuda"` for the CPU, drops pinning, and lets `Tensor.type()`
   say `torch.cuda.FloatTensor`, which Megatron compares with.
3. Where Megatron's own modules want Transformer Engine, a tensor on a GPU or nvcc, they are mended
   once they are imported. Megatron itself is not imported here.

Before the first import of Megatron:

    import standin
    standin.install()
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
MOE_UTILS = "megatron.core.transformer.moe.moe_utils"
TRACKER = "megatron.core.tensor_parallel.random"

DO_NOTHING = (
    "empty_cache",
    "ipc_collect",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "synchronize",
)
COUNTERS = (
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
)


class Nothing:
    """A stream or an event: every method of it does nothing."""

    def __init__(self, *args, **kwargs):
        self.device = CPU

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def record_event(self, event=None):
        return event or Nothing()

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.0


class CpuGenerator:
    """`torch.cuda.default_generators`: whatever the device, the CPU's."""

    def __getitem__(self, device):
        return torch.default_generator

    def __len__(self):
        return 1


class Properties:
    """Of the one device: those that Megatron asks for."""

    name = "CPU as torch.cuda"
    major, minor = 8, 0
    multi_processor_count = 1
    total_memory = 2**34


class CudaIsCpu(TorchFunctionMode):
    """Every call of torch meant for a GPU, made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.", 1)
        if function is torch.Tensor.pin_memory:
            return args[0]
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if "device" in kwargs:
            kwargs["device"] = here(kwargs["device"])
        if function is torch.Tensor.to:
            args = (args[0], *map(here, args[1:]))
        return function(*args, **kwargs)


def here(device):
    """The CPU if this names a GPU; anything else as it is."""
    if isinstance(device, torch.device):
        return CPU if device.type == "cuda" else device
    if isinstance(device, str):
        return CPU if device.split(":")[0] == "cuda" else device
    return device


def install():
    """Put the CPU in place of torch.cuda, for the rest of this process."""
    # Megatron compiles small functions; the compiler would ask a GPU for what a CPU has not got.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    cuda = torch.cuda
    for name in DO_NOTHING:
        setattr(cuda, name, answer(None))
    for name in COUNTERS:
        setattr(cuda, name, answer(0))
    cuda.memory_stats = lambda device=None: {}
    cuda.mem_get_info = lambda device=None: (Properties.total_memory, Properties.total_memory)
    cuda.is_available = lambda: True
    cuda.get_device_name = lambda device=None: Properties.name
    cuda.get_device_properties = lambda device=None: Properties
    cuda.get_device_capability = lambda device=None: (Properties.major, Properties.minor)
    cuda.Stream = cuda.Event = Nothing
    cuda.current_stream = lambda device=None: Nothing()
    cuda.default_stream = lambda device=None: Nothing()
    cuda.stream = lambda which: contextlib.nullcontext()
    cuda.device = lambda which: contextlib.nullcontext()
    use_cpu_generator()
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    # It would complain at every fork that the CPU generator moves: here the two are one.
    logging.getLogger(TRACKER).addFilter(lambda record: "CPU RNG state" not in str(record.msg))
    CudaIsCpu().__enter__()
    sys.meta_path.insert(0, AfterImport(MOE_UTILS, without_transformer_engine))
    sys.meta_path.insert(0, AfterImport("megatron.legacy.fused_kernels", without_compiler))


def use_cpu_generator():
    """torch.cuda's own functions of the random state, on the CPU's generator."""
    torch.cuda.default_generators = CpuGenerator()
    for module in (torch.cuda, torch.cuda.random):  # the second has names of its own for them
        module._lazy_init = answer(None)
        module._lazy_call = lambda call, **kwargs: call()
        module.current_device = lambda: CPU
        module.device_count = lambda: 1


def answer(value):
    """A function of its own each time: torch.compile's tables want no two names to share one."""
    return lambda *args, **kwargs: value


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module of Megatron once that is imported."""

    def __init__(self, module, then):
        self.module, self.then = module, then

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_then(module):
                execute(module)
                self.then(module)

            spec.loader.exec_module = execute_and_then
        return spec


def without_transformer_engine(moe_utils):
    """Version 0.16.1 looks a name up that only the import of Transformer Engine binds."""
    moe_utils.te_general_gemm = None
    moe_utils.maybe_move_tensor_to_cpu = as_numbers


def without_compiler(fused_kernels):
    """`pretrain_gpt.py` asks nvcc for its version, and then builds nothing."""
    fused_kernels.load = answer(None)


def as_numbers(tensor, as_numpy=False, record_stream=False):
    """Megatron's own leaves what is not on a GPU a tensor; all-to-all takes numbers only."""
    if as_numpy and torch.is_tensor(tensor):
        return tensor.clone().numpy()
    return tensor
