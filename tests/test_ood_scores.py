"""Out-of-distribution scores as a registry: orientation, inputs, fits, repeats, memory, plug-ins."""

from __future__ import annotations

import re
import textwrap
import tracemalloc

import numpy as np
import ood_world as world
import pytest
from sklearn.metrics import roc_auc_score

from hf_robust.ood_scores import SCORES, LinearHead, Score, find, fit, refuse_overlap, registry, rows, score, scores

FITTED = [name for name, one in SCORES.items() if one.fitter is not None]
FROM_LOGITS = [name for name, one in SCORES.items() if one.needs == "logits"]
FROM_FEATURES = [name for name, one in SCORES.items() if one.needs == "features"]
WITH_HEAD = [name for name in FROM_FEATURES if SCORES[name].head]


@pytest.fixture(autouse=True)
def _fresh_plugins():
    scores.cache_clear()
    yield
    scores.cache_clear()


def test_the_registry_holds_every_promised_score():
    assert set(SCORES) == {
        "msp", "max_logit", "energy", "entropy", "margin", "gen", "kl_matching", "temperature_scaled_msp", "mcm", "knn",
        "mahalanobis", "relative_mahalanobis", "vim", "residual", "react", "ash", "scale", "dice", "she",
        "confidence_branch", "rotation",
    }  # fmt: skip
    assert all(one.name == name and one.source and one.function.__doc__ for name, one in SCORES.items())


@pytest.mark.parametrize("name", SCORES)
def test_rows_from_outside_score_higher_than_rows_from_inside(name):
    known = world.fitted(name, world.inside(600, seed=1))
    inner = score(name, **world.inside(300, seed=2).inputs(name), fit=known)
    outer = score(name, **world.outside(200, seed=3).inputs(name), fit=known)
    assert inner.dtype == outer.dtype == np.float64
    assert roc_auc_score([0] * 300 + [1] * 200, np.concatenate([inner, outer])) > 0.95


@pytest.mark.parametrize("variant", ["s", "b", "p"])
def test_each_variant_of_ash_is_oriented(variant):
    inner, outer = (rows.inputs("ash") for rows in (world.inside(200, seed=2), world.outside(200, seed=3)))
    values = [score("ash", **rows, variant=variant, percentile=60) for rows in (inner, outer)]
    assert roc_auc_score([0] * 200 + [1] * 200, np.concatenate(values)) > 0.95


@pytest.mark.parametrize("name", SCORES)
def test_one_row_scores_as_it_does_among_others(name):
    known = world.fitted(name, world.inside(600, seed=1))
    many, one = world.inside(7, seed=2), world.inside(7, seed=2)
    one = world.Rows(one.features[3:4], one.labels[3:4])
    alone = score(name, **one.inputs(name), fit=known)
    assert alone.shape == (1,)
    # a matrix product may sum in another order for another number of rows, and float32 logits are made with one
    np.testing.assert_allclose(alone, score(name, **many.inputs(name), fit=known)[3:4], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FITTED)
def test_a_fit_and_its_score_are_the_same_bytes_when_repeated(name):
    first, second = (world.fitted(name, world.inside(600, seed=1)) for _ in range(2))
    assert first.sha256() == second.sha256()
    assert {k: v.tobytes() for k, v in first.arrays.items()} == {k: v.tobytes() for k, v in second.arrays.items()}
    inputs = world.outside(50, seed=3).inputs(name)
    assert score(name, **inputs, fit=first).tobytes() == score(name, **inputs, fit=second).tobytes()


def test_fits_of_other_rows_have_another_hash():
    assert (
        world.fitted("dice", world.inside(60, seed=1)).sha256()
        != world.fitted("dice", world.inside(60, seed=2)).sha256()
    )


