"""Label spaces: lengths, order, names, and the adapters of the 21k family."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from hf_robust import labels

WIDTHS_21K = (10450, 11221, 11821, 21841, 21842, 21843)
needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm's class lists are not installed")


def test_imagenet_1k_has_1000_different_wordnet_ids_in_sorted_order() -> None:
    wnids = labels.imagenet_1k().wnids
    assert len(wnids) == len(set(wnids)) == 1000
    assert list(wnids) == sorted(wnids)


def test_no_two_display_names_are_equal_in_any_case() -> None:
    names = labels.imagenet_1k_names()
    assert len(names) == len({name.casefold() for name in names}) == 1000


def test_well_known_indices_meet_their_wordnet_ids() -> None:
    expected = {"n01440764": 0, "n02123045": 281, "n02124075": 285, "n03594945": 609, "n15075141": 999}
    assert {wnid: labels.imagenet_1k_index()[wnid] for wnid in expected} == expected


def test_the_index_is_the_inverse_of_the_list() -> None:
    index = labels.imagenet_1k_index()
    assert [index[wnid] for wnid in labels.imagenet_1k().wnids] == list(range(1000))


def test_imagenet_a_and_o_have_200_classes_each_and_share_59() -> None:
    a, o = labels.imagenet_a_wnids(), labels.imagenet_o_wnids()
    assert len(set(a)) == len(a) == 200
    assert len(set(o)) == len(o) == 200
    assert len(set(a) & set(o)) == 59
    assert set(a) | set(o) <= set(labels.imagenet_1k().wnids)
    assert list(a) == sorted(a)
    assert list(o) == sorted(o)


def test_spurious_imagenet_has_100_classes_whose_index_and_wordnet_id_agree() -> None:
    classes = labels.spurious_classes()
    assert len({c.index for c in classes}) == len(classes) == 100
    assert [c.wnid for c in classes] == [labels.imagenet_1k().wnids[c.index] for c in classes]
    assert all(c.feature for c in classes)


def test_imagenet_d_has_113_categories_of_which_9_have_several_indices() -> None:
    categories = labels.imagenet_d_categories()
    assert len({c.folder for c in categories}) == len(categories) == 113
    assert sum(len(c.indices) > 1 for c in categories) == 9
    assert all(0 <= i < 1000 for c in categories for i in c.indices)


def test_no_imagenet_1k_class_belongs_to_two_categories_of_imagenet_d() -> None:
    indices = [i for c in labels.imagenet_d_categories() for i in c.indices]
    assert len(indices) == len(set(indices))


def test_indices_of_keeps_the_order_given() -> None:
    assert labels.indices_of(("n15075141", "n01440764")) == (999, 0)


def test_indices_of_names_the_class_that_is_not_one_of_the_1000() -> None:
    with pytest.raises(KeyError, match="'n00000001' is not one of the 1,000 ImageNet classes"):
        labels.indices_of(("n01440764", "n00000001"))


def test_a_head_of_1000_is_imagenet_1k_itself() -> None:
    space = labels.label_space(1000)
    assert space is labels.imagenet_1k()
    np.testing.assert_array_equal(space.imagenet_1k_columns(), np.arange(1000))


def test_a_head_of_1001_has_the_background_class_first() -> None:
    space = labels.label_space(1001)
    assert space.wnids[0] == labels.BACKGROUND
    np.testing.assert_array_equal(space.imagenet_1k_columns(), np.arange(1000) + 1)
    assert space.missing_imagenet_1k() == ()


@pytest.mark.parametrize("width", [1, 200, 999, 1002, 21840, 21844])
def test_an_unknown_width_is_never_guessed(width: int) -> None:
    with pytest.raises(ValueError, match=rf"expected a model with one of 1,000, 1,001, .* outputs, got {width:,}"):
        labels.label_space(width)


@needs_timm
@pytest.mark.parametrize("width", WIDTHS_21K)
def test_a_21k_list_has_exactly_the_width_it_is_chosen_by(width: int) -> None:
    space = labels.label_space(width)
    assert len(space) == width
    assert len(set(space.wnids)) == width


@needs_timm
@pytest.mark.parametrize("width", WIDTHS_21K)
def test_every_mapped_column_of_a_21k_list_carries_the_classs_own_wordnet_id(width: int) -> None:
    space = labels.label_space(width)
    for index, column in enumerate(space.imagenet_1k_columns()):
        if column >= 0:
            assert space.wnids[column] == labels.imagenet_1k().wnids[index]
        else:
            assert labels.imagenet_1k().wnids[index] not in space.wnids


@needs_timm
@pytest.mark.parametrize("width", [21841, 21843])
def test_only_class_850_is_missing_from_the_21841_and_21843_lists(width: int) -> None:
    assert labels.imagenet_1k().wnids[850] == "n04399382"
    assert labels.label_space(width).missing_imagenet_1k() == (850,)


def test_without_timm_a_21k_head_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "find_spec", lambda name: None)
    labels.label_space.cache_clear()
    with pytest.raises(ImportError, match=r'pip install "hf-robust\[run\]"'):
        labels.label_space(21841)
    labels.label_space.cache_clear()
