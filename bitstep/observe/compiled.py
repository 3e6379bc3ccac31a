"""Compiled regions: what goes into one and what comes out, named, while it stays compiled.

1. Inductor gives every graph, forward and backward, to one class; its `__call__` is the boundary.
2. A graph is named when it is made or loaded from a cache: file and function, and how many graphs
   were made for that function before: "model.py:Net.forward[0]". The backward of a graph has the
   name of its forward. Line numbers and cache keys are in no name.
3. Between `begins` and `ends` `inside` is above 0: the kernels that inductor calls through the
   dispatcher (mm, convolution, custom operations) are part of the region and no operations.
4. The other backends (eager, aot_eager) dispatch every operation: there is no region to see.

The list of inputs is emptied by the callee, to free memory early; so nothing here holds an input,
save those that the graph writes, which the program holds.

    Regions(begins, ends, is_ours).watch(undo, journal.gap)
"""

from __future__ import annotations

import functools
import os
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from bitstep.observe.dynamo import uncompiled_call
from bitstep.observe.imported import Gap, when_imported
from bitstep.observe.undo import Undo

_OUTPUT: Final = "torch._inductor.output_code"
_TRACER: Final = "torch._dynamo.symbolic_convert"
"""Private names of torch used here: CompiledFxGraph with `__call__(inputs)`, `post_compile`,
`fx_kwargs`, `mutated_input_idxs`; InstructionTranslator.current_tx().output.root_tx.f_code;
torch._guards.CompileContext.current_compile_id(). Without them regions are told by the order of
their first call, or, with a sentence for the gaps, not at all."""
_RESUMED: Final = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")
"""What dynamo calls the rest of a function after a graph break. Its line may move."""
_GENERATED: Final = re.compile(r"(<[^>]*>)\.\d+$")
"""The file of code that torch.fx wrote, as for compiled autograd, without its running number."""

Slots = list[tuple[int, Tensor]]
"""Tensors with their positions among the arguments or results; numbers and None are left out."""


class Region(NamedTuple):
    """One compiled graph."""

    name: str
    is_backward: bool


Begins = Callable[[Region, Slots], Any]
Ends = Callable[[Region, Any, Slots, Slots | None], None]