@pytest.mark.parametrize("name", SCORES)
def test_the_size_of_a_chunk_changes_nothing(name, monkeypatch):
    whole_fit = world.fitted(name, world.inside(600, seed=1))
    inputs = world.outside(50, seed=3).inputs(name)
    whole = score(name, **inputs, fit=whole_fit)
    monkeypatch.setattr(rows, "CHUNK_BYTES", 8 * world.WIDTH * 7)  # seven rows
    parts = score(name, **inputs, fit=world.fitted(name, world.inside(600, seed=1)))
    np.testing.assert_allclose(parts, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", FITTED)
def test_fits_and_scores_need_no_more_memory_for_ten_times_the_rows(name, monkeypatch):
    monkeypatch.setattr(rows, "CHUNK_BYTES", 2**16)
    options = {"max_rows": 500} if name == "knn" else {}

    def peak(n):
        data = world.inside(n, seed=1)
        inputs = dict(data.inputs(name))
        tracemalloc.start()
        known = fit(name, **inputs, labels=data.labels, **options)
        score(name, **inputs, fit=known)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    vectors = 9 * 20_000 * 8  # the result, and labels with their groups: a few numbers a row, never a matrix
    assert peak(20_000) < peak(2_000) + vectors < 20_000 * world.WIDTH * 4 + 2**20


@pytest.mark.parametrize("name", FROM_LOGITS)
def test_a_masked_column_scores_like_one_that_is_not_there(name):
    keep = [0, 2, 4]
    data = world.inside(600, seed=1)
    data = world.Rows(data.features[np.isin(data.labels, keep)], data.labels[np.isin(data.labels, keep)])
    full = dict(data.inputs(name))
    masked = {**full, "logits": np.where(np.isin(np.arange(world.CLASSES), keep), full["logits"], -np.inf)}
    short = {"logits": full["logits"][:, keep], "head": LinearHead.masked(full["head"], keep)}
    fits = [None, None]
    if SCORES[name].fitter is not None:
        fits = [
            fit(name, **masked, labels=data.labels),
            fit(name, **short, labels=np.searchsorted(keep, data.labels)),
        ]
    np.testing.assert_allclose(
        score(name, **masked, fit=fits[0]), score(name, **short, fit=fits[1]), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", FROM_LOGITS)
def test_half_precision_logits_are_computed_in_double(name):
    logits = (np.random.default_rng(0).normal(size=(40, world.CLASSES))).astype(np.float16)
    known = None if SCORES[name].fitter is None else fit(name, logits=logits, labels=np.arange(40) % world.CLASSES)
    half = score(name, logits=logits, head=world.TEXTS, fit=known)
    assert half.tolist() == score(name, logits=logits.astype(np.float64), head=world.TEXTS, fit=known).tolist()


@pytest.mark.parametrize("name", FROM_LOGITS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_logit_that_is_no_number_is_named_by_its_row(name, value):
    data = world.inside(30, seed=2)
    inputs = dict(data.inputs(name))
    known = world.fitted(name, world.inside(600, seed=1))
    inputs["logits"] = inputs["logits"].copy()
    inputs["logits"][17, 4] = value
    with pytest.raises(ValueError, match=f"expected a finite highest logit in each row, got {value} at row 17"):
        score(name, **inputs, fit=known)


def test_a_row_of_masked_logits_alone_is_refused():
    with pytest.raises(ValueError, match="got -inf at row 1: check the class mask"):
        score("msp", logits=[[0.0, 1.0], [-np.inf, -np.inf]])


@pytest.mark.parametrize("name", FROM_FEATURES)
def test_a_feature_that_is_no_number_is_named_by_its_row(name):
    features = world.inside(30, seed=2).features.copy()
    features[11, 3] = np.nan
    known = world.fitted(name, world.inside(600, seed=1))
    with pytest.raises(ValueError, match="expected finite features, got a value that is not at row 11"):
        score(name, features=features, head=world.HEAD, fit=known)


@pytest.mark.parametrize("name", [name for name in FITTED if SCORES[name].needs == "features"])
def test_a_fit_refuses_a_feature_that_is_no_number(name):
    data = world.inside(600, seed=1)
    data.features[5, 0] = np.inf
    with pytest.raises(ValueError, match="expected finite features, got a value that is not at row 5"):
        world.fitted(name, data)


@pytest.mark.parametrize("name", FROM_FEATURES)
def test_features_of_another_model_are_refused(name):
    known = world.fitted(name, world.inside(600, seed=1))
    with pytest.raises(ValueError, match=f"expected features of width {world.WIDTH}, that of the .*, got 3: take both"):
        score(name, features=np.ones((2, 3)), head=world.HEAD, fit=known)


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        (np.zeros((0, 3)), ValueError, "expected at least one row in logits, got none"),
        (np.zeros(3), ValueError, r"expected logits of shape \(N, width\), got \(3,\)"),
        (np.zeros((3, 0)), ValueError, r"expected logits of shape \(N, width\), got \(3, 0\)"),
        ([["a"]], TypeError, "expected numbers in logits, got <U1"),
    ],
)
def test_logits_of_a_wrong_shape_or_kind_are_refused(values, error, text):
    with pytest.raises(error, match=text):
        score("energy", logits=values)


def test_integer_logits_are_numbers_too():
    assert score("max_logit", logits=[[1, 3]]).tolist() == [-3.0]


def test_an_unknown_score_lists_the_known_ones():
    with pytest.raises(KeyError, match="unknown score 'mps'; known: msp, max_logit, energy"):
        score("mps", logits=[[0.0]])


def test_a_missing_column_is_asked_for():
    with pytest.raises(ValueError, match="expected features for the score 'knn', got logits: pass features="):
        score("knn", logits=[[0.0, 1.0]])
    with pytest.raises(ValueError, match="expected logits for the fit 'kl_matching', got nothing: pass logits="):
        fit("kl_matching")


@pytest.mark.parametrize("name", WITH_HEAD)
def test_a_missing_head_is_asked_for(name):
    with pytest.raises(ValueError, match=f"expected head for score '{name}', got none: pass head="):
        score(name, features=world.inside(3, seed=0).features)


@pytest.mark.parametrize("name", [name for name in FITTED if SCORES[name].fit_needed])
def test_a_missing_fit_is_asked_for(name):
    with pytest.raises(ValueError, match=f"expected a fit for score '{name}', got none: make one with fit"):
        score(name, **world.inside(3, seed=0).inputs(name))


@pytest.mark.parametrize("name", [name for name in FITTED if SCORES[name].fit_labels])
def test_missing_labels_are_asked_for(name):
    with pytest.raises(ValueError, match=f"expected labels for the fit of '{name}', got none: pass labels="):
        fit(name, **world.inside(3, seed=0).inputs(name))


@pytest.mark.parametrize("name", [name for name in FITTED if SCORES[name].fit_labels])
def test_labels_that_do_not_fit_the_rows_are_refused(name):
    data = world.inside(20, seed=0)
    inputs = data.inputs(name)
    with pytest.raises(ValueError, match=re.escape("expected labels of shape (20,), got (19,)")):
        fit(name, **inputs, labels=data.labels[1:])
    with pytest.raises(TypeError, match="expected integers in labels, got float64"):
        fit(name, **inputs, labels=data.labels * 1.0)
    with pytest.raises(ValueError, match=r"expected labels .*, got -1 at row 19"):
        fit(name, **inputs, labels=[*data.labels[:-1], -1])


def test_the_fit_of_another_score_is_refused():
    known = world.fitted("vim", world.inside(600, seed=1))
    with pytest.raises(ValueError, match="expected a fit of 'residual', got one of 'vim'"):
        score("residual", **world.inside(3, seed=0).inputs("residual"), fit=known)


def test_a_score_without_a_fit_says_so():
    with pytest.raises(ValueError, match="expected a score that is fitted, got 'msp': it needs no fit"):
        fit("msp", logits=[[0.0]])


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(TypeError, match="expected only the options gamma, top for score 'gen', got gama"):
        score("gen", logits=[[0.0]], gama=1)
    with pytest.raises(TypeError, match="expected only the options max_rows, seed for the fit of 'knn', got k"):
        fit("knn", features=[[1.0]], k=5)


def test_a_fit_records_its_rows_and_every_setting():
    known = world.fitted("knn", world.inside(30, seed=1), max_rows=20)
    assert (known.score, known.rows, known.settings) == ("knn", 30, {"max_rows": 20, "seed": 0})
    assert find("knn").options == {"k": 50}


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("gen", {"gamma": 0.0}, "expected gamma > 0 and top >= 1, got 0.0 and 100"),
        ("energy", {"temperature": 0.0}, "expected a positive temperature, got 0.0"),
        ("ash", {"percentile": 100}, r"expected percentile in \[0, 100\), got 100"),
        ("ash", {"variant": "x"}, "expected the variant s, b or p, got 'x'"),
        ("scale", {"percentile": -1}, r"expected percentile in \[0, 100\), got -1"),
        ("temperature_scaled_msp", {}, "expected either a temperature or a fit, got neither"),
    ],
)
def test_an_option_out_of_range_is_refused(name, options, text):
    with pytest.raises(ValueError, match=text):
        score(name, **world.inside(3, seed=0).inputs(name), **options)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("knn", {"max_rows": 0}, "expected max_rows of 1 or more, got 0"),
        ("mahalanobis", {"shrinkage": 1.0}, r"expected shrinkage in \[0, 1\), got 1.0"),
        ("react", {"percentile": 200}, r"expected percentile in \[0, 100\), got 200"),
        ("vim", {"dimension": world.WIDTH}, "expected a principal space of 1 .. 69 dimensions .* got 70 dimensions"),
    ],
)
def test_an_option_of_a_fit_out_of_range_is_refused(name, options, text):
    with pytest.raises(ValueError, match=text):
        world.fitted(name, world.inside(100, seed=0), **options)


