"""Every measure on hand-made logits whose value can be checked in the head."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest

from hf_robust import labels
from hf_robust.benchmarks import benchmark
from hf_robust.benchmarks import measures as m
from hf_robust.benchmarks.views import Classification, Detection, Scored, SpuriousPairs
from hf_robust.schema import Outputs


def outputs(logits, right=None, *, normaliser=None, ids=None, **groups) -> Outputs:
    """Outputs of one label a row (None: no class), the softmax over these columns unless a normaliser is given."""
    logits = np.asarray(logits, np.float32)
    rows = [[-1]] * len(logits) if right is None else [r if isinstance(r, list) else [r] for r in right]
    width = max([1, *map(len, rows)])
    table = np.array([row + [-1] * (width - len(row)) for row in rows], np.int64).reshape(-1, width)
    over_all = np.log(np.exp(logits.astype(np.float64)).sum(axis=1)) if normaliser is None else np.array(normaliser)
    names = tuple(ids or (f"row{i}" for i in range(len(logits))))
    return Outputs(names, logits, over_all, table, {k: np.array(v) for k, v in groups.items()})


def classification(logits, right, mask=None, control=None) -> Classification:
    roles = {"test": outputs(logits, right)} | ({"control": control} if control is not None else {})
    return Classification.of(roles, mask)


# --- classification


def test_the_mask_is_applied_before_argmax() -> None:
    """USER_REPORTS 2: class 2 wins over all classes, class 0 among the protocol's two."""
    view = classification([[3.0, 1.0, 5.0, 0.0]], [0], mask=(0, 1))
    assert (m.top1_accuracy(view).value, m.top1_accuracy_1000(view).value) == (1 / 1, 0 / 1)


def test_the_mask_is_applied_before_softmax() -> None:
    view = classification([[2.0, 1.0, 5.0, 0.0]], [0], mask=(0, 1))
    among_two = exp(2) / (exp(2) + exp(1))
    among_all = exp(5) / (exp(2) + exp(1) + exp(5) + exp(0))
    assert view.test.confidence == pytest.approx([among_two], abs=1e-12)
    assert view.everything.confidence == pytest.approx([among_all], abs=1e-12)
    assert m.rms_calibration_error(view).value == pytest.approx(1 - among_two)  # right with confidence among_two


def test_a_mask_out_of_order_still_meets_its_own_labels() -> None:
    """USER_REPORTS 3, 38: columns are joined, never assumed to stand in sorted order."""
    view = classification([[0.0, 9.0, 1.0, 2.0]], [3], mask=(3, 0, 2))
    assert view.test.labels.tolist() == [[0]]
    assert m.top1_accuracy(view).value == 1.0  # 2.0 at class 3 beats 0.0 and 1.0


def test_a_label_outside_the_mask_is_named_with_its_id() -> None:
    view = Classification.of({"test": outputs(np.zeros((3, 4)), [0, 3, 2], ids=["a", "b/0.png", "c"])}, (0, 1))
    with pytest.raises(
        ValueError, match=r"2 of 3 labels are outside the 2 classes, the first at id 'b/0.png' \(label 3"
    ):
        m.top1_accuracy(view)


def test_top5_with_several_acceptable_labels_counts_a_picture_once() -> None:
    """The released code of ImageNet-D adds one hit for each index: 3 hits for 2 pictures would be 150 %."""
    logits = [[9, 8, 7, 6, 5, 4, 3], [9, 8, 7, 6, 5, 4, 3]]
    value = m.top5_accuracy(classification(logits, [[0, 1, 4], [5, 6]]))
    assert (value.value, value.n, value.successes) == (1 / 2, 2, 1)


def test_top5_looks_only_at_the_classes_of_the_mask() -> None:
    logits = [[1.0, 2, 3, 4, 5, 6, 7, 8]]  # class 0 is last of all eight and fifth of 0, 1, 2, 3, 4
    assert m.top5_accuracy(classification(logits, [0], mask=(0, 1, 2, 3, 4))).value == 1.0
    assert m.top5_accuracy(classification(logits, [0])).value == 0.0


