"""Recipes: the stages of each benchmark that can be made anew, their configuration, and the way through them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..builders import Built
from ..runner import Meter, World
from .assemble import AssembleSettings, assemble, check_assemble, withdraw
from .balance import BALANCE, BALANCE_O
from .collect import COLLECT
from .duplicates import DUPLICATES
from .filter import FILTER_A, mask_of
from .filter_o import CHOOSE_CLASSES, FILTER_O
from .fingerprint import FINGERPRINT
from .generate import GENERATE
from .ledger import Ledger
from .mine import MINE
from .prompts import PROMPTS
from .recipe_file import claim
from .review import ReviewSettings, check_review, review_stage
from .selection import SelectionEffect, SelectionSettings, before, check_models, selection_effect, selection_lines
from .setting_kinds import is_of, kinds_of
from .spurious_mining import COLLECT_OPENIMAGES, MINE_SPURIOUS
from .stage import Settings, Stage, StageError, Work, changed, run_stage

ASSEMBLE, SELECTION = "assemble", "selection"
NULL = "null"  # a value's text that stands for none, which TOML cannot say


@dataclass(frozen=True)
class Recipe:
    """How one benchmark is made anew; `name` is the published benchmark whose protocol the new set takes.

    filtered_by  the stage whose fixed models the pictures are selected against, where accuracy has a meaning for them.
    """

    name: str
    what: str
    stages: tuple[Stage, ...]
    needs_pool: bool
    filtered_by: str | None = None

    def stage(self, name: str) -> Stage:
        """The stage of that name; StageError lists the known ones."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise StageError(f"unknown stage {name!r} of {self.name}; known: {', '.join(s.name for s in self.stages)}")

    def defaults(self) -> dict[str, Settings]:
        """The settings of every section as they are without a config."""
        known: dict[str, Settings] = {stage.name: stage.settings() for stage in self.stages}
        known |= {SELECTION: SelectionSettings()} if self.filtered_by else {}
        return {**known, ASSEMBLE: AssembleSettings()}


_POOL = (COLLECT, FINGERPRINT, DUPLICATES)
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                "imagenet-d",
                "generate objects in unusual places and materials, keep what surrogate models fail on together",
                (PROMPTS, GENERATE, MINE, review_stage("image-validity")),
                needs_pool=False,
            ),
            Recipe(
                "imagenet-a",
                "pictures of ImageNet classes that fixed models never get right",
                (*_POOL, FILTER_A, BALANCE, review_stage("image-validity")),
                needs_pool=True,
                filtered_by=FILTER_A.name,
            ),
            Recipe(
                "imagenet-o",
                "pictures of classes outside ImageNet-1k that a fixed model takes for one of them",
                (*_POOL, FILTER_O, CHOOSE_CLASSES, BALANCE_O, review_stage("image-validity")),
                needs_pool=True,
            ),
            Recipe(
                "spurious-imagenet",
                "pictures that show a spurious feature of a class without its object",
                (COLLECT_OPENIMAGES, FINGERPRINT, DUPLICATES, MINE_SPURIOUS, review_stage("object-absent")),
                needs_pool=True,
            ),
        )
    }
)


def recipe_of(name: str) -> Recipe:
    """The recipe of that name; KeyError lists the known ones."""
    if name not in RECIPES:
        raise KeyError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name]


def configure(recipe: Recipe, file: Path | None = None, changes: Iterable[str] = ()) -> dict[str, Settings]:
    """The settings of every stage: the defaults, changed by a TOML file (a section a stage), then by STAGE.NAME=VALUE.

    A value on the command line is read as TOML where it is some, else as text; "null" takes a value away. StageError
    names what is unknown or of another kind.
    """
    settings = recipe.defaults()
    sections = {} if file is None else _read(file)
    for name, values in sections.items():
        settings[name] = _changed(recipe, settings, name, values, f"[{name}] of {file}")
    for text in changes:
        place, equals, value = text.partition("=")
        section, dot, name = place.strip().partition(".")
        if not equals or not dot:
            raise StageError(f"expected --set STAGE.NAME=VALUE, got {text!r}")
        kind = kinds_of(settings[section]).get(name) if section in settings else None
        values = {name: _value(value.strip(), kind)}
        settings[section] = _changed(recipe, settings, section, values, f"--set {text}")
    return settings


def _changed(recipe: Recipe, settings: Mapping[str, Settings], name: str, values: Any, where: str) -> Settings:
    if name not in settings:
        raise StageError(f"unknown section {name!r} in {where}; sections of {recipe.name}: {', '.join(settings)}")
    if not isinstance(values, dict):
        raise StageError(f"expected a section of names and values in {where}, got {values!r}")
    values = {key: None if value == NULL else value for key, value in values.items()}
    return changed(settings[name], values, where=where)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StageError(f"expected a TOML file in {file}, got {error}") from error


