"""Benchmarks as data, and every measure on hand-made logits whose value can be checked in the head."""

from __future__ import annotations

import pytest

from hf_robust import labels
from hf_robust.benchmarks import Benchmark, benchmark, benchmarks
from hf_robust.builders import NAMES, RECIPES
from hf_robust.schema import GROUP_COLUMNS, IMAGENET_1K

EVERY = list(benchmarks().values())
each = pytest.mark.parametrize("one", EVERY, ids=[b.name for b in EVERY])


# --- the registry


def test_the_five_benchmarks_are_there() -> None:
    names = ["imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d", "imagenet-val"]
    assert [b.name for b in EVERY][:5] == names


@each
def test_the_headline_is_a_measure_and_the_gate_the_accuracy_of_clean_pictures(one: Benchmark) -> None:
    names = [measure.__name__ for measure in one.measures]
    assert one.headline in names
    assert one.gate.__name__.removesuffix("_1000") in names
    assert "accuracy" in one.gate.__name__


@each
def test_every_measure_has_a_name_of_its_own_and_says_what_it_is(one: Benchmark) -> None:
    names = [measure.__name__ for measure in one.measures]
    assert len(set(names)) == len(names)
    assert all((measure.__doc__ or "").strip() for measure in one.measures)
    assert all(one.measure(name) is measure for name, measure in zip(names, one.measures, strict=True))


@each
def test_masks_and_class_filters_are_sorted_imagenet_indices_without_doubles(one: Benchmark) -> None:
    for classes in (one.mask, *(source.classes for source in one.sources)):
        if classes is not None:
            assert list(classes) == sorted(set(classes))
            assert set(classes) <= set(range(1000))


@each
def test_every_source_is_a_data_set_that_can_be_built_with_the_columns_that_scoring_needs(one: Benchmark) -> None:
    for source in one.sources:
        features = RECIPES[source.dataset].features()
        assert source.dataset in NAMES
        assert {IMAGENET_1K, *GROUP_COLUMNS.get(source.dataset, ())} <= set(features)
    if one.split is not None:
        assert one.split.column in GROUP_COLUMNS[one.name]


@each
def test_home_licence_and_citation_are_given(one: Benchmark) -> None:
    assert one.citation.startswith("@")
    assert one.licence.strip()
    assert one.homepage.startswith("https://")
    own = one.name in ("imagenet-val", "imagenet-train")  # never published
    assert one.repo_id == (None if own else f"hf_robust/{one.name}")


@each
def test_controls_are_optional_and_halves_of_a_pair_are_not(one: Benchmark) -> None:
    """Without validation pictures A and D are scored, O and Spurious fail (DESIGN, completeness)."""
    optional = {source.role: source.optional for source in one.sources}
    assert all(is_optional == (role == "control") for role, is_optional in optional.items())


def test_an_unknown_benchmark_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"unknown benchmark 'imagnet-a'; known: .*imagenet-a, imagenet-d"):
        benchmark("imagnet-a")


def test_an_unknown_metric_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="unknown metric 'f1' of imagenet-a; known: top1_accuracy, "):
        benchmark("imagenet-a").measure("f1")


@pytest.mark.parametrize("metric", ["accuracy", "top1_accuracy", "top1_accuracy_1000", "top5_accuracy"])
def test_accuracy_on_imagenet_o_is_refused_with_the_reason(metric: str) -> None:
    """USER_REPORTS 5: O evaluated as classification."""
    with pytest.raises(KeyError, match=f"{metric} is not defined on imagenet-o: its folders name the class that"):
        benchmark("imagenet-o").measure(metric)
    assert metric not in [measure.__name__ for measure in benchmark("imagenet-o").measures]


def test_the_masks_of_a_and_o_are_200_classes_each_and_share_59() -> None:
    a, o = benchmark("imagenet-a").mask, benchmark("imagenet-o").mask
    assert (len(a), len(o), len({*a} & {*o})) == (200, 200, 59)


def test_a_and_o_take_validation_pictures_of_their_own_classes_and_no_others() -> None:
    for name, role in (("imagenet-a", "control"), ("imagenet-o", "inside")):
        source = next(s for s in benchmark(name).sources if s.role == role)
        assert (source.dataset, source.classes) == ("imagenet-val", benchmark(name).mask)


def test_spurious_takes_validation_pictures_of_its_100_classes() -> None:
    source = next(s for s in benchmark("spurious-imagenet").sources if s.role == "validation")
    assert len(source.classes) == 100
    assert source.classes == tuple(c.index for c in labels.spurious_classes())


def test_imagenet_d_has_113_categories_over_125_different_indices() -> None:
    """104 categories of one index and 9 of 2 or 3: 113 + 9 + (categories of three) = 125, no index in two of them."""
    one = benchmark("imagenet-d")
    groups = one.zero_shot.label_groups
    assert (len(groups), sum(len(g) > 1 for g in groups)) == (113, 9)
    assert sum(map(len, groups)) == len({i for g in groups for i in g}) == 125
    control = next(s for s in one.sources if s.role == "control")
    assert set(control.classes) == {i for g in groups for i in g}
    assert control.label_groups == groups


def test_imagenet_d_is_scored_over_all_classes_and_by_nuisance() -> None:
    one = benchmark("imagenet-d")
    assert one.mask is None
    assert (one.split.column, one.split.values) == ("nuisance", ("background", "texture", "material"))


RULES = {
    ("imagenet-a", "test"): ("model", "paper"),
    ("imagenet-a", "control"): ("model", "paper"),
    ("imagenet-o", "outside"): ("model", "paper"),
    ("imagenet-o", "inside"): ("model", "paper"),
    ("spurious-imagenet", "spurious"): ("spurious-image", "spurious-image"),
    ("spurious-imagenet", "validation"): ("model", "spurious-val"),
    ("imagenet-d", "test"): ("model", "model"),
    ("imagenet-d", "control"): ("model", "model"),
    ("imagenet-val", "test"): ("model", "model"),
}


def test_each_source_has_the_rule_of_each_mode() -> None:
    found = {
        (b.name, s.role): (s.rule_for("model").name, s.rule_for("published").name) for b in EVERY[:5] for s in b.sources
    }
    assert found == RULES


def test_the_rules_are_the_published_transforms() -> None:
    rules = {s.rule_for("published").name: s.rule_for("published") for b in EVERY for s in b.sources}
    paper, val, image = rules["paper"], rules["spurious-val"], rules["spurious-image"]
    assert (paper.resize, paper.size, int(paper.ratio * paper.size), paper.interpolation) == (
        "shorter", 224, 256, "bilinear",
    )  # fmt: skip
    assert (paper.mean, paper.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (val.resize, val.size, val.interpolation, val.mean, val.std) == ("shorter", None, "bicubic", None, None)
    assert (image.resize, image.size, image.interpolation, image.mean) == ("exact", None, "bicubic", None)


def test_the_shorter_side_of_the_spurious_rule_is_exact_for_every_input_size() -> None:
    """int(256/224 * s) in floating point against whole numbers."""
    ratio = next(s for s in benchmark("spurious-imagenet").sources if s.role == "validation").published_rule.ratio
    assert [s for s in range(32, 1025) if int(ratio * s) != 256 * s // 224] == []
