"""The rows of most operations, compiled: the same rows at a third of the cost.

1. `bitstep compile` builds `operations.cpp` once for the torch and the Python that are installed
   (`launch.native`). A training program never compiles and never waits.
2. `load` gives what was built for just them and for just this source, or None.
3. `attach` has a recorder's mode dispatch with it; without it `operations.py` does everything.

Every state stays Python's, and every rare operation: a row is the same whoever made it.

>>> built().name.startswith("operations-")
True
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import platform
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from bitstep.fingerprint import cpu
from bitstep.observe import schemas
from bitstep.observe.digests import DTYPES, runs_of
from bitstep.observe.tensorrows import slot_of

if TYPE_CHECKING:
    from bitstep.observe.operations import Operations
    from bitstep.observe.scope import Scope
    from bitstep.observe.seen import Seen
    from bitstep.trace.columns import Columns

HERE: Final = Path(__file__).parent
NAME: Final = "bitstep_operations"
"""Of the module that is compiled."""
_slots: dict[str, dict[str | int, str]] = {}
"""Slots of elements of lists, for all recorders of this process."""


def sources() -> list[Path]:
    """The files that it is compiled from, the one that includes the others first."""
    return [HERE / "operations.cpp", *sorted(HERE.glob("*.h"))]


def built() -> Path:
    """Where the module lies once it is built: another torch, Python or source has another name."""
    digest = hashlib.blake2b(digest_size=8)
    abi = str(sysconfig.get_config_var("SOABI"))
    for part in (torch.__version__, abi, platform.machine()):
        digest.update(f"{part}\n".encode())
    for path in sources():
        digest.update(path.read_bytes())
    return HERE / "built" / f"operations-{digest.hexdigest()}.so"


@functools.cache
def load() -> Any:
    """The compiled module, or None where it has not been built or cannot be loaded."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # It takes the GIL for granted.
        return None
    try:
        path = built()
        if not path.is_file():
            return None
        loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
        spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except Exception:  # A damaged file, another libtorch: Python does it all.
        return None
    return module


def attach(
    mode: Operations, columns: Columns, scope: Scope, seen: Seen, hooks: Any, is_filtered: bool
) -> None:
    """Have the mode dispatch with the compiled module, if there is one."""
    module = load()
    if module is None:
        return
    held = {
        "mode": mode,
        "hooks": hooks,
        "scope": scope,
        "pending": mode.pending,
        "regions": mode.regions,
        "rows": mode.rows,
        "columns": columns,
        "cells": columns.cells,
        "digests": columns.digests,
        "seen": seen,
        "last": seen.last,
        "writers": seen.writers,
        "blank": seen.blank,
        "plans": schemas.plans,
        "texts": schemas.texts,
        "slots": _slots,
        "plain": schemas.Kind.PLAIN,
        "view": schemas.Kind.VIEW,
        "copy": schemas.Kind.COPY,
        "number": schemas.Kind.SCALAR,
        "silent": schemas.Kind.SILENT,
        "by_text": schemas.BY_TEXT,
        "plain_value": schemas.plain,
        "digest_of_text": schemas.digest_of_text,
        "runs_of": runs_of,
        "slot_of": slot_of,
    }
    kernel = cpu.address_of_run_sum(), *cpu.TABLES[1]
    native = module.Operations(held, tuple(DTYPES), *kernel, seen.rehash, is_filtered)
    # The module finds itself by this name; torch asks for a method that is bound to the mode.
    mode.__dict__["_native"] = native
    mode.__dict__["_by_python"] = mode.__torch_dispatch__
    mode.__dict__["__torch_dispatch__"] = native.dispatch()
