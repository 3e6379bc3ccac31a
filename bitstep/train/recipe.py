"""A recipe: one whole training run, as values that are checked once and never change.

A recipe is a TOML file of this package or of the user. `load` reads it, `--set section.key=value`
replaces single values, and every problem is one RecipeError. What is written here decides bits;
how many processes do the work is not here, because it does not. Imports no torch.

>>> recipe = load("nano", ["optimizer.lr=0.01"])
>>> recipe.optimizer.lr, recipe.layout.logical_ranks
(0.01, 8)
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bitstep.data.corpus import VOCABULARY
from bitstep.errors import RecipeError
from bitstep.train.model.config import ModelConfig
from bitstep.train.schedule import ScheduleConfig, check_schedule

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]

RECIPE_BYTES = 1 << 20
"""A recipe file larger than this is refused unread."""


class Section(BaseModel):
    """A table of the recipe: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LayoutConfig(Section):
    """The logical layout. Bits depend on it; on the physical layout they do not."""

    fan_ins: tuple[int, ...] = Field(strict=False)
    """Fan-ins of the reduction tree, leaves first; an empty list is one leaf. Their product is the
    number of logical ranks."""
    threads: int = Field(ge=1, le=1024)
    """Threads per process. CPU reductions depend on it, so it belongs to the contract."""

    @property
    def logical_ranks(self) -> int:
        """V: microbatches in a step, each with its own data and random draws."""
        return math.prod(self.fan_ins)


class DataConfig(Section):
    """What is read, and how much of it makes a microbatch."""

    folder: str = ""
    """Folder of text or source files; empty for the Python standard library's own source."""
    indexed: str = ""
    """Prefix of an indexed dataset, as `bitstep data build` writes it, in place of the folder."""
    sequence: int = Field(ge=2)
    """Tokens in a sequence."""
    sequences: int = Field(ge=1)
    """Sequences in the microbatch of one logical rank."""
    held_out: float = Field(ge=0, lt=1)
    """Share of the documents that is kept for evaluation."""


class OptimizerConfig(Section):
    """Settings of AdamW, and of the clipping before it."""

    lr: float = Field(3e-4, gt=0.0, allow_inf_nan=False)
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), strict=False)
    """Decay per update of the moments: of exp_avg, of exp_avg_sq."""
    eps: float = Field(1e-8, gt=0.0, allow_inf_nan=False)
    """Added to the root of exp_avg_sq."""
    weight_decay: float = Field(0.1, ge=0.0, allow_inf_nan=False)
    """Decoupled: masters shrink by lr * weight_decay per update."""
    clip: float = Field(1.0, gt=0.0)
    """Largest gradient norm; inf clips nothing."""


class RunConfig(Section):
    """Length and precision, and what is done beside training. Only the first four decide bits."""

    steps: int = Field(ge=1, le=1 << 40)
    """Optimizer updates in the whole run; the learning rate decays over them."""
    seed: int = Field(ge=0)
    """From which every draw is keyed: parameters, data order, dropout."""
    precision: Literal["float32", "bfloat16", "mxfp8", "nvfp4"]
    """Of the computation. Masters, moments and reductions are float32 in all; mxfp8 and nvfp4 need
    torchao, see docs/precision.md."""
    recompute: bool = False
    """Whether blocks are computed again in backward instead of kept."""
    save_every: int = Field(default=0, ge=0)
    """Steps between checkpoints; 0 for none."""
    keep_last: int = Field(default=2, ge=1)
    """Checkpoints that stay, the newest ones."""
    keep_every: int = Field(default=0, ge=0)
    """Every checkpoint whose step this divides stays as well; 0 for none."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 for none."""
    eval_sequences: int = Field(default=8, ge=1)
    """Held-out sequences in one evaluation."""


