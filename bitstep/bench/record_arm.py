"""One arm of `bitstep bench record`: a fresh process that times training steps, recorded or not.

    python -m bitstep.bench.record_arm '{"size": "large", "arm": "op", ...}'

The program is a small GPT with clipping and AdamW over lists, as somebody would write it. `bare` is
not hooked at all; `debug mode` is torch's own, with a hash of every output, on the same steps;
`msprobe md5` is that of the package mindstudio-probe, where somebody has installed it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bitstep.launch.parent import die_with_parent

SIZES: Final = {
    "large": {"vocabulary": 512, "width": 256, "layers": 4, "heads": 4, "time": 128, "batch": 8},
    "small": {"vocabulary": 64, "width": 32, "layers": 2, "heads": 2, "time": 16, "batch": 2},
}
"""A step of `large` has 1,024 tokens and takes about 150 ms on one core; one of `small` 2 ms."""
RECORDED: Final = ("step", "phase", "module", "op", "op rehashed")
DEBUG_MODE: Final = "debug mode"
MSPROBE: Final = "msprobe md5"


@dataclass(frozen=True, slots=True)
class Order:
    """What one arm does."""

    size: str
    arm: str
    warmup: int
    steps: int
    folder: str
    """Receives the seconds of each step, as JSON, and the recording."""

    def to_word(self) -> str:
        """The order as one word of a command line."""
        return json.dumps(asdict(self))


class Block(nn.Module):
    """Attention and a multilayer perceptron, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, time, width]."""
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class GPT(nn.Module):
    """Tokens to logits."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, time: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(time, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, time]."""
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def main(word: str) -> None:
    """Do what the order says, in this process."""
    die_with_parent()
    order = Order(**json.loads(word))
    torch.set_num_threads(1)
    folder = Path(order.folder)
    with _arm(order.arm, folder) as step_in:
        seconds = _train(order, step_in)
    (folder / "seconds.json").write_text(json.dumps(seconds))


@contextlib.contextmanager
def _arm(arm: str, folder: Path) -> Any:
    """Gives what each step runs in."""
    if arm in RECORDED:
        from bitstep.observe import record

        level, _, rehashed = arm.partition(" ")
        with record(folder / "run", level=level, rehash=bool(rehashed)):
            yield contextlib.nullcontext
    elif arm == DEBUG_MODE:
        yield _debug_mode
    elif arm == MSPROBE:
        yield _msprobe(folder)
    else:
        yield contextlib.nullcontext


@contextlib.contextmanager
def _debug_mode() -> Any:
    # Importing the hash alone fails until DTensor is imported.
    import torch.distributed.tensor  # noqa: F401
    from torch.utils._debug_mode import DebugMode

    with DebugMode() as mode, mode.log_tensor_hashes():
        yield


def _msprobe(folder: Path) -> Callable[[], Any]:
    """The md5 of what goes into each function of torch and comes out, forward and backward."""
    from msprobe.pytorch import PrecisionDebugger  # type: ignore[import-not-found]

    statistics = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "md5"}
    config = {"task": "statistics", "level": "L1", "rank": [], "step": [], "statistics": statistics}
    asked = folder / "msprobe.json"
    asked.write_text(json.dumps(config | {"dump_path": str(folder / "msprobe")}))
    debugger = PrecisionDebugger(config_path=str(asked))

    @contextlib.contextmanager
    def step_in() -> Any:
        debugger.start()
        yield
        debugger.stop()
        debugger.step()

    return step_in


def _train(order: Order, step_in: Callable[[], Any]) -> list[float]:
    sizes = dict(SIZES[order.size])
    batch = sizes.pop("batch")
    torch.manual_seed(0)
    model = GPT(**sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    seconds = []
    for _ in range(order.warmup + order.steps):
        began = time.perf_counter()
        with step_in():
            ids = torch.randint(0, sizes["vocabulary"], (batch, sizes["time"]))
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        seconds.append(time.perf_counter() - began)
    return seconds[order.warmup :]


if __name__ == "__main__":
    main(sys.argv[1])
