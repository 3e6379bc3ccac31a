"""What an operation reads, writes and decides by, from its schema, looked up once per operation.

1. `plan_of` classifies an operation: a view has no bits of its own, an empty result none yet.
2. Arguments that it writes are hashed after it ran; those that it writes whole are not inputs.
3. Everything that is not a tensor becomes one digest of its text.

>>> plan = plan_of(torch.ops.aten.add_.Tensor)
>>> plan.reads, plan.writes
((Argument(at=0, name='self', many=False, slot='in.0'), \
Argument(at=1, name='other', many=False, slot='in.1')), \
(Argument(at=0, name='self', many=False, slot='mutated.0'),))
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch


class Kind(enum.Enum):
    """How an operation is recorded."""

    PLAIN = "plain"
    VIEW = "view"
    """Another look at the same bits: its result is hashed where it is read."""
    EMPTY = "empty"
    """Memory that nobody wrote yet."""
    COPY = "copy"
    """The same values elsewhere: what nobody wrote stays so."""
    SCALAR = "scalar"
    """A Python number read from a tensor."""
    SILENT = "silent"
    """Bookkeeping that computes nothing."""


class Argument(NamedTuple):
    """An argument of an operation."""

    at: int
    """Position, or -1 for an argument that is only passed by name."""
    name: str
    many: bool
    """A list of tensors."""
    slot: str = ""
    """Of its row: "in.0", "mutated.0"."""


class Plan(NamedTuple):
    """What the recorder does with one operation."""

    name: str
    """As in a trace: "aten.add_.Tensor"; without ".default"."""
    kind: Kind
    reads: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    others: tuple[Argument, ...]
    """Arguments that are not tensors."""
    news: tuple[int, ...]
    """Positions of the results that are no argument given back."""
    results: int
    """How many there are."""
    when: Argument | None
    """It writes only where this argument is true."""
    beta: Argument | None
    """Where this argument is 0, what stands first among `reads` does not matter: Megatron gives
    `baddbmm` memory that nobody wrote."""
    draws: bool
    """It takes numbers from a generator."""
    collective: bool


_OVERWRITES: Final = frozenset((
    "copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
    "log_normal_", "geometric_", "cauchy_", "set_", "resize_", "_foreach_copy_", "_foreach_zero_",
    "recv_", "recv_any_source_",
))  # fmt: skip
"""Operations whose first argument is written whole: what it held before is not an input."""
_ALIASES: Final = frozenset(
    ("_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "detach_", "resize_", "set_")
)
"""Views that their schema does not call so."""
_PARTS: Final = {"fsdp::all_gather_copy_in": (("all_gather_inputs",), (0,))}
"""Operations that write a part of a buffer and give it back whole, the rest not yet written: what
they read, and which results are theirs. FSDP2 gathers into the rest."""
_UNSAID: Final = dict.fromkeys((
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
    "aten::batch_norm_update_stats", "aten::batch_norm_gather_stats",
    "aten::batch_norm_gather_stats_with_counts",
), ("running_mean", "running_var"))  # fmt: skip
"""What operations write in training though their schema does not say so."""
_SILENT_NAMES: Final = frozenset(("is_pinned", "_has_compatible_shallow_copy_type", "sym_size"))
_SILENT_SPACES: Final = frozenset(("profiler", "prim", "prims", "debugprims", "inductor"))
COLLECTIVE_SPACES: Final = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))

plans: dict[int, tuple[Any, Plan]] = {}


def plan_of(func: Any) -> Plan:
    """The plan of a torch.ops overload; the same object every time."""
    # By id, which is its own as long as it is kept here: to hash an overload is a call of Python.
    known = plans.get(id(func))
    if known is None:
        known = plans[id(func)] = (func, _make(func))
    return known[1]


def _make(func: Any) -> Plan:
    schema = getattr(func, "_schema", None)
    if schema is None:  # A higher-order operator: what it runs is seen by itself.
        return Plan(str(func), Kind.SILENT, (), (), (), (), 0, None, None, False, False)
    space, base = schema.name.split("::")
    overload = schema.overload_name
    name = f"{space}.{base}" + (f".{overload}" if overload else "")
    arguments = list(_arguments(schema))
    whole = _whole(base, schema)
    writes = _slots(
        "mutated", (where for where, tensor, written in arguments if tensor and written)
    )
    when = None
    if schema.name in _UNSAID:
        names = _UNSAID[schema.name]
        writes = _slots("mutated", (a for a, _, _ in arguments if a.name in names))
        when = next((a for a, _, _ in arguments if a.name == "training"), None)
    reads = _slots("in", (a for a, tensor, _ in arguments if tensor and a.name not in whole))
    others = tuple(where for where, tensor, _ in arguments if not tensor)
    # Those of alpha times a product: softplus has a beta, too.
    scaled = {"alpha", "beta"} <= {where.name for where in others}
    beta = next((where for where in others if scaled and where.name == "beta"), None)
    news = tuple(at for at, result in enumerate(schema.returns) if result.alias_info is None)
    if schema.name in _PARTS:
        read, news = _PARTS[schema.name]
        reads = tuple(argument for argument in reads if argument.name in read)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    kind = _kind(space, base, func, bool(writes))
    collective = space in COLLECTIVE_SPACES
    results = len(schema.returns)
    return Plan(name, kind, reads, writes, others, news, results, when, beta, draws, collective)


def _slots(what: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    return tuple(a._replace(slot=f"{what}.{number}") for number, a in enumerate(arguments))


def _arguments(schema: Any) -> Iterator[tuple[Argument, bool, bool]]:
    """Each argument, whether it is a tensor, and whether it is written."""
    for index, argument in enumerate(schema.arguments):
        kind = str(argument.type)
        many = "List" in kind
        alias = argument.alias_info
        where = Argument(-1 if argument.kwarg_only else index, argument.name, many)
        yield where, "Tensor" in kind, alias is not None and alias.is_write


def _whole(base: str, schema: Any) -> set[str]:
    """Names of the arguments whose values do not matter: those that are written whole."""
    names = {a.name for a in schema.arguments if a.is_out}
    if base.endswith("_like") or base.startswith("new_"):
        names.add("self")  # Only its shape and dtype are asked for.
    if base in _OVERWRITES:
        names |= {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    return names


def _kind(space: str, base: str, func: Any, writes: bool) -> Kind:
    if space in _SILENT_SPACES or base in _SILENT_NAMES:
        return Kind.SILENT
    if base == "_local_scalar_dense":
        return Kind.SCALAR
    if base in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"):
        return Kind.EMPTY
    if func.is_view or base in _ALIASES:
        return Kind.VIEW
    if base in ("copy_", "clone", "_to_copy"):
        return Kind.COPY
    return Kind.PLAIN


def value_of(argument: Argument, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the call passes for an argument, or None."""
    if 0 <= argument.at < len(args):
        return args[argument.at]
    return kwargs.get(argument.name)


