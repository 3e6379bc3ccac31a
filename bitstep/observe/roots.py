"""At levels that have rows of no module, the hooks of modules rest while a root runs.

1. A hook for each module costs microseconds: with 500 modules and 32 microbatches a tenth of a
   second a step. Below level `module` only the roots matter.
2. So the two global hooks are taken away when the forward of a root begins. A hook on that root
   puts them back when it ends, also by an exception.
3. Where others would notice (another global hook, or a graph of torch.compile that was made before,
   whose guards hold the hooks), they stay, and return at once.
4. Not in the first step, in which modules get their names; nor when modules were added, removed
   or are held by none that is known.

>>> roots = Roots(names)                            # doctest: +SKIP
>>> roots.enter(module, after)                      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from bitstep.contract.moments import passed
from bitstep.observe.dynamo import uncompiled
from bitstep.observe.names import Names
from bitstep.observe.undo import Undo

Hook = Callable[..., Any]


class Roots:
    """The two global hooks of a recorder, and when they are not needed."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._hooks: list[tuple[dict[int, Hook], int, Hook]] = []
        """Table, key and hook of each."""
        self.are_resting = False
        """A root runs, and no module in it matters."""
        self._handles: list[Any] = []
        """Of the hooks on that root."""
        self._calls = 0
        """Of the root by itself, that are on the way."""
        self._may_go: bool | None = None

    def attach(self, before: Hook, after: Hook, undo: Undo) -> None:
        """Hook every module."""
        modules = torch.nn.modules.module
        for handle, table, hook in (
            (register_module_forward_pre_hook(before), "_global_forward_pre_hooks", before),
            (register_module_forward_hook(after, always_call=True), "_global_forward_hooks", after),
        ):
            undo.handle(handle)
            self._hooks.append((getattr(modules, table), handle.id, hook))
        undo.add(self._forget)

    def enter(self, root: nn.Module, after: Hook) -> None:
        """The forward of a root begins, in which no module is asked for; `after` is called when it
        ends."""
        if self.are_resting or isinstance(root, torch.jit.ScriptModule):
            return
        if not self._names.are_whole():
            return

        @uncompiled
        def again(module: nn.Module, args: Any) -> None:
            self._calls += 1

        @uncompiled
        def ended(module: nn.Module, args: Any, output: Any) -> None:
            self._calls -= 1
            if self._calls == 0:
                self.leave()
                after(module, args, output)

        self.are_resting, self._calls = True, 1
        self._handles = [
            root.register_forward_pre_hook(again),  # From the next call on.
            root.register_forward_hook(ended, always_call=True),
        ]
        if self._nobody_notices():
            for table, key, _ in self._hooks:
                del table[key]

    def leave(self) -> None:
        """Every module matters again."""
        if self.are_resting:
            self._rise()
            for table, key, hook in self._hooks:
                table[key] = hook

    def _nobody_notices(self) -> bool:
        if self._may_go is None:
            # Once for all: what is compiled from now on has never met a hook inside of a root.
            self._may_go = not passed("first graph")
        return self._may_go and all(len(table) == 1 for table, _, _ in self._hooks)

    def _rise(self) -> None:
        self.are_resting = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _forget(self) -> None:
        self._rise()
        self._hooks.clear()
