"""The tax bench: its arithmetic, and that what it replaces is really replaced. No times."""

import numpy as np
import pytest
from engine_fakes import tiny_engine, write_corpus

from bitstep.bench import stock
from bitstep.bench.tax import COMPARISONS, TAX, _row, interval
from bitstep.bench.tax_arm import Order
from bitstep.errors import LayoutError, RecipeError
from bitstep.train import leaf, step
from bitstep.train.model import experts, router

REPLACED = {
    step: ("exact_norm", "whole_fingerprints", "state_roots", "_randoms", "run_leaf",
           "take_gradients", "Counter"),
    leaf: ("fingerprint",),
    router: ("top_k",),
    experts: ("take_rows",),
}  # fmt: skip


@pytest.fixture
def own_way(monkeypatch):
    """Gives the engine its own parts back afterwards."""
    for module, names in REPLACED.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def test_every_comparison_is_made_of_parts_that_can_be_replaced():
    assert {part for parts in COMPARISONS.values() for part in parts} == set(stock.NAMES)
    assert COMPARISONS["all included"] == TAX == ("reduction", "algorithms", "fingerprints")


def test_the_row_of_equal_arms_has_ratio_one():
    row = _row("all included", 1, [(0.2, 0.2), (0.3, 0.3), (0.1, 0.1)])
    assert (row.ratio, row.low, row.high, row.pairs) == (1.0, 1.0, 1.0, 3)
    assert (row.ours_ms, row.other_ms) == (200.0, 200.0)


def test_the_ratio_is_the_median_over_pairs_and_not_of_the_medians():
    row = _row("all included", 1, [(1.0, 1.0), (2.0, 1.0), (6.0, 2.0)])
    assert row.ratio == 2.0


def test_the_interval_covers_the_median_and_is_the_same_each_time():
    ratios = np.array([1.0, 1.01, 1.02, 1.03, 1.3])
    low, high = interval(ratios)
    assert low <= 1.02 <= high
    assert interval(ratios) == (low, high)
    assert low >= 1.0
    assert high <= 1.3


def test_an_order_survives_the_command_line():
    order = Order("nano", ("run.seed=1",), ("norm",), 1, 2, "out.json")
    assert '"stock": ["norm"]' in order.to_word()


def test_a_part_that_the_engine_no_longer_has_cannot_be_replaced_in_silence():
    with pytest.raises(AssertionError, match="has no exact_normal to replace"):
        stock._put(step, "exact_normal", None)


@pytest.mark.parametrize("part", [*stock.BEFORE_BUILD, *stock.AFTER_BUILD])
def test_a_step_with_a_stock_part_trains_and_has_other_records_or_bits(own_way, folder, part):
    expected = step.train_step(tiny_engine(folder))
    if part in stock.BEFORE_BUILD:
        stock.BEFORE_BUILD[part]()
    engine = tiny_engine(folder)
    if part in stock.AFTER_BUILD:
        stock.AFTER_BUILD[part](engine)
    found = step.train_step(engine)
    assert found.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-5)
    assert found.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-4)
    # On one thread the default algorithms and the stock dispatch have the same bits here.
    if part not in ("algorithms", "dispatch"):
        assert found != expected


def test_a_recipe_or_layout_that_cannot_be_is_refused_before_anything_runs():
    from bitstep.bench.tax import bench_tax

    with pytest.raises(RecipeError):
        bench_tax("giga")
    with pytest.raises(LayoutError, match="3 processes"):
        bench_tax("small", processes=(3,))
