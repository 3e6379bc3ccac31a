"""A training that is simulated: digests are made of digests, so that a fault spreads as it would.

`record(folder, ...)` writes what a recorder would: a model of two weights and a plain tensor, with
dropout, an optimizer with one moment, and, on several ranks, an all-reduce of gradients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bitstep.records import Flag, Record, Site
from bitstep.trace import TraceWriter, metric_bits

LEVELS = ("step", "phase", "module", "op")
NAMES = ("Net.0.weight", "Net.1.weight")
Fault = Callable[["Life", int, int, str], None]
"""Called with the life, rank, step and the name of the moment, before what happens there."""


def mix(*things: object) -> int:
    """64 bits of anything."""
    return int.from_bytes(hashlib.blake2b(repr(things).encode(), digest_size=8).digest(), "little")


@dataclass
class State:
    """What the next step depends on, of one rank."""

    params: dict[str, int]
    moments: dict[str, int]
    bias: int = 5
    rng: int = 1
    position: int = 0
    lr: float = 0.1


def first_state(seed: int = 1) -> State:
    return State({name: mix("draw", seed, name) for name in NAMES}, {}, rng=mix("seed", seed))


@dataclass
class Life:
    """One process group that trains, and what it records."""

    world: int = 1
    level: str = "op"
    fault: Fault | None = None
    fused: bool = False
    recompute: str = ""
    """"" none, "kept" with the state of the generator, "new" without."""
    python: int = 7
    rows: list[Record] = field(default_factory=list)
    rank: int = 0
    step: int = 0
    seq: list[int] = field(default_factory=list)
    counts: dict[tuple[object, ...], int] = field(default_factory=dict)
    noise: int = 0
    """Changes the result of whatever op comes next."""
    writers: dict[str, int] = field(default_factory=dict)
    grads: dict[str, int] = field(default_factory=dict)
    """What the optimizer is given."""

    def at(self, moment: str) -> None:
        if self.fault:
            self.fault(self, self.rank, self.step, moment)

    def row(
        self, phase: str, slot: str, digest: int, module: str = "", op: str = "",
        occurrence: int = 0, dtype: str = "float32", microbatch: int = -1, flags: int = 0,
        writer: int = -1, pass_: str = "primary", shape: tuple[int, ...] = (4,),
    ) -> int:  # fmt: skip
        site = Site(self.step, self.rank, phase, slot, pass_, microbatch, module, op, occurrence)
        seq = self.seq[self.rank]
        self.rows.append(Record(seq, site, digest, dtype, shape, None, -1, writer, flags))
        self.seq[self.rank] += 1
        return seq

    def call(
        self, phase: str, op: str, inputs: Iterable[tuple[str, int]] = (), module: str = "",
        out: str = "out.0", args: int | None = None, draw: State | None = None, line: str = "",
        pass_: str = "primary", flags: int = 0, result: int | None = None, microbatch: int = -1,
    ) -> int:  # fmt: skip
        """An operation: gives back the digest of its result."""
        key = (phase, pass_, microbatch, module, op)
        occurrence = self.counts[key] = self.counts.get(key, -1) + 1
        known = list(inputs)
        made = mix(op, module, args, [digest for _, digest in known], draw and draw.rng, self.noise)
        self.noise = 0
        made = made if result is None else result
        if self.level != "op":
            if draw:
                draw.rng = mix(draw.rng)
            return made

        def add(slot: str, digest: int, **more: object) -> int:
            return self.row(phase, slot, digest, module, op, occurrence, pass_=pass_,
                            microbatch=microbatch, **more)  # type: ignore[arg-type]  # fmt: skip

        if draw:
            add("rng", draw.rng, dtype="uint8")
            add(f"at.{line or 'train.py:1'}", 0, dtype="")
            draw.rng = mix(draw.rng)
        if args is not None:
            add("args", args, dtype="text")
        for at, (name, digest) in enumerate(known):
            add(f"in.{at}", digest, writer=self.writers.get(name, -1), flags=flags)
        wrote = add(out, made)
        for name in [name for name, _ in known[:1]] if out.startswith("mutated") else [op]:
            self.writers[name] = wrote
        return made

    def deep(self, level: str) -> bool:
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def begin(self, step: int, phase: str, state: State) -> None:
        self.step = step
        self.counts.clear()
        self.writers.clear()
        self.row(phase, "level", LEVELS.index(self.level), dtype="int64")
        if step == 0:
            self.row(phase, "world", self.world, dtype="int64")

    def streams(self, phase: str, state: State) -> None:
        self.row(phase, "rng", mix("python", self.python), "python", dtype="uint8")
        self.row(phase, "rng", state.rng, "torch", dtype="uint8")

    def state_rows(self, phase: str, occurrence: int, state: State) -> int:
        if self.deep("phase"):
            for name, digest in state.params.items():
                self.row(phase, "param", digest, name, occurrence=occurrence)
            for name, digest in state.moments.items():
                self.row(phase, "state.exp_avg", digest, name, occurrence=occurrence)
            self.row(phase, "attr", state.bias, "Net.bias", occurrence=occurrence)
        roots = {
            "root.params": mix(sorted(state.params.items())),
            "root.optimizer": mix(sorted(state.moments.items())),
            "root.buffers": mix(state.bias),
        }
        for slot, digest in roots.items():
            self.row(phase, slot, digest, dtype="uint64")
        root = mix(roots)
        self.row(phase, "root", root, dtype="uint64")
        return root

    def start(self, state: State) -> int:
        self.begin(0, "start", state)
        self.at("start")
        self.streams("start", state)
        return self.state_rows("start", 0, state)

    def forward(self, state: State) -> tuple[int, dict[str, int]]:
        """The loss and the gradients."""
        self.at("data")
        drawn = self.call("data", "aten.random_", draw=state, line="loader.py:3", out="mutated.0")
        self.streams("data", state)
        batch = mix("batch", self.rank, state.position, drawn)
        state.position += 1
        if self.deep("phase"):
            self.row("data", "batch", batch, "0", microbatch=0)
        self.row("data", "batch", mix(batch), dtype="uint64", microbatch=0)
        self.at("forward")
        kept = state.rng
        hidden = self.layer(state, batch, "primary", "forward")
        self.at("loss")
        loss = self.call("forward", "aten.mse_loss", [("h", hidden)], microbatch=0)
        bits = metric_bits(float(loss % 1000), "float32")
        self.row("backward", "metric.loss", bits, microbatch=0, shape=())
        self.at("backward")
        if self.recompute:
            now = state.rng
            if self.recompute == "kept":
                state.rng = kept
            hidden = self.layer(state, batch, "recompute", "backward")
            state.rng = now if self.recompute == "kept" else state.rng
        grads = {}
        for name in reversed(NAMES):
            module = name.rpartition(".")[0]
            given = [("loss", loss), ("hidden", hidden)]
            grads[name] = self.call("backward", "aten.mm_backward", given, module, microbatch=0)
            self.writers[f"grad {name}"] = self.writers.get("aten.mm_backward", -1)
        if self.deep("phase"):
            for name in NAMES:
                self.row("backward", "grad", grads[name], name, microbatch=0)
        return loss, grads

    def layer(self, state: State, batch: int, pass_: str, phase: str) -> int:
        weight = state.params[NAMES[0]]
        self.at(f"{pass_} linear")
        inputs = [("batch", batch), ("weight", weight)]
        hidden = self.call(phase, "aten.mm", inputs, "Net.0", pass_=pass_, microbatch=0,
                           flags=Flag.CARRIED)  # fmt: skip
        return self.call(phase, "aten.bernoulli_", [("hidden", hidden)], "Net.drop", draw=state,
                         line="model.py:9", out="mutated.0", pass_=pass_, microbatch=0)  # fmt: skip

    def update(self, state: State, grads: dict[str, int]) -> int:
        self.row("optimizer", "args.lr", metric_bits(state.lr, "float64"), "group0", "AdamW",
                 dtype="float64", shape=())  # fmt: skip
        self.grads = grads
        self.at("update")
        self.row("optimizer", "root.grads", mix(sorted(grads.items())), dtype="uint64")
        if self.deep("phase"):
            for name in NAMES:
                self.row("optimizer", "grad", grads[name], name)
                self.row("optimizer", "param", state.params[name], name)
        self.at("optimizer")
        for name in NAMES:
            moment = state.moments.get(name, 0)
            if self.fused:
                state.moments[name] = mix("fused", moment, grads[name])
                given = [(name, state.params[name]), ("g", grads[name]), ("m", moment)]
                state.params[name] = self.call("optimizer", "aten._fused_adamw_", given,
                                               out="mutated.0", args=mix(state.lr))  # fmt: skip
                continue
            state.moments[name] = self.call(
                "optimizer", "aten.lerp_", [(f"m {name}", moment), ("g", grads[name])],
                out="mutated.0")  # fmt: skip
            given = [(name, state.params[name]), ("m", state.moments[name])]
            state.params[name] = self.call("optimizer", "aten.addcdiv_", given, out="mutated.0",
                                           args=mix(state.lr))  # fmt: skip
        self.at("end")
        return self.state_rows("optimizer", 1, state)


def record(
    folder: Path, steps: int = 6, states: list[State] | None = None, attempt: int = 0,
    close: bool = True, evaluate: bool = False, dies: bool = False, **options: object,
) -> list[State]:  # fmt: skip
    """Simulate `steps` steps and write what a recorder would; gives back the end states.

    With `evaluate` a forward without training follows the last step. With `dies` the program ends
    in the next step, after its backward.
    """
    life = Life(**options)  # type: ignore[arg-type]
    life.seq = [0] * life.world
    states = states or [first_state() for _ in range(life.world)]
    directory = folder / f"attempt-{attempt:03d}"
    writers = [TraceWriter(directory, rank) for rank in range(life.world)]

    def flush(rank: int, root: int) -> None:
        mine = [row for row in life.rows if row.site.rank == rank]
        life.rows = [row for row in life.rows if row.site.rank != rank]
        writers[rank].write(mine)
        writers[rank].end_step(life.step, root)

    roots = [0] * life.world
    for life.rank, state in enumerate(states):
        life.python += life.rank
        flush(life.rank, life.start(state))
    for step in range(1, steps + 1):
        all_grads = []
        for life.rank, state in enumerate(states):
            life.begin(step, "data", state)
            all_grads.append((life.forward(state)[1], dict(life.writers)))
        reduced = _reduce(life, [grads for grads, _ in all_grads], [w for _, w in all_grads])
        for life.rank, state in enumerate(states):
            roots[life.rank] = life.update(state, reduced[life.rank])
            flush(life.rank, roots[life.rank])
    for life.rank, state in enumerate(states if evaluate else ()):
        life.begin(steps + 1, "data", state)
        life.row("data", "batch", 3, dtype="uint64", microbatch=0)
        life.call("forward", "aten.mm", [("batch", 3)])
        life.row("optimizer", "root", roots[life.rank], dtype="uint64")
        flush(life.rank, roots[life.rank])
    for life.rank, state in enumerate(states if dies else ()):
        life.begin(steps + 1, "data", state)
        life.forward(state)
        life.row("optimizer", "root.grads", 1, dtype="uint64")
        flush(life.rank, life.state_rows("optimizer", 1, state))
    for writer in writers:
        if close:
            writer.close()
    return states


def _reduce(
    life: Life, grads: list[dict[str, int]], writers: list[dict[str, int]]
) -> list[dict[str, int]]:
    """The all-reduce of the gradients of all ranks."""
    if life.world == 1:
        return grads
    members = ",".join(map(str, range(life.world)))
    results = []
    for rank in range(life.world):
        life.rank = rank
        mine = dict(grads[rank])
        for at, name in enumerate(NAMES):
            life.at(f"reduce {name}")
            total = mix("sum", sorted(one[name] for one in grads), life.noise)
            if life.deep("phase"):
                life.row("reduce", "in.0", grads[rank][name], members, "c10d.allreduce_", at,
                         microbatch=0, writer=writers[rank].get(f"grad {name}", -1))  # fmt: skip
                life.row("reduce", "mutated.0", total, members, "c10d.allreduce_", at,
                         microbatch=0)  # fmt: skip
            mine[name] = total
        life.noise = 0
        results.append(mine)
    return results
