"""Cases: what a training step does beside its model: drawing, updating, clipping; and two controls.

The controls show that the survey can see: `VARIES` is another each time, `STABLE` never is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bitstep.investigate.survey.case import Case
from bitstep.investigate.survey.inputs import floats, positive

LENGTH: Final = 100_003
_number = itertools.count()

VARIES: Final = Case(
    "control that varies", "aten.add", {"x": floats(9)}, lambda x: x + next(_number)
)
STABLE: Final = Case("control that does not", "aten.add", {"x": floats(9)}, lambda x: x + 1)


def cases() -> Iterator[Case]:
    """All of them, the controls too."""
    yield VARIES
    yield STABLE
    yield from _drawn()
    yield from _updated()
    yield from _recurrent()


def _drawn() -> Iterator[Case]:
    x, p = {"x": floats(LENGTH)}, {"x": positive(1000)}
    for name, (op, draw) in _DRAWS.items():
        inputs = p if name == "multinomial" else x
        yield Case(f"{name} seeded", f"aten.{op}", inputs, _seeded(draw))
    dropout = _seeded(lambda x: functional.dropout(x, 0.1))
    yield Case("dropout backward seeded", "aten.mul", x, dropout, backward=True)


_DRAWS: Final[Mapping[str, tuple[str, Callable[[Tensor], Tensor]]]] = {
    "bernoulli": ("bernoulli", lambda x: torch.bernoulli(torch.full_like(x, 0.3))),
    "bernoulli_": ("bernoulli_", lambda x: torch.empty_like(x).bernoulli_(0.3)),
    "dropout": ("bernoulli_", lambda x: functional.dropout(x, 0.1)),
    "exponential_": ("exponential_", lambda x: torch.empty_like(x).exponential_()),
    "multinomial": ("multinomial", lambda x: torch.multinomial(x, 500)),
    "normal_": ("normal_", lambda x: torch.empty_like(x).normal_()),
    "rand": ("rand", lambda x: torch.rand(LENGTH, device=x.device)),
    "rand_like": ("rand_like", torch.rand_like),
    "randint": ("randint", lambda x: torch.randint(1000, (LENGTH,), device=x.device)),
    "randn": ("randn", lambda x: torch.randn(LENGTH, device=x.device)),
    "randperm": ("randperm", lambda x: torch.randperm(LENGTH, device=x.device)),
    "uniform_": ("uniform_", lambda x: torch.empty_like(x).uniform_()),
}


def _seeded(draw: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return draw(x)

    return run


def _updated() -> Iterator[Case]:
    wanted = {"p": floats(LENGTH), "g": floats(LENGTH)}
    for name, op, how in (
        ("AdamW one by one", "aten.addcdiv_", {"foreach": False}),
        ("AdamW foreach", "aten._foreach_addcdiv_", {"foreach": True}),
        ("AdamW fused", "aten._fused_adamw_", {"fused": True}),
    ):
        yield Case(name, op, wanted, _steps(torch.optim.AdamW, lr=1e-2, **how))
    sgd = _steps(torch.optim.SGD, lr=1e-2, momentum=0.9, foreach=True)
    yield Case("SGD foreach", "aten._foreach_add_", wanted, sgd)
    yield Case("clip_grad_norm_", "aten._foreach_norm", wanted, _clipped)


def _steps(optimizer: Callable[..., Any], **how: Any) -> Callable[..., list[Tensor]]:
    def run(p: Tensor, g: Tensor) -> list[Tensor]:
        # Views of the input: an unaligned input is then an unaligned parameter.
        parts = [part.detach() for part in torch.split(p.detach(), 30_000)]
        before = [part.clone() for part in parts]
        stepping = optimizer(parts, **how)
        for part, grad in zip(parts, torch.split(g, 30_000), strict=True):
            part.requires_grad_()
            part.grad = grad
        for _ in range(3):
            stepping.step()
        after = [part.detach().clone() for part in parts]
        for part, old in zip(parts, before, strict=True):
            part.detach().copy_(old)
        return after

    return run


def _clipped(p: Tensor, g: Tensor) -> list[Tensor]:
    parts = [part.clone() for part in torch.split(p, 30_000)]
    for part, grad in zip(parts, torch.split(g, 30_000), strict=True):
        part.grad = grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(parts, 1.0)
    return [norm, *(part.grad for part in parts if part.grad is not None)]


def _recurrent() -> Iterator[Case]:
    wanted = {"x": floats(20, 4, 16), "w": floats(64, 16), "u": floats(64, 16)}
    yield Case("lstm", "aten.mkldnn_rnn_layer", wanted, _lstm)
    yield Case("lstm backward", "aten.mkldnn_rnn_layer_backward", wanted, _lstm, backward=True)


def _lstm(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    state = torch.zeros(1, 4, 16, device=x.device)
    out: Tensor = torch.lstm(x, (state, state), [w, u], False, 1, 0.0, True, False, False)[0]
    return out
