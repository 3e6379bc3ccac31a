"""The manifest of a recorded program: what there is to collect where nobody wrote a recipe.

1. Hardware, software, environment and the settings in force, as for our own engine: from inside
   the process, because a program sets its threads and its determinism after it has started.
2. How many processes train together: without our layout, bits do depend on it.
3. The code: digest and commit of the main script, and the digests of what it has imported and
   nobody has installed; what git knows beyond that the launcher has asked.
4. The options that it was given, the content of the files that they name, and the module tree of
   its models.

Command and options stand in it without the values of secrets, and no other text of the program.

>>> write_manifest(Path("runs/a"), world=2)  # doctest: +SKIP
0
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from torch.utils._python_dispatch import _disable_current_modes

from bitstep.contract.classes import CANNOT, classify
from bitstep.contract.collect import collect
from bitstep.contract.manifest import Manifest, append_attempt
from bitstep.contract.program import PACKAGE, commit, is_secret, options

MOST_FILES: Final = 500
"""Files of the program, at most; a manifest has a limit."""
MOST_BYTES: Final = 4 << 20
"""A larger file is not read: it is no code that somebody wrote, and data takes long."""


Roots = Iterable[tuple[str, Any]]


def write_manifest(
    run: Path, world: int, layout: str = "", findings: Sequence[str] = (), roots: Roots = ()
) -> int:
    """Add what this process runs on to RUN/manifest.json; gives back the number of the attempt.

    Call it once, on rank 0, when the settings are in force: at the first training forward. Raises
    ContractError and RunError as `append_attempt` does.

    Args:
        world: processes that train together.
        layout: how an engine cuts its tensors, in its own words.
        findings: what an adapter found in the engine's settings, one line each.
        roots: the models, by name.
    """
    return append_attempt(run, collected(world, layout, findings, roots), parent=None)


def collected(
    world: int, layout: str = "", findings: Sequence[str] = (), roots: Roots = ()
) -> Manifest:
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
            arguments=(arguments := options(sys.argv[1:])),
            named=named_files(arguments),
            roots=roots,
            wakes_gpu=False,
        )


def source(modules: Mapping[str, ModuleType]) -> dict[str, Any]:
    """Digest and commit of the main script, and the digest of each loaded file of the program."""
    main = _file(modules.get("__main__"))
    if not main:  # -c, or an interactive session
        return {"commit": None, "source": None}
    home = _home(Path(main))
    files = {_file(module): name for name, module in sorted(modules.items())}
    named = {_key(name, Path(file), home): Path(file) for file, name in files.items()
             if file and file != main and not _is_installed(file)}  # fmt: skip
    chosen = dict(sorted(named.items())[:MOST_FILES])
    return {
        "commit": _commit(Path(main)),
        "source": _digest(Path(main)),
        "files": {key: digest for key, file in chosen.items() if (digest := _digest(file))},
    }


def named_files(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The digest of each file that an option names: data, a configuration. Not of where results
    go, and not of what a secret is in."""
    found = {}
    for option, value in arguments.items():
        said = classify(f"arguments.{option}")
        if said.bits == CANNOT or is_secret(option):
            continue
        for at, word in enumerate(value if isinstance(value, list) else [value]):
            # A home directory stands as ~ there.
            digest = _digest(Path(word).expanduser()) if isinstance(word, str) and word else None
            if digest:
                found[option if not isinstance(value, list) else f"{option}.{at}"] = digest
    return found


def _file(module: ModuleType | None) -> str:
    # A module may be an object of any kind, whose attributes do as they like.
    name = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return os.path.abspath(name) if isinstance(name, str) and name.endswith(".py") else ""


def _home(main: Path) -> Path:
    """The folder of the script, or of its package."""
    home = main.parent
    while (home / "__init__.py").exists():
        home = home.parent
    return home


def _is_installed(file: str) -> bool:
    """Whether a file belongs to Python, to a distribution or to us: versions say what they are."""
    return file.startswith(_OURS) or "/site-packages/" in file or "/dist-packages/" in file


_OURS: Final = tuple(f"{place}/" for place in (sysconfig.get_path("stdlib"), PACKAGE))


def _key(name: str, file: Path, home: Path) -> str:
    # Where a file outside of the program's folder lies is nobody's business.
    within = file.is_relative_to(home)
    text = file.relative_to(home).as_posix() if within else name
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[-150:]


def _digest(file: Path) -> str | None:
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None


def _commit(main: Path) -> str | None:
    return next((found for folder in main.parents if (found := commit(folder))), None)