def test_the_drop_is_control_minus_benchmark() -> None:
    control = outputs([[1.0, 0], [1.0, 0], [0, 1.0], [0, 1.0]], [0, 0, 1, 0])  # 3 of 4
    view = classification([[1.0, 0], [0, 1.0]], [0, 0], control=control)  # 1 of 2
    assert m.control_top1_accuracy(view).value == 3 / 4
    drop = m.accuracy_drop(view)
    assert (drop.value, drop.n, drop.details["n_control"]) == (3 / 4 - 1 / 2, 2, 4)


def test_without_a_control_the_drop_is_undefined_with_the_reason() -> None:
    view = classification([[1.0, 0]], [0])
    assert m.accuracy_drop(view).value is None
    assert "control not run" in m.accuracy_drop(view).reason


def test_a_split_keeps_its_rows_and_the_whole_control() -> None:
    test = outputs([[1.0, 0], [1.0, 0], [0, 1.0]], [0, 1, 1], nuisance=["texture", "material", "material"])
    view = Classification.of({"test": test, "control": outputs([[1.0, 0]], [0])}, None)
    assert m.top1_accuracy(view.split("nuisance", "material")).value == 1 / 2
    assert m.top1_accuracy(view.split("nuisance", "texture")).value == 1 / 1
    assert m.control_top1_accuracy(view.split("nuisance", "material")).n == 1
    assert m.top1_accuracy(view.split("nuisance", "background")).reason == "no picture to score"


def test_any_index_of_a_category_is_right() -> None:
    """Alarm clock is 409 or 530."""
    logits = np.zeros((3, 1000), np.float32)
    logits[[0, 1, 2], [409, 530, 531]] = 1
    assert m.top1_accuracy(classification(logits, [[409, 530]] * 3)).value == 2 / 3


def peaks(n: int, *, right: int, height: float = 2.0) -> Classification:
    """n pictures of class 0 with rising confidence, the first `right` of them right; two classes."""
    top = np.linspace(0.5, height, n)
    logits = np.stack([np.where(np.arange(n) < right, top, 0), np.where(np.arange(n) < right, 0, top)], axis=1)
    return classification(logits, [0] * n)


@pytest.mark.parametrize("n", [1, 2, 99])
@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_calibration_of_fewer_than_a_bin_is_one_bin_and_says_so(n: int, fraction: float) -> None:
    """USER_REPORTS 17. One bin: |mean confidence - accuracy|; the released function stops with an IndexError."""
    right = int(fraction * n)
    view = peaks(n, right=right)
    value = m.rms_calibration_error(view)
    assert value.value == pytest.approx(abs(np.mean(view.test.confidence) - right / n), abs=1e-12)
    assert "one bin of all" in value.details["bins"]
    released = m.rms_calibration_error_released_code(view)
    assert released.value is None
    assert "not defined below 100 pictures" in released.reason