def test_a_principal_space_needs_as_many_rows_as_dimensions():
    with pytest.raises(ValueError, match="got 35 dimensions and 20 rows: fit on more rows"):
        world.fitted("vim", world.inside(20, seed=0))


def test_a_bank_smaller_than_k_is_refused():
    known = world.fitted("knn", world.inside(20, seed=0))
    with pytest.raises(ValueError, match=r"expected k in 1 .. 20, the rows of the bank, got 50: fit on more rows"):
        score("knn", **world.inside(3, seed=0).inputs("knn"), fit=known)


def test_a_class_without_a_correct_fit_row_is_named():
    data = world.inside(200, seed=1)
    rows_of_others = world.Rows(data.features[data.labels != 4], data.labels[data.labels != 4])
    with pytest.raises(ValueError, match="of each of 5 classes, got none of 1, the first class 4: fit on more rows"):
        world.fitted("she", rows_of_others)


def test_fit_rows_without_variance_are_refused():
    with pytest.raises(ValueError, match="expected fit rows that vary within their classes"):
        fit("mahalanobis", features=np.ones((4, 3)), labels=[0, 0, 1, 1])


def test_a_head_of_another_shape_is_refused():
    known = world.fitted("she", world.inside(600, seed=1))
    data = world.inside(3, seed=0)
    with pytest.raises(ValueError, match=re.escape("expected a head of shape (5, 70), that of the fit, got (2, 70)")):
        score("she", features=data.features, head=LinearHead.masked(world.HEAD, [0, 1]), fit=known)
    with pytest.raises(ValueError, match="expected a head with weight"):
        score(
            "react",
            features=data.features,
            head=LinearHead(np.ones(3), np.ones(3)),
            fit=world.fitted("react", data),
        )
    with pytest.raises(ValueError, match="expected a head of finite numbers"):
        score("ash", features=data.features, head=LinearHead(world.HEAD.weight * np.nan, world.HEAD.bias))


