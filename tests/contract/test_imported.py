"""Which distributions were imported, found fast and as importlib.metadata has them."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bitstep.contract.imported import distributions


def installed(folder: Path, name: str, version: str, **files: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    for file, text in files.items():
        (info / {"top": "top_level.txt", "record": "RECORD", "url": "direct_url.json"}[file]
         ).write_text(text)  # fmt: skip


def module(name: str, file: Path | None) -> ModuleType:
    made = ModuleType(name)
    if file is not None:
        made.__file__ = str(file)
    return made


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    installed(site, "torchlike", "2.0+cpu")
    installed(site, "PyYAML", "6.0", top="yaml\n_yaml\n")
    installed(site, "pillow", "13", record="PIL/Image.py,sha256=x,1\n../../bin/x,,\n")
    installed(site, "megatron_core", "0.16.1", record="megatron/core/__init__.py,,\n")
    installed(site, "protobuf", "5.0", record="google/protobuf/__init__.py,,\n")
    installed(site, "google_auth", "2.0", record="google/auth/__init__.py,,\n")
    installed(site, "unused", "1.0")
    installed(site, "edited", "0.1", url="{}")
    (site / "old-1.5-py3.11.egg-info").mkdir()
    (site / "developed.egg-info").mkdir()
    (site / "developed.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2\nVersion: 3.3\n")
    return site


def test_each_way_to_name_a_package_is_found(site: Path, tmp_path: Path) -> None:
    modules = {
        "torchlike": module("torchlike", site / "torchlike" / "__init__.py"),
        "torchlike.nn": module("torchlike.nn", site / "torchlike" / "nn.py"),
        "yaml": module("yaml", site / "yaml" / "__init__.py"),
        "PIL": module("PIL", site / "PIL" / "__init__.py"),
        "megatron": module("megatron", None),
        "megatron.core": module("megatron.core", site / "megatron" / "core" / "__init__.py"),
        "google": module("google", None),
        "google.protobuf": module("google.protobuf", site / "google/protobuf/__init__.py"),
        "old": module("old", site / "old.py"),
        "edited": module("edited", tmp_path / "work" / "edited" / "__init__.py"),
        "developed": module("developed", tmp_path / "work" / "developed.py"),
    }
    assert distributions(modules, [str(site)]) == {
        "developed": "3.3", "edited": "0.1", "megatron-core": "0.16.1", "old": "1.5",
        "pillow": "13", "protobuf": "5.0", "pyyaml": "6.0", "torchlike": "2.0+cpu",
    }  # fmt: skip


def test_a_file_of_the_program_with_the_name_of_a_distribution_is_not_it(
    site: Path, tmp_path: Path
) -> None:
    modules = {"unused": module("unused", tmp_path / "unused.py")}
    assert distributions(modules, [str(tmp_path), str(site)]) == {}


def test_the_first_on_the_path_that_was_imported_counts(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    installed(other, "torchlike", "3.0")
    modules = {"torchlike": module("torchlike", other / "torchlike.py")}
    assert distributions(modules, [str(site), str(other)]) == {"torchlike": "3.0"}


def test_objects_that_pose_as_modules_are_passed_by(site: Path) -> None:
    class Trap:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    assert distributions({"trap": Trap(), "gone": None}, [str(site), "/nowhere"]) == {}


def test_nothing_is_read_where_every_name_is_found(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitstep.contract.imported._head", lambda path: 1 / 0)
    modules = {"torchlike": module("torchlike", site / "torchlike.py")}
    assert distributions(modules, [str(site)]) == {"torchlike": "2.0+cpu"}


ASKED = """
import json, sys, yaml, numpy, numba, pydantic, PIL
from bitstep.contract.imported import distributions
print(json.dumps([distributions(sys.modules, sys.path), sorted(sys.modules)]))
"""


def test_importlib_agrees() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    found, modules = json.loads(done.stdout)
    owners = importlib.metadata.packages_distributions()
    tops = {name.partition(".")[0] for name in modules if not name.startswith("_")}
    found_owners = {owner for top in tops for owner in owners.get(top, ())}
    wanted = {owner.lower().replace("_", "-").replace(".", "-") for owner in found_owners}
    assert set(found) == wanted
    assert len(found) > 4
    assert all(version == importlib.metadata.version(name) for name, version in found.items())