@pytest.mark.parametrize("n", [100, 150, 199])
def test_the_released_calibration_of_one_bin_is_zero_and_ours_is_not(n: int) -> None:
    view = peaks(n, right=n // 2)
    assert m.rms_calibration_error_released_code(view).value == 0.0
    assert m.rms_calibration_error(view).value == pytest.approx(abs(np.mean(view.test.confidence) - (n // 2) / n))


def test_calibration_of_250_pictures_is_two_bins_of_100_and_150() -> None:
    """USER_REPORTS 18: over the whole set, the last bin with the remainder."""
    view = peaks(250, right=120)
    confidence, correct = view.test.confidence, np.arange(250) < 120  # already in order of confidence
    first = confidence[:100].mean() - correct[:100].mean()
    last = confidence[100:].mean() - correct[100:].mean()
    assert m.rms_calibration_error(view).value == pytest.approx(sqrt(100 / 250 * first**2 + 150 / 250 * last**2))
    assert m.rms_calibration_error_released_code(view).value == pytest.approx(sqrt(100 / 250 * first**2))


def test_calibration_when_all_confidences_are_equal_does_not_depend_on_row_order() -> None:
    right = np.arange(200) < 50
    logits = np.where(right[:, None], [[1.0, 0.0]], [[0.0, 1.0]])
    there, back = classification(logits, [0] * 200), classification(logits[::-1], [0] * 200)
    gap = exp(1) / (exp(1) + 1) - 50 / 200  # the same in both bins
    assert m.rms_calibration_error(there).value == pytest.approx(gap, abs=1e-12)
    assert m.rms_calibration_error(back).value == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize(("right", "value"), [(0, 0.0), (150, 1.0)])
def test_aurra_of_all_wrong_is_zero_and_of_all_right_is_one(right: int, value: float) -> None:
    assert m.aurra(peaks(150, right=right)).value == value


def test_aurra_is_the_mean_accuracy_of_the_i_most_confident() -> None:
    view = classification([[3.0, 0], [0, 2.0], [1.0, 0]], [0, 0, 0])  # right, wrong, right by falling confidence
    assert m.aurra(view).value == pytest.approx((1 / 1 + 1 / 2 + 2 / 3) / 3)


def test_confidence_comes_from_float64_even_where_float32_would_be_one() -> None:
    view = classification([[20.0, 0.0]], [0])
    assert 0 < 1 - view.test.confidence[0] < 3e-9  # exp(-20) = 2.06e-9, lost in float32


def test_no_rows_give_no_value_and_a_reason() -> None:
    view = classification(np.zeros((0, 10)), [])
    for measure in benchmark("imagenet-val").measures:
        value = measure(view)
        assert (value.value, value.n) == (None, 0)
        assert value.reason


# --- detection


def detection(inside, outside, right=None, mask=None) -> Detection:
    known = outputs(inside, [0] * len(inside) if right is None else right)
    return Detection.of({"inside": known, "outside": outputs(outside)}, mask)


def test_out_of_distribution_is_the_positive_class_and_unsure_means_out() -> None:
    """USER_REPORTS 11: polarity. Confident inside, unsure outside: a perfect detector."""
    view = detection([[9.0, 0], [8.0, 0]], [[0.1, 0], [0, 0]])
    assert (m.aupr(view).value, m.auroc(view).value, m.fpr95(view).value) == (1.0, 1.0, 0.0)
    assert view.is_ood.tolist() == [False, False, True, True]


def test_the_wrong_way_round_is_the_worst_detector() -> None:
    view = detection([[0.1, 0], [0, 0]], [[9.0, 0], [8.0, 0]])
    assert (m.auroc(view).value, m.fpr95(view).value) == (0.0, 1.0)
    assert m.aupr(view).value == pytest.approx((1 / 3 + 2 / 4) / 2)  # the two are found at ranks 3 and 4


def test_all_scores_equal_give_the_base_rate() -> None:
    """USER_REPORTS 12: ties are one threshold, average precision is the base rate, not a trapezoid."""
    view = detection(np.zeros((4, 3)), np.zeros((1, 3)))
    value = m.aupr(view)
    assert value.value == 1 / 5
    assert (value.details["base_rate"], value.details["n_in"], value.details["n_out"]) == (1 / 5, 4, 1)
    assert m.auroc(view).value == 0.5


def test_chance_of_the_official_counts_is_one_sixth() -> None:
    view = detection(np.zeros((10_000, 2)), np.zeros((2_000, 2)))
    assert m.aupr(view).value == pytest.approx(2000 / 12000)


def test_anomaly_scores_use_the_mask() -> None:
    """Class 2 is not in the mask: over all classes the outside picture would be the confident one."""
    inside, outside = [[3.0, 0, 0]], [[0.0, 0, 9]]
    assert m.auroc(detection(inside, outside, mask=(0, 1))).value == 1.0
    assert m.auroc(detection(inside, outside)).value == 0.0


def test_in_distribution_accuracy_stands_beside_the_detection() -> None:
    """USER_REPORTS 13."""
    view = detection([[3.0, 0], [0, 3.0], [3.0, 0]], [[0.0, 0]], right=[0, 0, 0])
    assert (m.id_accuracy(view).value, m.id_accuracy(view).n) == (2 / 3, 3)


def test_detection_with_one_half_is_undefined_with_the_reason() -> None:
    view = detection(np.zeros((0, 2)), np.zeros((3, 2)), right=[])
    assert m.aupr(view).value is None
    assert m.aupr(view).reason == "needs both halves, got 0 in- and 3 out-of-distribution"


# --- spurious pairs


def spurious(validation, own, pictures, shown, *, normalisers=(None, None)) -> SpuriousPairs:
    roles = {
        "validation": outputs(validation, own, normaliser=normalisers[0]),
        "spurious": outputs(pictures, normaliser=normalisers[1], spurious_class=shown),
    }
    return SpuriousPairs.of(roles, None)


def test_the_score_is_the_mean_over_classes_of_average_precision() -> None:
    """Class 0: 1 of 1 first; class 1: its validation picture comes second of two."""
    view = spurious([[5.0, 0, 0], [0, 1.0, 0]], [0, 1], [[1.0, 0, 0], [0, 5.0, 0]], [0, 1])
    assert m.spurious_score(view).value == pytest.approx((1 / 1 + 1 / 2) / 2)
    assert m.spurious_auroc(view).value == pytest.approx((1 + 0) / 2)
    assert m.spurious_score(view).details["classes"] == 2


def test_the_joint_score_pools_the_pairs_of_all_classes() -> None:
    # class 0 answers high, class 1 low: apart perfect, pooled the spurious 0 stands above the validation 1
    view = spurious([[9.0, 0, 0], [0, 2.0, 0]], [0, 1], [[5.0, 0, 0], [0, 0.0, 0]], [0, 1])
    assert m.spurious_score(view).value == 1.0
    assert m.spurious_joint_ap(view).value == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_the_probability_is_taken_over_all_outputs_of_a_larger_head() -> None:
    """Same ImageNet logits; the second picture's other outputs hold much more: it must fall behind."""
    same = [[2.0, 0, 0]]
    full, crowded = np.log(exp(2) + 2), np.log(exp(2) + 2 + 1000)
    view = spurious(same, [0], same, [0], normalisers=([full], [crowded]))
    assert view.probability == pytest.approx([exp(2) / (exp(2) + 2), exp(2) / (exp(2) + 1002)])
    assert m.spurious_score(view).value == 1.0  # over the three columns alone they would tie: 1/2
    turned = spurious(same, [0], same, [0], normalisers=([crowded], [full]))
    assert m.spurious_score(turned).value == 1 / 2


def test_a_class_with_one_half_is_left_out_and_named() -> None:
    view = spurious([[5.0, 0, 0], [0, 5.0, 0]], [0, 1], [[1.0, 0, 0], [0, 0, 5.0]], [0, 2])
    value = m.spurious_score(view)
    assert (value.value, value.n, value.details["classes"]) == (1.0, 2, 1)
    names = labels.imagenet_1k_names()
    assert value.details["left_out"] == f"1 {names[1]}, 2 {names[2]}"


def test_a_class_without_an_output_is_left_out_and_named() -> None:
    """850 is the one class of ImageNet-1k that the 21,841-way list lacks."""
    logits = np.zeros((2, 1000), np.float32)
    logits[:, 850], logits[0, 3] = -np.inf, 4
    view = spurious(logits, [3, 850], logits[[1, 1]], [850, 3])
    assert view.left_out == (850,)
    assert "850 teddy" in m.spurious_score(view).details["left_out"]
    assert m.spurious_score(view).value == 1.0  # class 3 alone


def test_no_class_with_both_halves_is_undefined_with_the_reason() -> None:
    view = spurious([[5.0, 0]], [0], [[5.0, 0]], [1])
    assert m.spurious_score(view).value is None
    assert m.spurious_score(view).reason == "no class has both validation and spurious pictures"


def test_chance_of_the_official_counts_is_two_fifths_and_one_half() -> None:
    view = spurious(np.zeros((50, 2)), [0] * 50, np.zeros((75, 2)), [0] * 75)
    assert m.spurious_score(view).value == pytest.approx(50 / 125)
    assert m.spurious_auroc(view).value == 0.5


# --- the mask in general


def test_a_scored_view_without_a_mask_uses_the_normaliser_over_all_outputs() -> None:
    scored = Scored(outputs([[1.0, 0]], [0], normaliser=[3.0]), None)
    assert scored.confidence == pytest.approx([exp(1 - 3)])
