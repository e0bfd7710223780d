"""Neural PCA from a stored run: files a class, resuming, alphas of other models, the published ones, the list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from run_folder import Source, write_run

from hf_robust.cli import main
from hf_robust.models import ModelError
from hf_robust.predictions.parts import part_path
from hf_robust.predictions.read import HeadWeights
from hf_robust.spurious import alpha_files
from hf_robust.spurious.alpha_files import alphas_from, class_file, fit_classes, read_class
from hf_robust.spurious.components import class_index, published_components, read_components
from hf_robust.spurious.neural_pca import fit
from hf_robust.spurious.training import Training, open_training

CLASSES, EACH, DIM = (3, 7, 850), 9, 16


def training_run(runs: Path, *, seed: int = 0, dim: int = DIM, features: bool = True, **plan: Any) -> Path:
    """A run of a made-up model on nine training pictures of three classes, its head, and their features."""
    rng = np.random.default_rng(seed)
    head = HeadWeights(rng.normal(size=(1000, dim)).astype(np.float32), rng.normal(size=1000).astype(np.float32))
    labels = [[k] for k in CLASSES for _ in range(EACH)]
    phi = np.abs(rng.normal(size=(len(labels), dim))).astype(np.float32)
    logits = phi @ head.weight.T + head.bias
    source = Source("imagenet-train", labels, logits, features=phi if features else None)
    return write_run(runs, ["imagenet-train"], [source], heads={"classifier": head}, features=features, **plan)


def features_of(training: Training, k: int) -> NDArray[Any]:
    return training.features(training.of_class(k))


def test_a_stored_class_is_the_fit_of_its_pictures_alone(tmp_path: Path) -> None:
    training = open_training(training_run(tmp_path / "runs"))
    assert fit_classes(training, CLASSES, tmp_path / "pca", keep=None) == 3
    stored = read_class(tmp_path / "pca", 7)
    phi = features_of(training, 7)
    assert phi.shape == (EACH, DIM)
    np.testing.assert_array_equal(stored.pca.components, fit(phi, training.row_of(7)).components)
    np.testing.assert_array_equal(stored.alphas, stored.pca.alphas(phi))
    logits = training.of_class(7).logits[:, 7].astype(np.float64)
    np.testing.assert_allclose(stored.alphas.sum(axis=1), logits - logits.mean(), atol=1e-5)
    assert stored.ids == training.of_class(7).ids
    assert stored.pca.remainder


def test_what_is_there_is_kept_and_what_is_damaged_is_made_again_with_the_same_bytes(tmp_path: Path) -> None:
    training, out = open_training(training_run(tmp_path / "runs")), tmp_path / "pca"
    assert fit_classes(training, CLASSES[:2], out, keep=4) == 2
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    class_file(out, 3).write_bytes(class_file(out, 3).read_bytes()[:200])
    assert fit_classes(training, CLASSES, out, keep=4) == 2
    assert class_file(out, 3).read_bytes() == before[class_file(out, 3).name][0]
    assert class_file(out, 7).stat().st_mtime_ns == before[class_file(out, 7).name][1]
    assert sorted(path.name for path in out.iterdir()) == [class_file(out, k).name for k in CLASSES]


def test_a_folder_holds_the_components_of_one_model_only(tmp_path: Path) -> None:
    out = tmp_path / "pca"
    fit_classes(open_training(training_run(tmp_path / "one")), CLASSES, out, keep=None)
    other = open_training(training_run(tmp_path / "two", seed=1, model="other", weights="1" * 64))
    with pytest.raises(ValueError, match=r"expected the neural PCA of other in .* made with another head, model"):
        fit_classes(other, CLASSES, out, keep=None)


def test_one_class_is_read_without_reading_the_others(tmp_path: Path) -> None:
    run = training_run(tmp_path)
    part_path(run / "imagenet-train.model", 3).write_bytes(b"not a part")
    training = open_training(run)
    assert len(training.of_class(7)) == EACH
    with pytest.raises(LookupError, match=r"expected predictions for pictures of class 3 \(n01491361\)"):
        training.of_class(3)


def test_a_run_without_features_or_head_says_how_to_get_them(tmp_path: Path) -> None:
    training = open_training(training_run(tmp_path, features=False))
    with pytest.raises(LookupError, match=r"expected stored features in .*--features"):
        training.of_class(3)
    write_run(tmp_path / "bare", ["imagenet-train"], [Source("imagenet-train", [[3]], np.zeros((1, 1000)))])
    with pytest.raises(LookupError, match="expected one run with predictions of imagenet-train and a head in"):
        open_training(tmp_path / "bare")


def test_two_runs_in_a_folder_need_the_name_of_one(tmp_path: Path) -> None:
    training_run(tmp_path)
    training_run(tmp_path, seed=1, model="other", weights="1" * 64)
    with pytest.raises(LookupError, match=r"got other-\w+, toy-\w+: name the folder of one"):
        open_training(tmp_path)
    assert open_training(tmp_path, model="other").plan["model"] == "other"


def test_own_and_stored_alphas_are_the_same(tmp_path: Path) -> None:
    training = open_training(training_run(tmp_path / "runs"))
    fit_classes(training, CLASSES, tmp_path / "pca", keep=6)
    rows = training.of_class(7)
    own, stored = (alphas_from(place, training).of_class(7, rows, [2, 0]) for place in ("own", tmp_path / "pca"))
    np.testing.assert_allclose(own, stored, atol=1e-12)
    assert alphas_from(tmp_path / "pca", training).origin["model"] == "toy"


def test_stored_alphas_go_to_pictures_by_id(tmp_path: Path) -> None:
    """Another order of the pictures, as another run may have, is no other alphas."""
    training = open_training(training_run(tmp_path / "runs"))
    fit_classes(training, CLASSES, tmp_path / "pca", keep=None)
    alphas, rows = alphas_from(tmp_path / "pca", training), training.of_class(7)
    order = np.array([4, 0, 8, 1, 2, 3, 5, 6, 7])
    np.testing.assert_array_equal(alphas.of_class(7, rows.take(order), [1]), alphas.of_class(7, rows, [1])[order])
    with pytest.raises(ValueError, match="expected the alphas of the same 8 training pictures of class 7 in"):
        alphas.of_class(7, rows.take(order[:8]), [1])


def test_the_remainder_is_no_component(tmp_path: Path) -> None:
    training = open_training(training_run(tmp_path / "runs"))
    fit_classes(training, CLASSES, tmp_path / "pca", keep=3)
    with pytest.raises(ValueError, match="expected components below 3 for class 7, got 3"):
        alphas_from(tmp_path / "pca", training).of_class(7, training.of_class(7), [0, 3])
    with pytest.raises(ValueError, match=f"expected components below {EACH - 1} for class 7, got 8"):
        alphas_from("own", training).of_class(7, training.of_class(7), [8])


# --- published files


def published(folder: Path, k: int, values: Any, name: str = "spurious_alphas_train_{:03d}.pt") -> NDArray[Any]:
    import torch

    folder.mkdir(exist_ok=True)
    torch.save(torch.from_numpy(np.asarray(values)), folder / name.format(k))
    return np.asarray(values)


def test_published_alphas_go_to_pictures_by_sorted_file_name(tmp_path: Path) -> None:
    training = open_training(training_run(tmp_path / "runs"))
    values = published(tmp_path / "pt", 7, np.random.default_rng(5).normal(size=(EACH, 4)).astype(np.float32))
    alphas, rows = alphas_from(tmp_path / "pt", training), training.of_class(7)
    # ids imagenet-train/9.png … /17.png: as text "10" … "17" come before "9"
    names = sorted(key.rpartition("/")[2] for key in rows.ids)
    assert names[0] == "10.png"
    assert names[-1] == "9.png"
    found = alphas.of_class(7, rows, [3, 1])
    for n, key in enumerate(rows.ids):
        assert found[n].tolist() == values[names.index(key.rpartition("/")[2])][[3, 1]].astype(float).tolist()


def test_another_number_of_pictures_than_published_rows_is_refused(tmp_path: Path) -> None:
    training = open_training(training_run(tmp_path / "runs"))
    published(tmp_path / "pt", 7, np.zeros((EACH + 1, 4)))
    with pytest.raises(
        ValueError, match=f"expected {EACH + 1} training pictures of class 7, one a row of pt, got {EACH}"
    ):
        alphas_from(tmp_path / "pt", training).of_class(7, training.of_class(7), [0])


@pytest.mark.parametrize("name", ["{:d}.pt", "n01514668.pt", "alphas_{:04d}_cock.pt"])
def test_a_published_file_is_found_by_index_or_wordnet_id(tmp_path: Path, name: str) -> None:
    values = published(tmp_path, 7, np.ones((2, 3)), name)
    published(tmp_path, 77, np.zeros((2, 3)))
    np.testing.assert_array_equal(alpha_files.read_published(tmp_path, 7), values)


def test_a_missing_or_doubtful_published_file_is_named(tmp_path: Path) -> None:
    published(tmp_path, 77, np.zeros((2, 3)))
    with pytest.raises(LookupError, match=r"expected one \.pt file for class 7 \(n01514668\) in .*, got none"):
        alpha_files.read_published(tmp_path, 7)
    published(tmp_path, 7, np.ones((2, 3)), "a_{:d}.pt")
    published(tmp_path, 7, np.ones((2, 3)), "b_{:03d}.pt")
    with pytest.raises(LookupError, match=r"got a_7\.pt, b_007\.pt: name it by the class index"):
        alpha_files.read_published(tmp_path, 7)


def test_a_published_file_runs_no_code_and_must_hold_one_tensor(tmp_path: Path) -> None:
    import torch

    torch.save({"alphas": torch.zeros(2, 2)}, tmp_path / "7.pt")
    with pytest.raises(ModelError, match="expected one tensor, got dict"):
        alpha_files.read_published(tmp_path, 7)
    torch.save(Path("x"), tmp_path / "7.pt")
    with pytest.raises(ModelError, match="loading it would run code"):
        alpha_files.read_published(tmp_path, 7)
    torch.save(torch.zeros(3), tmp_path / "7.pt")
    with pytest.raises(ValueError, match=r"expected \(pictures, components\) in .*, got shape \(3,\)"):
        alpha_files.read_published(tmp_path, 7)


def test_a_place_that_holds_no_alphas_is_named(tmp_path: Path) -> None:
    training = open_training(training_run(tmp_path / "runs"))
    with pytest.raises(LookupError, match=r"expected class-\*\.safetensors or \*\.pt in"):
        alphas_from(tmp_path, training)
    with pytest.raises(FileNotFoundError, match="expected a folder of alphas, or 'own', got"):
        alphas_from(tmp_path / "nowhere", training)
    (tmp_path / "class-0003.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="got one that cannot be read"):
        alphas_from(tmp_path, training)


# --- the list of components


def test_the_published_list_has_322_components_of_233_classes_and_is_the_released_one(shared: Path) -> None:
    released = json.loads((shared / "reference" / "label_spaces" / "spurious_components.json").read_text())
    assert {str(k): list(v) for k, v in published_components().items()} == released
    assert (len(released), sum(map(len, released.values()))) == (233, 322)


def test_a_list_names_classes_by_index_or_wordnet_id(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('{"n04399382": [0, 2], "7": [1]}')
    assert read_components(path) == {7: (1,), 850: (0, 2)}
    assert read_components("published") == published_components()
    assert class_index("n01514668") == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "expected an object {class: "),
        ("{}", "expected an object {class: "),
        ('{"7": [-1]}', "with numbers from 0"),
        ('{"7": []}', "with numbers from 0"),
        ('{"7": [1, 1]}', "got a component twice for class 7"),
        ('{"7": [1], "n01514668": [2]}', "got a class twice"),
        ('{"1000": [1]}', "expected an ImageNet-1k index or WordNet id, got '1000'"),
        ("{", "expected JSON in"),
    ],
)
def test_what_is_no_list_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_components(path)


# --- the command


def test_the_command_writes_a_file_a_class_and_the_second_time_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training_run(tmp_path / "runs")
    fit_two = ["neural-pca", "fit", "--run", str(tmp_path / "runs"), "--out", str(tmp_path / "pca")]
    assert main([*fit_two, "--classes", "7", "n04399382"]) == 0
    assert "toy: 2 classes in" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "pca").iterdir()) == ["class-0007.safetensors", "class-0850.safetensors"]
    assert main(fit_two) == 0
    assert "3 classes in" in (out := capsys.readouterr().out)
    assert "1 of them new" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected --run RUN, or --model M with --train and --runs"),
        (["--model", "timm-random/test_vit"], "expected --train FOLDER and --runs RUNS beside --model"),
    ],
)
def test_the_command_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["neural-pca", "fit", *options, "--out", str(tmp_path / "pca")]) == 1
    assert message in capsys.readouterr().err


def test_the_command_runs_a_model_first_where_it_is_given_one(tmp_path: Path, picture: Any) -> None:
    for wnid in ("n01491361", "n01514668"):
        (tmp_path / "train" / wnid).mkdir(parents=True)
        for seed in range(4):
            picture(seed).save(tmp_path / "train" / wnid / f"{wnid}_{seed}.png")
    told = ["--model", "timm-random/test_resnet", "--train", tmp_path / "train", "--runs", tmp_path / "runs"]
    assert main(["neural-pca", "fit", *map(str, told), "--out", str(tmp_path / "pca")]) == 0
    assert read_class(tmp_path / "pca", 3).alphas.shape[0] == 4