def _value(text: str, kind: Any) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    is_text = kind is not None and not is_of(value, kind) and is_of(text, kind)
    return text if is_text else value  # a name or a file may be called 2024


def check(recipe: Recipe, settings: Mapping[str, Settings]) -> None:
    """StageError or ValueError where a setting that only counts at the end, after people's work, cannot be meant."""
    for stage in recipe.stages:
        if isinstance(settings[stage.name], ReviewSettings):
            check_review(settings[stage.name])
    asked = settings.get(SELECTION)
    if recipe.filtered_by is not None and asked is not None and asked.held_out:
        check_models(settings[recipe.filtered_by].filters, asked.held_out, sample=asked.sample)
    check_assemble(recipe.name, settings[ASSEMBLE])


def as_toml(recipe: Recipe, settings: Mapping[str, Settings]) -> str:
    """A config with every setting of a recipe, explained by the settings' own words; what has no value is commented."""
    lines = [f"# hf-robust regenerate {recipe.name} --config THIS_FILE", ""]
    for name, section in settings.items():
        words = (type(section).__doc__ or "").strip().splitlines()
        lines += [f"# {line.strip()}".rstrip() for line in words]
        lines.append(f"[{name}]")
        usual = asdict(type(section)())
        for key, value in asdict(section).items():
            unset = value is None and usual[key] is None
            lines.append(f"# {key} =" if unset else f"{key} = {_toml(NULL if value is None else value)}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def run(
    recipe: Recipe,
    settings: Mapping[str, Settings],
    out: Path,
    *,
    world: World,
    meter_of: Callable[[str], Meter],
    candidates: str | None = None,
    until: str | None = None,
    finished: Callable[[Ledger], None] | None = None,
) -> Ledger:
    """The ledger after the last stage, or after the one named `until`; goes on where an earlier run stopped.

    finished  is told the ledger after every stage, so that there is one to look at when a later stage cannot go on.

    Waiting says what people have to do first. StageError where `out` holds another recipe, or a pool is missing; errors
    as `check`.
    """
    check(recipe, settings)
    if recipe.needs_pool and candidates is None:
        raise StageError(
            f"expected --candidates SOURCE for {recipe.name}: a folder, tar or Parquet shards, or a Hub set"
        )
    claim(recipe.name, out)
    last = len(recipe.stages) if until is None else recipe.stages.index(recipe.stage(until)) + 1
    work = Work(out, world, meter_of(recipe.stages[0].name), None, candidates)
    for stage in recipe.stages[:last]:
        work = replace(work, meter=meter_of(stage.name))
        try:
            work = replace(work, rows=run_stage(stage, settings[stage.name], work))
        except StageError:
            if world.rank == 0 and work.rows is not None and not work.rows.kept():
                withdraw(work.rows, out)
            raise
        if finished is not None:
            finished(work.ledger)
    return work.ledger


def finish(
    recipe: Recipe,
    settings: Mapping[str, Settings],
    ledger: Ledger,
    out: Path,
    *,
    world: World,
    meter_of: Callable[[str], Meter],
) -> tuple[Built, SelectionEffect | None]:
    """The data set of what is kept, and the effect of the selection where held-out models were named."""
    work = Work(out, world, meter_of(SELECTION), ledger)
    effect = _selection(recipe, settings, work)
    more = [] if effect is None else selection_lines(effect)
    mask = _mask(recipe, settings, ledger)
    built = assemble(recipe.name, ledger, settings[ASSEMBLE], out, meter=meter_of(ASSEMBLE), mask=mask, more=more)
    return built, effect


def _mask(recipe: Recipe, settings: Mapping[str, Settings], ledger: Ledger) -> tuple[int, ...]:
    """The classes that the filter chose among: with fewer, it could be right on what it was wrong on."""
    if recipe.filtered_by is None:
        return ()
    return tuple(mask_of(settings[recipe.filtered_by].classes, before(ledger, recipe.filtered_by)))


def _selection(recipe: Recipe, settings: Mapping[str, Settings], work: Work) -> SelectionEffect | None:
    asked = settings.get(SELECTION)
    if recipe.filtered_by is None or asked is None or not asked.held_out or not work.ledger.kept():
        return None
    by = settings[recipe.filtered_by]
    return selection_effect(
        work.ledger, work, filters=by.filters, held_out=asked.held_out, since=recipe.filtered_by, classes=by.classes,
        sample=asked.sample, seed=asked.seed,
    )  # fmt: skip
