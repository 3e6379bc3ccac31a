"""At levels that have rows of no module, no hook runs inside of a root's forward.

1. A hook for each module costs microseconds: with 500 modules and 32 microbatches a tenth of a
   second a step. Below level `module` only the roots matter.
2. So while a root runs, `Roots` takes the two global hooks away, and a hook on that root puts them
   back when its forward ends, also by an exception.
3. Not in the first step, in which modules get their names; nor when modules were added, removed
   or are held by none that is known; nor next to another global hook.
4. Not in a program with a graph of torch.compile that was made before: its guards hold the hooks.

>>> roots = Roots(names, hooks)                     # doctest: +SKIP
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
        self._inside: Any = None
        """The handle at the root that runs without them."""
        self._is_allowed: bool | None = None

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
        if self._inside is not None or not self._may_sleep(root):
            return

        @uncompiled
        def ended(module: nn.Module, args: Any, output: Any) -> None:
            self.leave()
            after(module, args, output)

        self._inside = root.register_forward_hook(ended, always_call=True)
        for table, key, _ in self._hooks:
            del table[key]

    def leave(self) -> None:
        """Have every module hooked again."""
        if self._inside is None:
            return
        self._inside.remove()
        self._inside = None
        for table, key, hook in self._hooks:
            table[key] = hook

    def _may_sleep(self, root: nn.Module) -> bool:
        if self._is_allowed is None:
            # Once for all: what is compiled from now on has never met a hook.
            self._is_allowed = not passed("first graph")
        return (
            self._is_allowed
            and all(len(table) == 1 and key in table for table, key, _ in self._hooks)
            and not isinstance(root, torch.jit.ScriptModule)
            and self._names.are_whole()
        )

    def _forget(self) -> None:
        if self._inside is not None:
            self._inside.remove()
            self._inside = None
        self._hooks.clear()
