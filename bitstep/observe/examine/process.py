"""One examined process: it counts steps, reads streams, and ends itself after the last.

1. Bits of each step: losses, gradients, parameters, and the order of the optimizer's parameters.
2. Streams before the first step and at the end of each; generators, loaders and saves meanwhile.
3. After the last step it ends, at once, or when the program has saved.
4. Where streams are to be perturbed, a child is forked for each at the end of step 1: it changes
   its stream, goes on for one step, and leaves its bits. The first two children change nothing.

All of it is one file per process, process-00000-PID.json; of a child fork-000.json.

    Process(order).start()
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from dataclasses import replace
from typing import Any, Final

import torch
from torch.optim import Optimizer

from bitstep.faults.clock import Clock
from bitstep.observe.examine import begin, draws, ends, inventory
from bitstep.observe.examine.frames import where
from bitstep.observe.examine.inventory import Stream
from bitstep.observe.examine.leaves import of_tensor
from bitstep.observe.examine.loaders import Loaders
from bitstep.observe.examine.order import Order
from bitstep.observe.examine.saves import Saves
from bitstep.observe.names import Names
from bitstep.observe.optimizers import Optimizers
from bitstep.observe.program import Program

CONTROLS: Final = ("", "")
"""Children that change nothing: they must have the same bits."""


class Process:
    """Examines this process. One thread: the one that trains."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._clock = Clock(self._hears)
        self._names, self._optimizers = Names(), Optimizers()
        self._program = Program(self._names, self._optimizers)
        self._draws = draws.Draws(order.entropy, where)
        self._loaders = Loaders(order.workers, self._draws.note)
        self._saves = Saves(order.folder, self._is_saving)
        self._step = self._updates = self._first_updates = 0
        self._losses: list[str] = []
        self._gradients = ""
        self._before_backward: dict[str, str] = {}
        self._deadline = 0.0
        self._has_saved = self._is_over = False
        self._child = ""
        self._rank, self._world = 0, 1
        self._said: dict[str, Any] = {
            "steps": [], "inventory": {}, "generators": {}, "at_save": {}, "order": [],
            "backward_drew": [], "notes": [], "roots": [],
        }  # fmt: skip

    def start(self) -> None:
        """Hook the process."""
        self._draws.attach()
        self._loaders.attach()
        self._saves.attach(self._said["notes"].append)
        self._said["generators"]["start"] = draws.states()
        self._saves.is_muted = self._order.mute
        if self._order.streams:
            # The threads of OpenMP do not survive a fork, and a child would wait for them.
            torch.set_num_threads(1)
            torch.set_num_threads = lambda nthreads: None
        self._note_optimizers()
        self._clock.start()
        atexit.register(self._at_exit)

    def _note_optimizers(self) -> None:
        made = Optimizer.__init__

        @functools.wraps(made)
        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            if self._is_ours():
                self._optimizers.add(optimizer)

        kind: Any = Optimizer
        kind.__init__ = make

    def _is_ours(self) -> bool:
        return os.getpid() == self._pid and threading.get_ident() == self._thread

    def _hears(self, position: str, subject: Any) -> None:
        if self._is_over or not self._is_ours():
            return
        try:
            self._follow(position, subject)
        except Exception as error:  # it is said, and the program goes on
            self._said["notes"].append(f"{position}: {type(error).__name__}: {error}")
            self._write()

    def _follow(self, position: str, subject: Any) -> None:
        if position == "step":
            self._begin(subject)
        elif position == "before-forward":
            self._meet(subject)
        elif position == "loss":
            self._losses += [of_tensor("", loss).digest for loss in subject]
            self._before_backward = draws.states()
        elif position == "after-backward":
            self._note_draws_of_backward()
        elif position == "before-optimizer":
            self._optimizers.add(subject)
            if not self._updates:
                self._gradients = inventory.digest(self._program.gradients())
        elif position == "after-optimizer":
            self._updated()

    def _meet(self, root: Any) -> None:
        name = self._names.root(root)
        kind = type(root).__name__
        if [name, kind] not in self._said["roots"]:
            self._said["roots"].append([name, kind])

    def _begin(self, root: Any) -> None:
        """The first forward of a step."""
        self._meet(root)
        if self._step >= self._order.steps and self._has_saved:
            self._finish()
        # Now: at the end of the program its group may be gone.
        self._rank, self._world = ends.rank(), ends.world()
        if not self._step:
            self._said["generators"]["first forward"] = draws.states()
            self._said["events_before"] = len(self._draws.events)
            self._said["inventory"]["0"] = self._read()
        self._step, self._updates, self._losses = self._step + 1, 0, []

    def _updated(self) -> None:
        """After an update; the last of a step is known from the first step's number of them."""
        if not self._step:  # no module was called: it has forwards of another kind
            self._step = 1
        self._updates += 1
        step, order = self._step, self._order
        if step == 1:
            self._first_updates = self._updates
        is_last = self._updates >= (self._first_updates if step > 1 else order.updates)
        if step <= order.steps:
            self._said["inventory"][str(step)] = self._read()
            self._said["generators"][f"step {step}"] = draws.states()
            self._write_bits()
            if step == 1 and is_last:
                self._perturb()
            elif step == order.steps and is_last:
                self._ends_steps()
        elif self._world > 1:
            self._said["inventory"][str(step)] = self._read()
        if self._deadline and time.monotonic() > self._deadline:
            self._finish()
        self._losses = []

    def _write_bits(self) -> None:
        bits = {
            "step": self._step,
            "losses": list(self._losses),
            "gradients": self._gradients,
            "parameters": inventory.digest(self._program.parameters()),
        }
        steps = self._said["steps"]
        if steps and steps[-1]["step"] == self._step:
            bits["losses"] = steps[-1]["losses"] + bits["losses"]
            bits["gradients"] = steps[-1]["gradients"]
            steps.pop()
        steps.append(bits)
        if not self._said["order"]:
            named = {id(item.tensor): item.name for item in self._program.parameters()}
            self._said["order"] = [
                [named.get(id(p), "?") for group in o.param_groups for p in group["params"]]
                for o in self._optimizers
            ]

    def _ends_steps(self) -> None:
        wait = self._order.save_wait
        if self._child or not wait or self._saves.events:
            self._finish()
        self._deadline = time.monotonic() + wait

    def _perturb(self) -> None:
        order = self._order
        if order.perturb:
            self._change(order.perturb)
        elif order.streams:
            why = self._why_no_fork()
            if why:
                self._said["notes"].append(f"not forked: {why}")
            elif (order.folder / "fork-000.json").exists():
                self._said["notes"].append("not forked: a process before it was")
            else:
                for number, stream in enumerate((*CONTROLS, *order.streams)):
                    if self._fork(number, stream):
                        return  # the child goes on
            self._finish()

    def _why_no_fork(self) -> str:
        if self._world > 1:
            return "the processes of a group would talk past each other"
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return "CUDA does not survive a fork"
        return ""

    def _fork(self, number: int, stream: str) -> bool:
        """True in the child, which has changed its stream."""
        if not ends.fork():
            return False
        self._pid, self._child = os.getpid(), f"fork-{number:03d}.json"
        self._said["perturbed"] = stream
        self._loaders.forked()
        self._saves.is_muted = True
        self._order = replace(self._order, streams=(), save_wait=0.0)
        if stream:
            self._change(stream)
        return True

    def _change(self, name: str) -> None:
        stream = self._streams().get(name)
        if stream is None:
            self._said["notes"].append(f"no stream {name} to perturb")
            return
        for change in stream.changes:
            change()
        after = self._streams()[name].to_json()
        self._said["changed"] = name.startswith("loader/") or after != stream.to_json()

    def _streams(self) -> dict[str, Stream]:
        return inventory.take(self._program, self._optimizers, self._loaders)

    def _read(self) -> dict[str, Any]:
        return {name: stream.to_json() for name, stream in self._streams().items()}

    def _note_draws_of_backward(self) -> None:
        after = draws.states()
        moved = [name for name, state in after.items() if self._before_backward.get(name) != state]
        drew = self._said["backward_drew"]
        drew += [name for name in moved if name not in drew]

    def _is_saving(self) -> int:
        if self._is_ours() and self._step and not self._is_over:
            if not self._has_saved or self._said["save_step"] != self._step:
                self._said["at_save"], self._said["save_step"] = self._read(), self._step
            self._has_saved = True
        return self._step

    def _at_exit(self) -> None:
        if os.getpid() == self._pid and not self._is_over and self._step:
            self._said["ended"] = "by itself"
            self._write()

    def _finish(self) -> None:
        """Leave the file and end, without a word to the program."""
        self._said["ended"] = "after the last step"
        self._write()
        ends.end(self._order.folder, 0 if self._child else self._world)

    def _write(self) -> None:
        self._is_over = True
        name = self._child or f"process-{self._rank:05d}-{os.getpid()}.json"
        said = {
            **self._said,
            "rank": self._rank,
            "world": self._world,
            "time": time.time_ns(),
            "updates": self._first_updates,
            "threads": torch.get_num_threads(),
            "loaders": [loader.to_json() for loader in self._loaders],
            "events": self._draws.events,
            "unseeded": begin.unseeded,
            "saves": self._saves.events,
            "loads": self._saves.loads,
        }
        ends.write(self._order.folder, name, said)
