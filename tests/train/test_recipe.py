"""Recipes: read once, checked once, and every problem is one line that says what to do."""

import subprocess
import sys

import pytest

from bitstep.errors import RecipeError
from bitstep.train.recipe import flatten, load, names


def problem(recipe="nano", *changes):
    with pytest.raises(RecipeError) as caught:
        load(recipe, list(changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_package_has_two_recipes():
    assert names() == ["nano", "small"]


def test_nano_has_every_kind_of_block_and_eight_logical_ranks():
    nano = load("nano")
    assert set(nano.model.pattern) == set("M*E-")
    assert nano.layout.logical_ranks == 8
    assert nano.model.mtp_depth == 1
    assert nano.lookahead == 2


def test_small_has_every_kind_of_block_and_at_least_1024_tokens_a_step():
    small = load("small")
    assert set(small.model.pattern) == set("M*E-")
    assert small.tokens_per_step >= 1024


def test_a_change_replaces_one_value():
    assert load("nano", ["optimizer.lr=0.5"]).optimizer.lr == 0.5
    assert load("nano", ["run.precision=bfloat16"]).run.precision == "bfloat16"
    assert load("nano", ["layout.fan_ins=[2, 4]"]).layout.fan_ins == (2, 4)
    assert load("nano", ["run.seed=1", "run.seed=2"]).run.seed == 2


def test_an_unknown_key_is_refused_with_the_nearest_known_one():
    assert problem("nano", "optimiser.lr=1") == (
        "unknown recipe key 'optimiser.lr'; did you mean 'optimizer.lr'?"
    )
    assert "did you mean 'run.precision'?" in problem("nano", "run.precison=float32")
    assert "did you mean 'optimizer.lr'?" in problem("nano", "model.lr=1")


def test_a_change_without_section_or_value_is_refused():
    assert "write section.key=value" in problem("nano", "lr=1")
    assert "write section.key=value" in problem("nano", "optimizer.lr")


def test_a_wrong_value_is_named_with_its_key():
    assert problem("nano", "optimizer.lr=-1").startswith("nano: optimizer.lr = -1: ")
    assert "run.precision = 'float16'" in problem("nano", "run.precision=float16")
    assert "run.steps = '7'" in problem("nano", "run.steps='7'")
    assert "model.pattern" in problem("nano", "model.pattern='MX'")


def test_a_value_is_never_read_as_another_kind():
    assert "model.mtp_depth = True" in problem("nano", "model.mtp_depth=true")
    assert "model.hidden = '64'" in problem("nano", 'model.hidden="64"')
    assert "optimizer.lr" in problem("nano", "optimizer.lr=0.5\nrun.seed=1")


def test_sizes_that_no_machine_has_are_refused():
    assert "layout.threads = 1000000" in problem("nano", "layout.threads=1000000")
    assert "run.steps" in problem("nano", "run.steps=1000000000000000000000")
    assert "model.vocabulary = 256: bytes and the separator" in problem(
        "nano", "model.vocabulary=256"
    )


def test_nesting_without_end_is_refused(tmp_path):
    deep = "[" * 100_000
    assert "layout.fan_ins" in problem("nano", f"layout.fan_ins={deep}")
    path = tmp_path / "deep.toml"
    path.write_text(f"a = {deep}")
    assert "not TOML" in problem(str(path))


def test_a_section_that_is_no_table_is_refused(tmp_path):
    path = tmp_path / "flat.toml"
    path.write_text("model = 3\n")
    assert problem(str(path), "model.hidden=3") == (
        "recipe key 'model' = 3: write it as a table, [model]"
    )


def test_one_logical_rank_is_an_empty_list_of_fan_ins():
    assert load("nano", ["layout.fan_ins=[]"]).layout.logical_ranks == 1


def test_a_schedule_that_does_not_fit_is_refused():
    assert "does not fit" in problem("nano", "run.steps=2")


def test_an_unknown_recipe_is_refused_with_the_known_ones():
    assert problem("giga") == "no recipe 'giga': name one of nano, small, or a .toml file"


def test_a_file_of_the_user_is_a_recipe_too(tmp_path):
    text = (load_text("nano")).replace("seed = 7", "seed = 11")
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load(str(path)).run.seed == 11


def test_a_file_that_is_not_toml_or_too_large_is_refused(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("[model\n")
    assert "not TOML" in problem(str(path))
    path.write_bytes(b"\xff\xfe")
    assert "not TOML" in problem(str(path))
    path.write_text("#" * (1 << 20) + "\n")
    assert "larger than" in problem(str(path))


def test_a_missing_and_an_unknown_key_of_a_file_are_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(load_text("nano").replace("seed = 7\n", ""))
    assert "recipe key 'run.seed' is missing" in problem(str(path))
    path.write_text(load_text("nano") + "sed = 7\n")
    assert "unknown recipe key 'run.sed'; did you mean 'run.seed'?" in problem(str(path))


def test_the_resolved_recipe_has_every_default_in_it():
    flat = flatten(load("nano"))
    assert flat["layout.fan_ins"] == [2, 2, 2]
    assert flat["model.bias_rate"] == 1e-3
    assert all("." in name for name in flat)


def test_reading_a_recipe_loads_no_torch():
    code = "import sys, bitstep.train.resolve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def load_text(name):
    from importlib import resources

    return (resources.files("bitstep.recipes") / f"{name}.toml").read_text()