texts: dict[str, int] = {}


def digest_of_others(plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """64 bits over the arguments that are not tensors; None if the call passes none."""
    passed = []
    given = len(args)
    for at, name, _, _ in plan.others:
        value = args[at] if -1 < at < given else kwargs.get(name)
        if value is not None:
            passed.append((name, value if type(value) in BY_TEXT else plain(value)))
    for at, name, _, _ in plan.reads:
        # A number may stand where a tensor could.
        value = args[at] if -1 < at < given else kwargs.get(name)
        if type(value) in _NUMBERS:
            passed.append((name, value))
    return digest_of_text(repr(passed)) if passed else None


def digest_of_text(text: str) -> int:
    """64 bits of a text; remembered, because steps repeat."""
    digest = texts.get(text)
    if digest is None:
        if len(texts) > 100_000:
            texts.clear()
        raw = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest()
        digest = texts[text] = int.from_bytes(raw, "little")
    return digest


_NUMBERS: Final = frozenset((bool, int, float, complex))
BY_TEXT: Final = frozenset(
    (bool, int, float, complex, str, torch.dtype, torch.memory_format, torch.layout)
)


_NUMBER_LIKE: Final = (bool, int, float, complex, str)


def plain(value: Any) -> Any:
    """A value whose repr is the same in another process: no address, no device number."""
    if type(value) in BY_TEXT or isinstance(value, _NUMBER_LIKE):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, torch.device):
        return value.type
    return type(value).__name__
