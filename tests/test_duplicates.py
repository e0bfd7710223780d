"""Overlap removal: hashes, the stages, references, published hashes."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from hf_robust.regenerate.collect import COLLECT, CollectSettings
from hf_robust.regenerate.duplicates import DUPLICATES, IN_POOL, IN_REFERENCE, DuplicatesSettings
from hf_robust.regenerate.fingerprint import FINGERPRINT, FingerprintSettings, perceptual_hashes
from hf_robust.regenerate.hash_index import packed
from hf_robust.regenerate.ledger import Ledger
from hf_robust.regenerate.references import write_hashes
from hf_robust.regenerate.stage import StageError, Work, run_stage
from hf_robust.runner import World

Picture = Callable[..., Image.Image]
HASHES_ONLY = FingerprintSettings(embedding=None)
TINY_MODEL = FingerprintSettings(embedding="timm-random/test_vit")


def _silent(done: int, total: int) -> None:
    pass


def work_in(out: Path, pool: Path, rows: Ledger | None = None) -> Work:
    return Work(out, World(0, 1, "cpu"), _silent, rows, str(pool))


def fingerprinted(out: Path, pool: Path, settings: FingerprintSettings = HASHES_ONLY) -> Ledger:
    collected = run_stage(COLLECT, CollectSettings(label_by="none", min_side=16), work_in(out, pool))
    return run_stage(FINGERPRINT, settings, work_in(out, pool, collected))


def without_duplicates(ledger: Ledger, out: Path, settings: DuplicatesSettings | None = None) -> Ledger:
    return run_stage(DUPLICATES, settings or DuplicatesSettings(), work_in(out, out, ledger))


def rows_of(ledger: Ledger) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for table in ledger.tables() for row in table.to_pylist()}


def kept(ledger: Ledger) -> set[str]:
    return {name for name, row in rows_of(ledger).items() if row["keep"]}


def save(folder: Path, **images: Image.Image) -> Path:
    folder.mkdir(exist_ok=True)
    for name, image in images.items():
        image.save(folder / f"{name}.png")
    return folder


def photo(picture: Picture, seed: int) -> Image.Image:
    """A picture with detail at every scale, as a photo has it."""
    fine = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    detail = Image.fromarray(fine).resize((160, 120), Image.Resampling.BICUBIC)
    return Image.blend(picture(seed, width=160, height=120), detail, 0.4)


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(io.BytesIO(stream.getvalue()))


# Hashes


def bits_of(text: str) -> NDArray[np.bool_]:
    return np.array([c == "1" for c in f"{int(text, 16):0{4 * len(text)}b}"])


def test_the_hash_is_that_of_imagehash_and_of_the_mirror_image(picture: Picture) -> None:
    import imagehash

    image = photo(picture, 0)
    one, other = perceptual_hashes(image, 16)
    assert one == str(imagehash.phash(image, 16))
    assert other == perceptual_hashes(ImageOps.mirror(image), 16)[0]
    assert len(one) == 16 * 16 // 4


def test_the_hash_is_the_signs_of_the_lowest_frequencies_against_their_median(picture: Picture) -> None:
    from scipy.fft import dctn

    image = photo(picture, 1)
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), dtype=np.float64)
    low = dctn(grey, type=2)[:8, :8]
    assert np.array_equal(bits_of(perceptual_hashes(image, 8)[0]), (low > np.median(low)).ravel())


def test_hashes_become_words(picture: Picture) -> None:
    texts = [perceptual_hashes(photo(picture, seed), 16)[0] for seed in range(3)]
    words = packed(texts)
    assert words.shape == (3, 256 // 16)
    assert "".join(f"{word:04x}" for word in words[1]) == texts[1]
    with pytest.raises(ValueError, match=r"one length in 16-bit words, got \[4, 8\]"):
        packed(["0000", "00000000"])


# The stages


def test_changed_copies_go_and_other_pictures_stay(tmp_path: Path, picture: Picture) -> None:
    one, other = photo(picture, 0), photo(picture, 1)
    pool = save(
        tmp_path / "pool", a_original=one.resize((320, 240)), b_half=one, c_mirrored=ImageOps.mirror(one),
        d_jpeg=jpeg(one, 40), e_other=other, f_same_bytes=one,
    )  # fmt: skip
    found = rows_of(without_duplicates(fingerprinted(tmp_path / "out", pool), tmp_path / "out"))
    assert {name for name, row in found.items() if row["keep"]} == {"a_original.png", "e_other.png"}
    original = found["a_original.png"]["row_id"]  # the one with the most pixels
    assert {row["duplicate_of"] for row in found.values() if not row["keep"]} == {original}
    assert {row["reason"] for row in found.values() if not row["keep"]} == {IN_POOL}
    assert found["c_mirrored.png"]["duplicate_kind"] == "hash"
    assert found["e_other.png"]["duplicate_of"] is None


def test_of_equal_pictures_the_first_by_row_id_stays(tmp_path: Path, picture: Picture) -> None:
    pool = save(tmp_path / "pool", **{f"x{n}": photo(picture, 0) for n in range(5)})
    found = rows_of(without_duplicates(fingerprinted(tmp_path / "out", pool), tmp_path / "out"))
    first = min(row["row_id"] for row in found.values())
    assert [row["row_id"] for row in found.values() if row["keep"]] == [first]
    assert {row["duplicate_kind"] for row in found.values() if not row["keep"]} == {"exact"}


def test_rows_dropped_before_take_no_part(tmp_path: Path, picture: Picture) -> None:
    pool = save(tmp_path / "pool", a=photo(picture, 0), b=photo(picture, 0))
    (pool / "broken.png").write_bytes(b"none")
    found = rows_of(without_duplicates(fingerprinted(tmp_path / "out", pool), tmp_path / "out"))
    assert found["broken.png"]["reason"] == "unreadable"
    assert (found["broken.png"]["phash"], found["broken.png"]["duplicate_of"]) == (None, None)
    assert sum(row["keep"] for row in found.values()) == 1


def test_a_pool_without_a_usable_picture_has_no_duplicates(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    (pool / "broken.png").write_bytes(b"none")
    assert without_duplicates(fingerprinted(tmp_path / "out", pool), tmp_path / "out").kept() == 0


def test_what_a_reference_folder_holds_goes(tmp_path: Path, picture: Picture) -> None:
    pool = save(tmp_path / "pool", a=photo(picture, 0), b=photo(picture, 1))
    reference = save(tmp_path / "earlier", old=jpeg(ImageOps.mirror(photo(picture, 0)), 60))
    settings = DuplicatesSettings(references=(str(reference),))
    found = rows_of(without_duplicates(fingerprinted(tmp_path / "out", pool), tmp_path / "out", settings))
    assert (found["a.png"]["reason"], found["a.png"]["duplicate_of"]) == (IN_REFERENCE, "old.png")
    assert found["b.png"]["keep"]


def test_a_reference_that_changed_makes_another_stage(tmp_path: Path, picture: Picture) -> None:
    pool = save(tmp_path / "pool", a=photo(picture, 0), b=photo(picture, 1))
    reference = save(tmp_path / "earlier", old=photo(picture, 0))
    settings = DuplicatesSettings(references=(str(reference),))
    ledger = fingerprinted(tmp_path / "out", pool)
    before = kept(without_duplicates(ledger, tmp_path / "out", settings))
    save(reference, new=photo(picture, 1))
    assert (before, kept(without_duplicates(ledger, tmp_path / "out", settings))) == ({"b.png"}, set())


def test_published_hashes_serve_as_reference(tmp_path: Path, picture: Picture) -> None:
    earlier = save(tmp_path / "earlier", old=photo(picture, 0))
    release = tmp_path / "release.hashes.parquet"
    assert write_hashes(without_duplicates(fingerprinted(tmp_path / "one", earlier), tmp_path / "one"), release) == 1
    pool = save(tmp_path / "pool", a=jpeg(photo(picture, 0), 50), b=photo(picture, 1))
    settings = DuplicatesSettings(references=(str(release),))
    found = rows_of(without_duplicates(fingerprinted(tmp_path / "two", pool), tmp_path / "two", settings))
    assert (found["a.png"]["reason"], found["a.png"]["duplicate_of"]) == (IN_REFERENCE, "old.png")
    assert found["b.png"]["keep"]


def test_hashes_that_cannot_be_compared_are_refused(tmp_path: Path, picture: Picture) -> None:
    pool = save(tmp_path / "pool", a=photo(picture, 0))
    release = tmp_path / "release.hashes.parquet"
    write_hashes(fingerprinted(tmp_path / "one", pool, replace(HASHES_ONLY, hash_side=8)), release)
    ledger = fingerprinted(tmp_path / "two", pool)
    with pytest.raises(StageError, match="made with hash_side 16, got 8"):
        without_duplicates(ledger, tmp_path / "two", DuplicatesSettings(references=(str(release),)))
    with pytest.raises(StageError, match="as write_hashes puts them down, got none"):
        without_duplicates(ledger, tmp_path / "two", DuplicatesSettings(references=("absent.hashes.parquet",)))
    with pytest.raises(StageError, match=r"named \*\.hashes\.parquet, got x\.csv"):
        write_hashes(ledger, tmp_path / "x.csv")


def test_a_reference_of_no_known_name_says_how_to_build_it(tmp_path: Path, picture: Picture) -> None:
    ledger = fingerprinted(tmp_path / "out", save(tmp_path / "pool", a=photo(picture, 0)))
    with pytest.raises(StageError, match="imagenet-a"):
        without_duplicates(ledger, tmp_path / "out", DuplicatesSettings(references=("imagenet-a",)))


@pytest.mark.parametrize(("bits", "cosine"), [(256, 0.9), (-1, 0.9), (10, 1.1)])
def test_limits_that_mean_nothing_are_refused(tmp_path: Path, picture: Picture, bits: int, cosine: float) -> None:
    ledger = fingerprinted(tmp_path / "out", save(tmp_path / "pool", a=photo(picture, 0)))
    with pytest.raises(StageError, match="hash_bits of 0 to 255 and a cosine above -1 and at most 1"):
        without_duplicates(ledger, tmp_path / "out", DuplicatesSettings(hash_bits=bits, cosine=cosine))


def test_duplicates_need_fingerprints(tmp_path: Path, picture: Picture) -> None:
    pool = save(tmp_path / "pool", a=photo(picture, 0))
    collected = run_stage(COLLECT, CollectSettings(label_by="none"), work_in(tmp_path / "out", pool))
    with pytest.raises(StageError, match="the stage 'fingerprint' before 'duplicates'"):
        without_duplicates(collected, tmp_path / "out")


def test_a_picture_that_went_away_is_named(tmp_path: Path, picture: Picture) -> None:
    pool = save(tmp_path / "pool", a=photo(picture, 0))
    collected = run_stage(COLLECT, CollectSettings(label_by="none"), work_in(tmp_path / "out", pool))
    (pool / "a.png").unlink()
    with pytest.raises(StageError, match=r"as it was when it was collected, got .*No such file"):
        run_stage(FINGERPRINT, HASHES_ONLY, work_in(tmp_path / "out", pool, collected))


def test_embeddings_are_of_length_one_and_find_what_hashes_miss(tmp_path: Path, picture: Picture) -> None:
    image = photo(picture, 0)
    pool = save(tmp_path / "pool", a=image, b=image.crop((20, 15, 150, 115)), c=photo(picture, 1))
    ledger = fingerprinted(tmp_path / "out", pool, TINY_MODEL)
    found = rows_of(ledger)
    vectors = {name: np.array(row["embedding"], np.float64) for name, row in found.items()}
    assert all(abs(np.linalg.norm(v) - 1) < 2e-3 for v in vectors.values())  # float16
    near, far = vectors["a.png"] @ vectors["b.png"], vectors["a.png"] @ vectors["c.png"]
    # a limit between the crop and the other picture; a network without training knows no better
    limit = (near + max(far, vectors["b.png"] @ vectors["c.png"])) / 2
    rows = rows_of(without_duplicates(ledger, tmp_path / "out", DuplicatesSettings(hash_bits=5, cosine=float(limit))))
    assert (rows["b.png"]["duplicate_kind"], rows["b.png"]["keep"]) == ("embedding", False)
    assert rows["b.png"]["duplicate_distance"] == pytest.approx(1 - near, abs=1e-3)
    assert rows["c.png"]["keep"]


def test_fingerprints_do_not_depend_on_who_made_the_other_parts(tmp_path: Path, picture: Picture) -> None:
    pool = save(tmp_path / "pool", **{f"x{n:02d}": picture(n) for n in range(10)})
    files = []
    for name, ranks in (("one", [(0, 1)]), ("two", [(1, 2), (0, 2)])):
        settings = CollectSettings(label_by="none", min_side=16, part_rows=3)
        for rank, size in ranks:
            work = replace(work_in(tmp_path / name, pool), world=World(rank, size, "cpu"))
            ledger = run_stage(FINGERPRINT, TINY_MODEL, replace(work, rows=run_stage(COLLECT, settings, work)))
        files.append([(ledger.stages[1].folder / f"part-{n:05d}.parquet").read_bytes() for n in range(4)])
    assert files[0] == files[1]


# Real photos


def test_planted_copies_of_photos_are_found_and_other_photos_stay(tmp_path: Path, shared: Path) -> None:
    files = sorted((shared / "data" / "nips2017" / "images").iterdir())[:30]
    pool = tmp_path / "pool"
    pool.mkdir()
    planted = 0
    for n, path in enumerate(files):
        image = Image.open(path).convert("RGB")
        image.save(pool / f"{n:02d}-original.png")
        copies = (
            ImageOps.mirror(image),
            image.resize((image.width // 2, image.height // 2)),
            image.crop((3, 3, image.width - 3, image.height - 3)),  # 2 %
        )
        copies[n % 3].save(pool / f"{n:02d}-copy.jpg", quality=60)
        planted += 1
    ledger = without_duplicates(fingerprinted(tmp_path / "out", pool), tmp_path / "out")
    assert len(ledger.funnel()[-1]["reasons"]) == 1
    names = {row["row_id"]: name for name, row in rows_of(ledger).items()}
    pairs = {(name[:2], names[row["duplicate_of"]][:2]) for name, row in rows_of(ledger).items() if not row["keep"]}
    assert pairs == {(f"{n:02d}", f"{n:02d}") for n in range(planted)}
    assert ledger.kept() == planted
