"""One operation on fixed inputs: what it gives, and which operations torch calls for it.

1. A `Case` names its inputs and runs on them; of a backward case the results are the gradients.
2. `operations` lists what torch calls for it.

>>> dot = Case("dot", "aten.dot", {"x": floats(9), "y": floats(9)}, torch.dot)
>>> dot.compute(dot.inputs()).keys()
dict_keys(['out'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.investigate.survey.inputs import Input, draw

Tensors = Mapping[str, Tensor]
SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}


@dataclass(frozen=True, slots=True)
class Case:
    """An operation, its inputs, and how to run it."""

    name: str
    op: str
    """The one it is about, as a trace names its packet: "aten.sum"."""
    wanted: Mapping[str, Input]
    run: Callable[..., Any]
    """Takes the inputs in their order, changes none of them; gives back a tensor or several."""
    backward: bool = False
    """The results are the gradients of the floating inputs."""
    rows: tuple[str, ...] = ()
    """Inputs whose first dimension is that of the result, each row by itself; (): not so."""
    often: bool = False
    """It is known to vary by chance: it is run as often as the survey runs anything."""

    def inputs(self, device: str = "cpu") -> dict[str, Tensor]:
        """Its inputs."""
        return {name: draw(name, wanted).to(device) for name, wanted in self.wanted.items()}

    def compute(self, inputs: Tensors) -> dict[str, Tensor]:
        """Its results by name: out, out.1 ... or grad.NAME."""
        if not self.backward:
            with torch.no_grad():
                return _named(self.run(*inputs.values()))
        leaves = {name: _leaf(tensor) for name, tensor in inputs.items()}
        out = next(iter(_named(self.run(*leaves.values())).values()))
        gradient = _gradient(tuple(out.shape), out.dtype, out.device)
        out.backward(gradient)  # type: ignore[no-untyped-call]
        grads = {f"grad.{name}": leaf.grad for name, leaf in leaves.items()}
        return {name: _dense(grad) for name, grad in grads.items() if grad is not None}


def operations(case: Case, inputs: Tensors) -> tuple[str, ...]:
    """The operations that torch calls for it, as a trace names their packets."""
    with _Seen() as seen:
        case.compute(inputs)
    return tuple(sorted(seen.names))


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def _named(result: Any) -> dict[str, Tensor]:
    return {
        f"out.{number}" if number else "out": _dense(tensor)
        for number, tensor in enumerate(_tensors(result))
    }


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    else:
        for inner in result:
            yield from _tensors(inner)


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor


@lru_cache(maxsize=8)
def _gradient(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return draw("gradient", Input(shape, dtype)).to(device)
