"""Waiting for a module that the program has not imported yet."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bitstep.observe.imported import when_imported
from bitstep.observe.undo import Undo


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "waited_for.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    return "waited_for"


def test_several_may_wait_for_one_module_and_each_is_told_once(module: str) -> None:
    told: list[tuple[int, int]] = []
    gaps: list[str] = []
    before, undo = list(sys.meta_path), Undo()
    for number in range(3):
        when_imported(module, lambda m, n=number: told.append((n, m.value)), undo, gaps.append)
    assert find_spec(module) is not None  # a question, and no import
    importlib.import_module(module)
    assert sorted(told) == [(0, 3), (1, 3), (2, 3)]
    assert gaps == []
    assert sys.meta_path == before


def test_who_does_not_wait_any_longer_is_not_told(module: str) -> None:
    told: list[object] = []
    first, second = Undo(), Undo()
    when_imported(module, told.append, first, print)
    when_imported(module, lambda m: told.append("second"), second, print)
    first.all()
    importlib.import_module(module)
    assert told == ["second"]
