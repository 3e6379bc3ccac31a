"""The manifest of a recorded program: what there is to collect where nobody wrote a recipe.

1. Hardware, software, environment and the settings in force, as for our own engine: from inside
   the process, because a program sets its threads and its determinism after it has started.
2. How many processes train together: without our layout, bits do depend on it.
3. The code: digest and commit of the main script, and the digests of the files beside it.

The command stands in it without the values of secrets, and no other text of the program.

>>> write_manifest(Path("runs/a"), world=2)  # doctest: +SKIP
0
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from torch.utils._python_dispatch import _disable_current_modes

from bitstep.contract.collect import collect
from bitstep.contract.manifest import Manifest, append_attempt
from bitstep.contract.program import commit

MOST_FILES: Final = 500
"""Files beside the script, at most; a manifest has a limit."""
MOST_BYTES: Final = 4 << 20
"""A larger file is no code that somebody wrote."""


def write_manifest(run: Path, world: int, layout: str = "", findings: Sequence[str] = ()) -> int:
    """Add what this process runs on to RUN/manifest.json; gives back the number of the attempt.

    Call it once, on rank 0, when the settings are in force: at the first training forward. Raises
    ContractError and RunError as `append_attempt` does.

    Args:
        world: processes that train together.
        layout: how an engine cuts its tensors, in its own words.
        findings: what an adapter found in the engine's settings, one line each.
    """
    return append_attempt(run, collected(world, layout, findings), parent=None)


def collected(world: int, layout: str = "", findings: Sequence[str] = ()) -> Manifest:
    """The manifest of this process, of `world` that train together."""
    physical: dict[str, Any] = {"processes": world} | ({"engine": layout} if layout else {})
    said = {"findings": {str(at): line for at, line in enumerate(findings)}} if findings else {}
    # Asking whether denormals are flushed takes three operations, which nobody must record.
    with _disable_current_modes():
        return collect(
            None,
            command=sys.orig_argv,
            layout={"logical": {"ranks": world}, "physical": physical},
            source=source(sys.modules) | said,
            wakes_gpu=False,
        )


def source(modules: Mapping[str, ModuleType]) -> dict[str, Any]:
    """Digest and commit of the main script, and the digest of each loaded file beside it."""
    main = _file(modules.get("__main__"))
    if main is None:  # -c, or an interactive session
        return {"commit": None, "source": None}
    home = _home(main)
    files = {_file(module) for module in list(modules.values())} - {None, main}
    beside = sorted(file for file in files if file and _is_beside(file, home))
    digests = {_key(file, home): digest for file in beside if (digest := _digest(file))}
    return {
        "commit": _commit(main),
        "source": _digest(main),
        "files": dict(list(digests.items())[:MOST_FILES]),
    }


def _file(module: ModuleType | None) -> Path | None:
    # A module may be an object of any kind, whose attributes do as they like.
    name = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return Path(name).absolute() if isinstance(name, str) and name.endswith(".py") else None


def _home(main: Path) -> Path:
    """The folder of the script, or of its package."""
    home = main.parent
    while (home / "__init__.py").exists():
        home = home.parent
    return home


def _is_beside(file: Path, home: Path) -> bool:
    installed = {"site-packages", "dist-packages"}
    return file.is_relative_to(home) and not installed & set(file.relative_to(home).parts)


def _key(file: Path, home: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", file.relative_to(home).as_posix())[-150:]


def _digest(file: Path) -> str | None:
    try:
        if file.stat().st_size > MOST_BYTES:
            return None
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _commit(main: Path) -> str | None:
    return next((found for folder in main.parents if (found := commit(folder))), None)
