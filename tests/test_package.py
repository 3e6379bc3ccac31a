"""The package as a whole: what imports without torch, and what documents say about it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bitstep

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

NO_TORCH = [
    "bitstep",
    "bitstep.checkpoint",
    "bitstep.cli",
    "bitstep.contract.manifest",
    "bitstep.data.build",
    "bitstep.data.indexed_corpus",
    "bitstep.data.packing",
    "bitstep.diff",
    "bitstep.errors",
    "bitstep.faults",
    "bitstep.fingerprint",
    "bitstep.launch.arm",
    "bitstep.launch.pretrain",
    "bitstep.launch.torchrun",
    "bitstep.records",
    "bitstep.report.difference",
    "bitstep.report.terminal",
    "bitstep.trace",
    # The launcher reads both before it may import torch: the environment comes first.
    "bitstep.train.layout",
    "bitstep.train.recipe",
]

WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numba", "safetensors", "tokenizers", "xxhash"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""

LOADED = """
import sys
from bitstep.cli import run
assert run(["--help"]) == 0
heavy = {"torch", "numpy", "pyarrow", "pydantic", "rich", "numba", "asyncio"}
print("loaded:", sorted(heavy & set(sys.modules)))
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


@pytest.mark.parametrize("module", NO_TORCH)
def test_it_imports_where_torch_is_not_installed(module):
    done = python(f"{WITHOUT_TORCH}\nimport {module}")
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_test_above_can_fail():
    done = python(f"{WITHOUT_TORCH}\nimport bitstep.state.processes")
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr


def test_a_verb_that_trains_says_what_to_install():
    done = python(
        f"{WITHOUT_TORCH}\nfrom bitstep.cli import run\nsys.exit(run(['pretrain', 'nano']))"
    )
    assert done.returncode == 2
    assert done.stderr == "bitstep: torch is not installed: pip install 'bitstep[torch]'\n"


def test_help_loads_nothing_heavy():
    # It takes about 0.1 s for this reason; a limit in seconds would fail on a busy machine.
    assert python(LOADED).stdout.splitlines()[-1] == "loaded: []"


def test_public_names_are_sorted_complete_and_there():
    assert bitstep.__all__ == sorted(bitstep.__all__)
    assert set(bitstep._ROOMS) | {"__version__"} == set(bitstep.__all__) == set(dir(bitstep))
    for name in bitstep.__all__:
        assert getattr(bitstep, name) is not None
    with pytest.raises(AttributeError, match="module 'bitstep' has no attribute 'nothing'"):
        getattr(bitstep, "nothing")  # noqa: B009  # as a plain attribute it is no expression


def test_public_names_are_those_of_their_rooms():
    for name, room in bitstep._ROOMS.items():
        assert getattr(bitstep, name) is getattr(importlib.import_module(f"bitstep.{room}"), name)


def test_the_map_in_the_readme_is_the_tree():
    listed = re.findall(r"^  ([\w./]+)  +\S", _section("README.md", "## Rooms"), re.MULTILINE)
    there = [
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "bitstep").iterdir()
        if not path.name.startswith("__") and path.name != "py.typed"
    ]
    assert sorted(listed) == sorted(there)


def test_the_map_is_in_the_order_of_the_import_contract():
    listed = re.findall(r"^  ([\w]+)", _section("README.md", "## Rooms"), re.MULTILINE)
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [line.split(" : ") for line in tool["contracts"][0]["layers"]]
    height = {room: -number for number, line in enumerate(layers) for room in line}
    heights = [height[room] for room in listed if room in height]
    assert heights == sorted(heights)
    assert set(height) - {"__main__"} <= set(listed)


@pytest.mark.parametrize("page", ["README.md", "docs/dependencies.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize(
    ("heading", "wanted"),
    [
        ("## Always", PROJECT["dependencies"]),
        ("## To train", PROJECT["optional-dependencies"]["torch"]),
        ("## To train in MXFP8", PROJECT["optional-dependencies"]["quantized"]),
        ("## To build datasets", PROJECT["optional-dependencies"]["data"]),
        ("## To measure", PROJECT["optional-dependencies"]["bench"]),
        ("## To develop", PROJECT["optional-dependencies"]["dev"]),
    ],
)
def test_every_dependency_has_its_reason(heading, wanted):
    rows = re.findall(r"^\| (\w[\w-]*) \| \S", _section("docs/dependencies.md", heading), re.M)
    names = {re.match(r"[\w-]+", word).group() for word in wanted} - {"bitstep"}
    assert set(rows) - {"package"} == names


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0].rstrip(",") == bitstep.__version__


def test_constraints_pin_every_dependency():
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(name for extra in extras.values() for name in extra)]
    names = {re.match(r"[\w-]+", word).group().lower() for word in wanted} - {"bitstep"}
    assert names <= {name.lower().replace("_", "-") for name in pinned}


def _section(page: str, heading: str) -> str:
    text = (ROOT / page).read_text()
    start = text.index(heading)
    end = text.find("\n## ", start + 1)
    return text[start : end if end > 0 else None]
