"""Settings of torch as text: read one, set one. Imports no torch: without it there is nothing.

1. `read` gives the value, or None where the module that has it is not imported.
2. `write` sets it. It never imports `torch._inductor`, which takes longer than torch itself:
   `torch.use_deterministic_algorithms` would.

>>> read("torch._inductor.config.deterministic") is None or "torch._inductor.config" in sys.modules
True
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

MIXED: Final = "mixed"
"""Set through torch's new names for precision and its old ones: torch itself cannot tell."""


def read(name: str) -> str | None:
    """The value of a setting, as text."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if name in _FUNCTIONS:
        return _FUNCTIONS[name][0](torch)
    found = _owner(name)
    return None if found is None else _text(lambda: getattr(*found))


def write(name: str, value: str) -> None:
    """Set it. Nothing happens where the module that has it is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if name in _FUNCTIONS:
        _FUNCTIONS[name][1](torch, value)
    elif found := _owner(name):
        setattr(*found, {"True": True, "False": False}.get(value, value))


def _owner(name: str) -> tuple[Any, str] | None:
    """Who has the setting, and its last name; None where that module is not imported."""
    path, _, last = name.rpartition(".")
    if path.startswith("torch._"):  # to ask torch for it would import it
        return (sys.modules[path], last) if path in sys.modules else None
    owner: Any = sys.modules["torch"]
    for part in path.split(".")[1:]:
        owner = getattr(owner, part)
    return owner, last


def _text(get: Callable[[], Any]) -> str:
    try:
        return str(get())
    except RuntimeError:  # "mix of the legacy and new APIs"
        return MIXED


def _deterministic(torch: Any) -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn_only" if torch.is_deterministic_algorithms_warn_only_enabled() else "strict"


def _set_deterministic(torch: Any, value: str) -> None:
    torch._C._set_deterministic_algorithms(value != "off", warn_only=value == "warn_only")


def _set_threads(torch: Any, value: str) -> None:
    torch.set_num_threads(int(value))


_FUNCTIONS: Final[dict[str, tuple[Callable[[Any], str], Callable[[Any, str], None]]]] = {
    "torch.use_deterministic_algorithms": (_deterministic, _set_deterministic),
    "torch.set_float32_matmul_precision": (
        lambda torch: _text(torch.get_float32_matmul_precision),
        lambda torch, value: torch.set_float32_matmul_precision(value),
    ),
    "torch.get_num_threads": (lambda torch: str(torch.get_num_threads()), _set_threads),
}
