"""Which distributions this process has imported, and of which version: fast, from `sys.modules`.

1. The folders of `sys.path` are listed once; a `NAME-VERSION.dist-info` says both.
2. A package is looked up by its own name: `torch` is of torch, `megatron.core` of megatron-core.
3. Only for names that are left (`yaml` is of PyYAML) the files that list modules are read.

`importlib.metadata.packages_distributions` does the same by reading every file list there is, which
takes seconds.

>>> distributions(sys.modules, sys.path)["numpy"]  # doctest: +SKIP
'2.4.1'
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

RECORD_BYTES: Final = 16 << 10
"""What is read of a file list: its first lines name the top folders."""
MOST: Final = 1000
_INFO: Final = re.compile(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", re.ASCII)
_BARE: Final = re.compile(r"(.+)\.egg-info")
_VERSION: Final = re.compile(r"^Version:\s*([^\s]{1,60})", re.MULTILINE)


def distributions(modules: Mapping[str, Any], path: Iterable[str]) -> dict[str, str]:
    """Normal name of each distribution that was imported, to its version.

    Args:
        modules: `sys.modules`.
        path: `sys.path`.
    """
    found: dict[str, str] = {}
    places = _places(modules)
    for folder in dict.fromkeys(map(os.path.abspath, path)):
        infos = _infos(folder)
        if not infos:
            continue
        left: list[str] = []
        for name, where in places.items():
            if not _is_of(name, where, folder, infos):
                continue
            if (normal := _normal(name)) in infos:
                found.setdefault(normal, _version(infos[normal]))
            else:
                left.append(name)
        for owner in _by_lists(left, infos, first=list(found)):
            found.setdefault(owner, _version(infos[owner]))
    return dict(sorted(found.items())[:MOST])


def _places(modules: Mapping[str, Any]) -> dict[str, list[str]]:
    """Top package, or second in a namespace, to the folders that it lies in."""
    places: dict[str, list[str]] = {}
    standard = sys.stdlib_module_names
    for name, module in list(modules.items()):
        top, _, rest = name.partition(".")
        if top in standard or (rest and (top not in places or places[top])):
            continue  # the parts of a package are where it is
        named = top if not rest else f"{top}.{rest.partition('.')[0]}"
        if named in places:
            continue
        # A module may be an object of any kind, whose attributes do as they like.
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        places[named] = [os.path.dirname(file)] if isinstance(file, str) else []
    return places


def _infos(folder: str) -> dict[str, str]:
    """Normal name of each distribution installed in a folder, to what says so."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    ends = (".dist-info", ".egg-info")
    found = {}
    for name in names:
        if name.endswith(ends) and (match := _INFO.fullmatch(name) or _BARE.fullmatch(name)):
            found[_normal(match[1])] = os.path.join(folder, name)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_of(name: str, places: list[str], folder: str, infos: Mapping[str, str]) -> bool:
    """Whether a package may belong to what is installed in the folder."""
    if any(_in(place, folder) for place in places):
        return True
    # Installed to be edited: the code lies elsewhere, and a file says so.
    info = infos.get(_normal(name), "")
    return bool(places and info) and (
        info.endswith(".egg-info") or os.path.exists(os.path.join(info, "direct_url.json"))
    )


def _in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder + os.sep)


def _by_lists(
    names: Iterable[str], infos: Mapping[str, str], first: Iterable[str]
) -> Iterator[str]:
    """The distributions whose file lists have these packages; `first` are looked at first."""
    # A package with a private name comes with another that has none.
    wanted = {name.replace(".", "/") for name in names if not name.startswith("_")}
    for owner in dict.fromkeys([*(name for name in first if name in infos), *infos]):
        if not wanted:
            return
        if has := wanted & _tops(infos[owner]):
            wanted -= has
            yield owner


def _tops(info: str) -> set[str]:
    """The top packages and modules of a distribution, and the second of each."""
    if listed := _head(os.path.join(info, "top_level.txt")).split():
        return set(listed)
    tops = set()
    for line in _head(os.path.join(info, "RECORD")).splitlines():
        top, _, rest = line.split(",")[0].partition("/")
        tops |= {top.partition(".")[0], f"{top}/{rest.partition('/')[0]}"}
    return tops


def _head(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(RECORD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _version(info: str) -> str:
    match = _INFO.fullmatch(os.path.basename(info))
    if match:
        return match[2]
    file = Path(info) / "PKG-INFO" if os.path.isdir(info) else Path(info)
    found = _VERSION.search(_head(str(file)))
    return found[1] if found else "unknown"