class Regions:
    """Tells of every execution of a compiled graph in the thread that is recorded.

    `begins(region, inputs)` gives back whatever `ends(region, that, mutated, outputs)` is to get;
    `outputs` is None where the graph raised. What they raise is a sentence for the gaps.
    """

    def __init__(self, begins: Begins, ends: Ends, is_ours: Callable[[], bool]) -> None:
        self._begins = begins
        self._ends = ends
        self._is_ours = is_ours
        self._names = _Names()
        self._gap: Gap = lambda reason: None
        self.inside = 0
        """How deep in compiled regions the recorded thread is."""
        self.count = 0
        """Executions seen."""

    def watch(self, undo: Undo, gap: Gap) -> None:
        """Watch inductor from the moment the program imports it."""
        self._gap = gap
        when_imported(_OUTPUT, lambda module: self._watch(module, undo, gap), undo, gap)

    def _watch(self, module: ModuleType, undo: Undo, gap: Gap) -> None:
        graph = module.CompiledFxGraph
        call, made = graph.__call__, graph.post_compile

        @functools.wraps(made)
        def note(this: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                self._names.note(this, kwargs.get("graph_kwargs", args[-1] if args else {}))
            except Exception as error:
                gap(f"a compiled region has no name: {type(error).__name__}: {error}")
            return made(this, *args, **kwargs)

        @functools.wraps(call)
        @uncompiled_call
        def run(this: Any, inputs: Sequence[Any]) -> Any:
            if not self._is_ours() or torch.compiler.is_compiling():
                return call(this, inputs)
            return self._run(call, this, inputs)

        undo.replace(graph, "post_compile", note)
        undo.replace(graph, "__call__", run)

    def _run(self, call: Callable[..., Any], graph: Any, inputs: Sequence[Any]) -> Any:
        region = self._names.of(graph)
        given = self._told(self._begins, region, _tensors(inputs))
        written = getattr(graph, "mutated_input_idxs", ())
        mutated = [(at, inputs[at]) for at in written if isinstance(inputs[at], Tensor)]
        outputs: Slots | None = None
        self.inside += 1
        self.count += 1
        try:
            result = call(graph, inputs)
            outputs = _tensors(result)
        finally:
            self.inside -= 1
            self._told(self._ends, region, given, mutated, outputs)
        return result

    def _told(self, tell: Callable[..., Any], *what: Any) -> Any:
        try:
            return tell(*what)
        except Exception as error:
            self._gap(f"a compiled region is not recorded: {type(error).__name__}: {error}")
            return None


def _tensors(values: Any) -> Slots:
    values = values if isinstance(values, list | tuple) else (values,)
    return [(at, value) for at, value in enumerate(values) if isinstance(value, Tensor)]


class _Names:
    """The name of each compiled graph, by its address for as long as it lives.

    A name is no attribute of the graph: graphs are written to caches.
    """

    def __init__(self) -> None:
        self._graphs: dict[int, tuple[weakref.ref[Any], Region]] = {}
        self._compiles: dict[str, _Compile] = {}
        self._made: Counter[str] = Counter()

    def note(self, graph: Any, options: Any) -> None:
        """A graph has been made, or loaded from a cache; its compile is still on the way.

        `options` are those of this compile; a graph from a cache has those of another.
        """
        compile_id = str(torch._guards.CompileContext.current_compile_id())
        known = self._compiles.get(compile_id)
        code = _function_being_compiled()
        if known is None or (code is not None and known.code is not code):
            name = _readable(code)
            known = _Compile(f"{name}[{self._made[name]}]", code, [])
            self._made[name] += 1
            self._compiles[compile_id] = known
        is_backward = _is_backward(graph)
        self._keep(graph, Region(known.part(options.get("graph_id"), is_backward), is_backward))

    def of(self, graph: Any) -> Region:
        """The name of a graph; of one that was made before we watched, the order of its call."""
        found = self._graphs.get(id(graph))
        if found is not None and found[0]() is graph:
            return found[1]
        name = f"{_readable(None)}[{self._made[_readable(None)]}]"
        self._made[_readable(None)] += 1
        return self._keep(graph, Region(name, _is_backward(graph)))

    def _keep(self, graph: Any, region: Region) -> Region:
        key = id(graph)
        self._graphs[key] = weakref.ref(graph, lambda _: self._graphs.pop(key, None)), region
        return region


class _Compile(NamedTuple):
    """One compile of a function by dynamo, which may be cut into several graphs (for DDP)."""

    name: str
    code: CodeType | None
    graphs: list[Any]

    def part(self, graph_id: Any, is_backward: bool) -> str:
        """The name of one of its graphs; forward and backward share their number. From the cache
        of autograd they come without one, a forward and then its backward."""
        if graph_id is None:
            follows = is_backward and bool(self.graphs)
            graph_id = self.graphs[-1] if follows else f"cached {len(self.graphs)}"
        if graph_id not in self.graphs:
            self.graphs.append(graph_id)
        at = self.graphs.index(graph_id)
        return f"{self.name}.{at}" if at else self.name


def _is_backward(graph: Any) -> bool:
    return bool(graph.fx_kwargs.get("is_backward"))


def _function_being_compiled() -> CodeType | None:
    """The function that dynamo traces right now; a backward is compiled without one."""
    tracer = sys.modules.get(_TRACER)
    try:
        code = tracer.InstructionTranslator.current_tx().output.root_tx.f_code  # type: ignore[union-attr]
    except AttributeError:
        return None
    return code if isinstance(code, CodeType) else None


def _readable(code: CodeType | None) -> str:
    if code is None:
        return "compiled"
    *scope, function = code.co_qualname.split(".")
    resumed = _RESUMED.search(function)
    name = ".".join((*scope, resumed[1] if resumed else function))
    file = _GENERATED.sub(r"\1", os.path.basename(code.co_filename))
    return f"{file}:{name}"