def test_concept_matching_refuses_the_head_of_an_ordinary_classifier():
    data = world.inside(3, seed=0)
    uneven = LinearHead(world.HEAD.weight * np.arange(1, 6)[:, None], world.HEAD.bias)
    with pytest.raises(ValueError, match=r"expected the head of a zero-shot model .*: mcm is not defined for other"):
        score("mcm", logits=data.logits, head=uneven)
    with pytest.raises(ValueError, match="expected logits within the head's scale 20, got"):
        score("mcm", logits=data.cosines * 3, head=world.TEXTS)


def test_activation_scaling_refuses_features_whose_highest_sum_to_nothing():
    features = -np.ones((2, world.WIDTH))
    for name in ("ash", "scale"):
        with pytest.raises(ValueError, match="expected activations whose highest sum to more than 0, as after a ReLU"):
            score(name, features=features, head=world.HEAD)


def test_a_dead_row_keeps_a_finite_score():
    dead = np.zeros((1, world.WIDTH))
    head = LinearHead(world.HEAD.weight, np.zeros(world.CLASSES))
    for name in ("ash", "scale"):
        assert score(name, features=dead, head=head) == pytest.approx([-np.log(world.CLASSES)])
    known = world.fitted("knn", world.inside(60, seed=0))
    assert score("knn", features=dead, fit=known) == pytest.approx([1.0])  # from 0 to a row of length 1