class Recipe(Section):
    """One whole run."""

    model: ModelConfig
    layout: LayoutConfig
    data: DataConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    run: RunConfig

    @property
    def lookahead(self) -> int:
        """Tokens after a sequence that its targets need: one, and one per prediction depth."""
        return 1 + self.model.mtp_depth

    @property
    def sequences_per_step(self) -> int:
        """Sequences in one optimizer update, over all logical ranks."""
        return self.layout.logical_ranks * self.data.sequences

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer update, over all logical ranks."""
        return self.sequences_per_step * self.data.sequence


def names() -> list[str]:
    """The recipes in the package."""
    folder = resources.files("bitstep.recipes")
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def load(recipe: str, changes: Sequence[str] = ()) -> Recipe:
    """The recipe of that name in the package, or in that TOML file, with "section.key=value" set.

    Raises RecipeError for an unknown recipe, key (with the nearest known one) or value.
    """
    return parse(_read(recipe), changes, source=recipe)


def parse(table: dict[str, Any], changes: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """Check a table, as TOML gives it, after the changes."""
    for change in changes:
        _apply(table, change)
    try:
        recipe = Recipe.model_validate(table)
    except ValidationError as problem:
        raise RecipeError(f"{source}: {_first_problem(problem)}") from None
    check_schedule(recipe.schedule, recipe.run.steps)
    if recipe.data.indexed and recipe.data.folder:
        raise RecipeError(
            f"{source}: data.folder = {recipe.data.folder!r} and data.indexed = "
            f"{recipe.data.indexed!r}: leave one of them empty"
        )
    if not recipe.data.indexed and recipe.model.vocabulary < VOCABULARY:
        raise RecipeError(
            f"{source}: model.vocabulary = {recipe.model.vocabulary}: bytes and the separator of "
            f"documents are {VOCABULARY} tokens; set at least that"
        )
    return recipe


def flatten(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe as dotted keys, for the manifest."""
    return dict(_walk(recipe.model_dump(mode="json"), ""))


def _walk(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _walk(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read(recipe: str) -> dict[str, Any]:
    if recipe in names():
        return tomllib.loads((resources.files("bitstep.recipes") / f"{recipe}.toml").read_text())
    path = Path(recipe)
    if path.suffix != ".toml" or not path.is_file():
        known = ", ".join(names())
        raise RecipeError(f"no recipe {recipe!r}: name one of {known}, or a .toml file")
    if path.stat().st_size > RECIPE_BYTES:
        raise RecipeError(f"{recipe}: larger than {RECIPE_BYTES} bytes; that is not a recipe")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise RecipeError(f"{recipe}: not TOML: {problem}; correct that line") from None


def _apply(table: dict[str, Any], change: str) -> None:
    dotted, equals, text = change.partition("=")
    section, dot, name = dotted.partition(".")
    if not equals or not dot:
        raise RecipeError(f"--set {change!r}: write section.key=value, as in optimizer.lr=0.001")
    if dotted not in _known_keys():
        raise RecipeError(f"unknown recipe key {dotted!r}{_nearest(dotted)}")
    values = table.setdefault(section, {})
    if not isinstance(values, dict):
        raise RecipeError(f"recipe key {section!r} = {values!r}: write it as a table, [{section}]")
    values[name] = _value(text)


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text  # a bare word: --set run.precision=bfloat16
    # A line break in the text could smuggle in a second key.
    return parsed["value"] if len(parsed) == 1 else text


def _known_keys() -> list[str]:
    return [
        f"{section}.{name}"
        for section, field in Recipe.model_fields.items()
        for name in getattr(field.annotation, "model_fields", {})
    ]


def _nearest(dotted: str) -> str:
    # The right name in the wrong section is nearer than a like name in the right one.
    known = _known_keys()
    by_name = {name.partition(".")[2]: name for name in known}
    last = dotted.rpartition(".")[2]
    close = (
        difflib.get_close_matches(last, by_name, n=1, cutoff=1.0)
        or difflib.get_close_matches(dotted, known, n=1)
        or difflib.get_close_matches(last, by_name, n=1)
    )
    if not close:
        return "; the recipes of the package name every key"
    return f"; did you mean {by_name.get(close[0], close[0])!r}?"


def _first_problem(problem: ValidationError) -> str:
    first = problem.errors()[0]
    dotted = ".".join(str(word) for word in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown recipe key {dotted!r}{_nearest(dotted)}"
    if first["type"] == "missing":
        return f"recipe key {dotted!r} is missing; set it"
    message = first["msg"].removeprefix("Value error, ")
    value = repr(first["input"]) if first["type"] != "value_error" or first["loc"][1:] else ""
    return f"{dotted} = {value}: {message}" if value else f"{dotted}: {message}"
