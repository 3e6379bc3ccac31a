"""What the hooks report -> steps, microbatches and phases, and the rows that belong to them.

1. A step ends at the first new work after an optimizer step: a forward, a backward, a batch.
   Optimizers that step one after another share a step; each of a GAN's two updates is one.
2. Without a torch optimizer, a step ends where parameters were written since a backward; and if
   nothing ever writes them, every backward is a step.
3. A microbatch is what lies between two backwards of a step.
4. Forwards without gradients, or of a module in eval mode, belong to the phase `eval`.

Everything here runs inside of somebody else's program: a failure lowers the level, and the program
goes on (`guarded`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bitstep.errors import BitstepError
from bitstep.observe import snapshot
from bitstep.observe.chunks import Chunk
from bitstep.observe.digests import Digest, digest_of
from bitstep.observe.host import Host, guarded
from bitstep.observe.journal import Journal
from bitstep.observe.metrics import metric_row
from bitstep.observe.modules import named_tensors
from bitstep.observe.names import Names
from bitstep.observe.optimizers import Optimizers
from bitstep.observe.program import Program
from bitstep.observe.scope import Scope
from bitstep.observe.seen import Access, Seen
from bitstep.observe.staterows import StateRows
from bitstep.observe.written import Written
from bitstep.records import Fingerprint, Flag
from bitstep.trace.columns import Columns
from bitstep.trace.schema import DIED

STEP, PHASE, MODULE, OP = range(4)
_SKIPPED = int(Flag.SKIPPED)
_PATIENCE = 64
"""Backwards without any update, after which every backward counts as a step."""


class Events:
    """The state machine of a recording. Its public methods are what hooks call."""

    def __init__(
        self,
        columns: Columns,
        scope: Scope,
        journal: Journal,
        names: Names,
        optimizers: Optimizers,
        seen: Seen,
        host: Host,
    ) -> None:
        self.journal = journal
        self.asleep = False
        """Our own work is going on, or somebody's that must not be recorded."""
        self.level = STEP
        self.step = 0
        self._first = 0
        """The first step of this recording; 0 before it."""
        self.manual = False
        """The program says itself where steps begin."""
        self._told = 0
        """The number of a first step that has still to begin."""
        self.layout = ""
        """Of an engine that cuts tensors: "tp 2, pp 1 ..."; runs in two layouts are compared by
        their logical states."""
        self.findings: Sequence[str] = ()
        """What an adapter found in an engine's settings: for the manifest."""
        self.names_of_addresses: dict[int, str] = {}
        """Address -> "Net.0.weight:grad", from backward to the end of the step: what the list
        arguments of clipping and of the optimizer hold."""
        self._columns = columns
        self._scope = scope
        self._names = names
        self._optimizers = optimizers
        self._seen = seen
        self.state = StateRows(columns, scope, Program(names, optimizers))
        self._written = Written(names, self.state.bits)
        self._chunk = Chunk(scope)
        self._host = host
        self._eval = ExitStack()
        self._optimizer = ExitStack()
        self._has_torch_optimizer = False
        self._without_update = 0
        self._root_before = 0
        self._new_step_state()

    def _new_step_state(self) -> None:
        self._turned = False
        """An optimizer has stepped: the next new work belongs to the next step."""
        self._turned_by: list[int] = []
        self._backwards = 0
        self._forwards = 0
        """Of roots, since the last backward."""
        self._began = False
        self._evaluated = False
        self._chunk.new_step()
        self._held: list[object] = []
        """Whose state is still to be read: a training function may return before that."""

    # -- what the modules report -------------------------------------------------------------

    def begin(self) -> None:
        """The recording begins, or goes on: what comes before the first training step is step 0."""
        if len(self._columns):
            self._host.leveled(self.level)
        else:
            self._level()

    @property
    def at_module(self) -> bool:
        """Whether modules have rows of their own now."""
        return self.level >= MODULE

    @property
    def needs_roots_only(self) -> bool:
        """Whether no row of this step has a module; in the first step all are named."""
        return self.level < MODULE and self.step > self._first

    @property
    def listens(self) -> bool:
        """Whether gradients of modules have rows: at level `op` the operations have them."""
        return self.level == MODULE

    @guarded
    def root_begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """The forward of a root module begins."""
        with_gradients = torch.is_grad_enabled() or self._scope.is_checkpointed
        training = with_gradients and module.training
        if self.step == 0 and training:
            self._begin_first()
        self._turn_if_due()
        if not training:
            self._evaluated = True
            self._eval.enter_context(self._scope.in_phase("eval"))
            return
        self._turn_if_written()
        self._begin_forward()
        self.names_of_addresses = {}
        self._scope.set_base("forward")
        self._scope.set_microbatch(self._number)
        self._batch(named_tensors(args, kwargs))
        self._forwards += 1

    def root_ended(self, module: nn.Module) -> None:
        """It ended."""
        self._eval.close()

    @guarded
    def tensor_row(self, head: int, occurrence: int, slot: str, tensor: Tensor) -> None:
        """One row of a module's input, output or gradient."""
        inner = getattr(tensor, "_local_tensor", tensor)
        access = self._seen.read(inner)
        if access.flags & _SKIPPED and (parts := self._seen.read_parts(inner)):
            for name, of in parts:
                self._tensor_row(head, occurrence, slot, of, name)
        else:
            self._tensor_row(head, occurrence, slot, access)

    def _tensor_row(
        self, head: int, occurrence: int, slot: str, access: Access, part: str = "bits"
    ) -> None:
        total, dtype, shape, flags, version, writer = access
        self._columns.add(
            head, occurrence, slot, total, dtype, shape, None, version, writer, flags, part
        )

    def _batch(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        rows = []
        occurrence = self._forwards if self._chunk.number is None else 0
        for name, tensor in tensors:
            if tensor.grad_fn is not None:  # The output of another root.
                continue
            if (
                self._chunk.number is not None and tensor.requires_grad
            ):  # Received from another stage.
                continue
            inner = getattr(tensor, "_local_tensor", tensor)
            whole = snapshot.Row(name, "batch", digest_of(inner), None)
            for row in snapshot.by_parts(whole, inner):
                rows.append(row)
                if self.level >= PHASE:
                    self._row("data", name, "batch", row.digest, self._number, occurrence, row.part)
        if rows:
            total = Digest(snapshot.root_of(rows), "uint64", ())
            self._row("data", "", "batch", total, self._number, occurrence)

    # -- what pipeline schedules report ----------------------------------------------------------

    @contextmanager
    def asleep_for(self) -> Iterator[None]:
        """What runs inside is no training: nothing is recorded, and nothing counted."""
        before, self.asleep = self.asleep, True
        try:
            yield
        finally:
            self.asleep = before

    def in_chunk(self, number: int, pass_: str | None) -> AbstractContextManager[None]:
        """What runs inside is work on that microbatch, and in backward of that pass."""
        return self._chunk.running(number, pass_)

    @property
    def _number(self) -> int:
        return self._backwards if self._chunk.number is None else self._chunk.number

    # -- what backward, clipping and optimizers report -----------------------------------------

    @guarded
    def new_work(self, training: bool = False) -> None:
        """Work on a batch begins; an engine may know that it is training."""
        if training and self.step == 0:
            self._begin_first()
        self._turn_if_due()

    @guarded
    def backward_begins(self, of: Any) -> None:
        """`of`: the tensor or tensors whose backward is called."""
        if self.step == 0:
            self._begin_first()
        self._turn_if_due()
        if not self._forwards:  # Of no module: it could not be told before.
            self._turn_if_written()
        self._begin_forward()
        self._scope.set_microbatch(self._number)
        self._scope.set_base("backward")
        for at, tensor in enumerate((of,) if isinstance(of, Tensor) else tuple(of or ())):
            if isinstance(tensor, Tensor) and self._chunk.counts_loss(tensor):
                self._row("backward", "", "metric.loss", metric_row(tensor), self._number, at)

    @guarded
    def backward_ended(self) -> None:
        """It came back."""
        self._scope.backward_ended()
        self._host.backward_ended()
        if self.level >= PHASE and self._chunk.number is None:
            self.state.after_backward(self._backwards)
        if self.level >= OP:
            self.names_of_addresses = self.state.names_of_addresses()
        # A schedule goes back several times for a microbatch, and numbers them itself.
        self._backwards += self._chunk.number is None
        self._forwards = 0
        if not self._has_torch_optimizer:
            self._held = [root for _, root in self._names.roots()]

    @guarded
    def optimizer_begins(self, optimizer: Any) -> None:
        """`optimizer.step` was called."""
        if self.step == 0:
            self._begin_first()
        if id(optimizer) in self._turned_by:
            self._turn_if_due()
        self._has_torch_optimizer = True
        self._optimizer.enter_context(self._scope.in_phase("optimizer"))
        if not self._turned:
            self.state.before_optimizer(self.level >= PHASE)
        self.state.settings(optimizer)

    @guarded
    def optimizer_ended(self, optimizer: Any) -> None:
        """It came back."""
        self._optimizer.close()
        self._held += [optimizer, *(root for _, root in self._names.roots())]
        self._turned_by.append(id(optimizer))
        self.turn_ended()

    def turn_ended(self) -> None:
        """One turn of the training loop is over, whether or not it updated anything."""
        self._turned = self.step > 0
        self._scope.set_base("optimizer")

    @guarded
    def within(self, phase: str, op: str, items: Iterable[snapshot.Item]) -> None:
        """What an engine's adapter reads from level `phase` on: state after its function `op`."""
        if self.level >= PHASE and self.step > 0:
            self.state.within(phase, op, items, self._chunk_number)

    @property
    def _chunk_number(self) -> int:
        return -1 if self._chunk.number is None else self._chunk.number

    @guarded
    def metric(self, name: str, value: Any, phase: str, module: str = "") -> None:
        """A value that the program computed."""
        try:
            row = metric_row(value)
            self._row(phase, module, f"metric.{name}", row, self._chunk_number)
        except BitstepError as error:
            self.journal.gap(f"metric {name}: {error}")

    # -- steps -------------------------------------------------------------------------------

    @guarded
    def begin_step(self, step: int) -> None:
        """The program says that step number `step` begins."""
        last = self.step or self._told
        begun = self.step == 0 or self._began or self._turned
        if step < last + begun:
            self.journal.gap(f"step {step} after step {last}: numbers of steps must increase")
            return
        self.manual = True
        self._scope.set_base("data")
        if self.step == 0:
            if not self._told and not any(True for _ in self._names.roots()):
                # Nothing is known of its state yet: the first forward or backward begins the step.
                self._told = step
                return
            self._begin_first(step)
            begun = step > self.step
        if begun:
            self._end_step(step)
        elif step > self.step:
            self._next(step)

    @guarded
    def pause(self) -> None:
        """The program goes on without us: what it does is not to be taken for the last step's."""
        self._turn_if_due()
        self._held.clear()

    @guarded
    def finish(self) -> None:
        """The recording ends: write what the last step has."""
        if self.step == 0 and self._told:
            self._begin_first()
        if self.step == 0:
            return
        # Of a program that raises while it makes the data of its next step these operations are
        # all that there is of the cause; of any other what follows the last update is of no use.
        died = getattr(sys, "last_value", None) if len(self._columns) else None
        if died is not None:
            self.journal.gap(f"{DIED}{type(died).__name__}")
        if self._began or self._turned or self.manual:
            self._end_step()
        elif self._evaluated or died is not None:
            # No step: there is no state that it left behind.
            self._close_batch(self._root_before, "optimizer")

    def _turn_if_due(self) -> None:
        if self._turned and not self.manual:
            self._end_step()

    def _turn_if_written(self) -> None:
        """Where no torch optimizer steps: were parameters written since a backward?"""
        if self._has_torch_optimizer or self.manual:
            return
        written = self._written.since_last_look()
        if not self._backwards:
            return
        if written:
            self._without_update = 0
        elif not any(True for _ in self._optimizers):
            self._without_update += 1
        if written or self._without_update > _PATIENCE:
            self._end_step()

    def _begin_first(self, first: int = 1) -> None:
        """The first training step begins: open the files, and write what came before it."""
        self._host.opened()
        if self.layout:
            head = self._scope.head("start", "", self.layout)
            self._columns.add(head, 0, "layout", 0, "", ())
        root = self.state.start(self.level >= PHASE)
        self.state.random("start")
        self._close_batch(root, "start")
        self._first = self._told or first
        self._next(self._first)

    def _begin_forward(self) -> None:
        if not self._began:
            self._began = True
            self.state.random("data")

    def _end_step(self, following: int | None = None) -> None:
        if not self._has_torch_optimizer:
            self.state.before_optimizer(False)
        root = self.state.at_end(self.level >= PHASE)
        self._close_batch(root, "optimizer")
        self._next(self.step + 1 if following is None else following)

    def _close_batch(self, root: int, phase: str) -> None:
        head = self._scope.head
        self._host.step_ends(self.step)
        for reason in self.journal.gaps():
            self._columns.add(head(phase, "", reason), 0, "gap", 0, "", (), flags=Flag.GAP)
        self.state.add(phase, "", "root", Fingerprint(root, "uint64", ()))
        self.journal.end_step(self.step, root, self.level)
        self._root_before = root

    def _next(self, step: int) -> None:
        self.step = step
        self.names_of_addresses = {}
        self._seen.clear()
        self._scope.new_step()
        self._new_step_state()
        self._level()

    def _level(self) -> None:
        wanted = self._host.level_of(self.step)
        self.level = min(wanted, max(self.journal.ceiling, STEP))
        self._host.leveled(self.level)
        self.number("level", self.level, "data" if self.step else "start")

    def number(self, slot: str, value: int, phase: str) -> None:
        """A row that holds a count."""
        self._row(phase, "", slot, Digest(value, "int64", ()))

    def _row(
        self,
        phase: str,
        module: str,
        slot: str,
        found: Digest,
        microbatch: int = -1,
        at: int = 0,
        part: str = "bits",
    ) -> None:
        head = self._scope.head(phase, module, microbatch=microbatch)
        total, dtype, shape, flags = found
        self._columns.add(head, at, slot, total, dtype, shape, flags=flags, part=part)

    def is_ours(self) -> bool:
        """Whether the calling thread is the one that is recorded."""
        return self._scope.is_ours()

    def drop(self) -> None:
        """Recording has stopped: keep nothing."""
        self._columns.clear()
        self._held.clear()

    def failed(self, error: Exception) -> None:
        """A hook of ours failed: record less, and say so."""
        kind = "" if isinstance(error, BitstepError) else f"{type(error).__name__}: "
        self.journal.lower(f"{kind}{error}", error)
        self.asleep = self.journal.ceiling < 0
        self.level = min(self.level, max(self.journal.ceiling, STEP))