def test_fit_rows_that_are_scored_are_refused_by_id():
    with pytest.raises(ValueError, match="got 2 of 3 scored rows in the fit source, the first 'b': fit on other"):
        refuse_overlap(["a", "b", "c"], ["1", "2", "3"], ["b", "x", "c"], ["7", "8", "9"])


def test_fit_rows_that_are_scored_are_refused_by_the_bytes_of_the_image():
    with pytest.raises(ValueError, match="got 1 of 2 scored rows in the fit source, the first 'y'"):
        refuse_overlap(["a", "b"], ["1", "2"], ["x", "y"], ["8", "2"])


def test_unknown_image_hashes_match_nothing():
    assert refuse_overlap(["a", "b"], [None, ""], ["x", "y"], [None, ""]) is None


def test_ids_and_hashes_of_different_number_are_refused():
    with pytest.raises(ValueError, match="expected one entry of fit_sha256 for each id, got 1 for 2 ids"):
        refuse_overlap(["a", "b"], ["1"], ["x"], ["2"])


def _install(folder, monkeypatch, code):
    (folder / "toy_scores.py").write_text(textwrap.dedent(code))
    metadata = folder / "toy_scores-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-scores\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hf_robust.scores]\nspread = toy_scores:SPREAD\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "toy_scores", raising=False)


def test_a_package_adds_a_score_through_its_entry_point_in_ten_lines(tmp_path, monkeypatch):
    code = """
        import numpy as np
        from hf_robust.ood_scores import Score

        def spread(logits, fitted, *, power=1.0):
            return np.abs(np.std(logits, axis=1) - fitted["spread"]) ** power

        def typical(logits):
            return {"spread": np.std(logits, axis=1).mean()}

        SPREAD = Score("spread", "logits", spread, "Toy, 2026", fitter=typical)
    """
    _install(tmp_path, monkeypatch, code)
    assert list(scores()) == [*SCORES, "spread"]
    known = fit("spread", logits=np.array([[0.0, 2.0]]))
    # |3 - 1| squared
    assert score("spread", logits=np.array([[0.0, 6.0]]), fit=known, power=2.0).tolist() == [4.0]


def test_a_plug_in_that_is_no_score_is_named_and_breaks_no_other_score(tmp_path, monkeypatch):
    _install(tmp_path, monkeypatch, "SPREAD = 3\n")
    assert score("max_logit", logits=[[1.0]]).tolist() == [-1.0]
    with pytest.raises(TypeError, match="expected the plug-in toy_scores:SPREAD to be a Score, got int"):
        scores()


def test_a_score_that_gives_another_shape_or_nan_is_refused(monkeypatch):
    odd = Score("odd", "logits", lambda logits: np.zeros(5), "Toy, 2026")
    nan = Score("nan", "logits", lambda logits: np.array([0.0, np.nan]), "Toy, 2026")
    monkeypatch.setattr(registry, "SCORES", {"odd": odd, "nan": nan})
    with pytest.raises(ValueError, match=re.escape("expected score 'odd' to give shape (2,), got (5,)")):
        score("odd", logits=np.zeros((2, 3)))
    with pytest.raises(ValueError, match="expected finite values of score 'nan', got nan at row 1"):
        score("nan", logits=np.zeros((2, 3)))


def test_a_score_that_needs_an_unknown_column_is_refused():
    with pytest.raises(ValueError, match=r"expected score 'odd' to need one of logits, features, .*, got 'pixels'"):
        Score("odd", "pixels", lambda rows: rows, "Toy, 2026")
