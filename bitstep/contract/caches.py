"""What timing chose earlier and a compiler may take from its cache: identity of the caches.

1. Inductor keeps a choice in `*.best_config`, Triton in `*.autotune.json`; all else in their caches
   is found by a key over what decides it, save where autotuning made a choice part of it.
2. Of the choices a digest is kept, of compiled graphs one of their names; of the place one of its
   path. At most ENTRIES names and BYTES are looked at, and the text says when there are more.

>>> caches({"TORCHINDUCTOR_CACHE_DIR": "/nowhere"}, ["torch._inductor.config"])["inductor"]
{'place': 'sha256:2b3f0ae2fcc4e9c2', 'choices': 'none', 'graphs': 'none'}
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import tempfile
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bitstep.contract.versions import digest_of

ENTRIES: Final = 4000
BYTES: Final = 1 << 20


def caches(environment: Mapping[str, str], modules: Container[str]) -> dict[str, Any]:
    """Nested table for the manifest, of the compilers that this process has imported."""
    table = {}
    if "torch._inductor.config" in modules:
        place = _inductor(environment)
        graphs = _listed(place / "fxgraph", "")
        table["inductor"] = _cache(place, ".best_config") | {"graphs": _digest(graphs, False)}
    if "triton" in modules:
        home = environment.get("TRITON_HOME", os.path.expanduser("~"))
        place = Path(environment.get("TRITON_CACHE_DIR") or Path(home) / ".triton" / "cache")
        table["triton"] = _cache(place, ".autotune.json")
    return table


def _inductor(environment: Mapping[str, str]) -> Path:
    # As torch._inductor.runtime.cache_dir_utils has it, which must not be imported for this.
    if said := environment.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(said)
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (OSError, KeyError):  # no such user, as in some containers
        user = ""
    return Path(tempfile.gettempdir()) / f"torchinductor_{user}"


def _cache(place: Path, suffix: str) -> dict[str, Any]:
    return {"place": digest_of(str(place)), "choices": _digest(_listed(place, suffix), True)}


def _listed(place: Path, suffix: str) -> list[Path]:
    """The entries with that suffix in the folders of a place, in order of their names."""
    found, left = [], ENTRIES
    for folder in _entries(place):
        for path in _entries(folder):
            left -= 1
            if path.name.endswith(suffix):
                found.append(path)
            if left <= 0:
                return sorted(found)
    return sorted(found)


def _entries(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError:
        return
    yield from (folder / name for name in names)


def _digest(paths: list[Path], with_content: bool) -> str:
    if not paths:
        return "none"
    digest, left = hashlib.sha256(), BYTES
    for path in paths:
        content = b""
        if with_content and left > 0:
            try:
                with open(path, "rb") as file:
                    content = file.read(left)
            except OSError:
                content = b"?"
        left -= len(content)
        digest.update(f"{path.parent.name}/{path.name}/{len(content)}\0".encode() + content)
    more = ", not all of them read" if left <= 0 or len(paths) >= ENTRIES else ""
    return f"{len(paths)} files sha256:{digest.hexdigest()[:16]}{more}"
