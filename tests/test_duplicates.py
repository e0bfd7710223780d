"""Overlap removal: hashes, exact searches, which of two pictures stays, references, published hashes."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image, ImageOps

from hf_robust.regenerate.collect import COLLECT, CollectSettings
from hf_robust.regenerate.duplicates import DUPLICATES, IN_POOL, IN_REFERENCE, DuplicatesSettings
from hf_robust.regenerate.embedding_index import EmbeddingIndex
from hf_robust.regenerate.fingerprint import FINGERPRINT, FingerprintSettings, perceptual_hashes
from hf_robust.regenerate.hash_index import HashIndex, packed
from hf_robust.regenerate.ledger import Ledger
from hf_robust.regenerate.references import write_hashes
from hf_robust.regenerate.stage import StageError, Work, run_stage
from hf_robust.regenerate.twins import Marks, Twin, find_twins
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


# Searches


def brute_force(queries: NDArray[np.uint16], hashes: NDArray[np.uint16], radius: int) -> set[tuple[int, int, int]]:
    bits = [np.unpackbits(words.astype(">u2").view(np.uint8), axis=1) for words in (queries, hashes)]
    distance = (bits[0][:, None, :] != bits[1][None, :, :]).sum(axis=2)
    return {(int(q), int(h), int(distance[q, h])) for q, h in np.argwhere(distance <= radius)}


@pytest.mark.parametrize(("words", "radius"), [(4, 0), (4, 3), (4, 10), (16, 15), (16, 33), (3, 7)])
def test_the_hash_index_finds_what_brute_force_finds(words: int, radius: int) -> None:
    rng = np.random.default_rng(words * 100 + radius)
    hashes = rng.integers(0, 1 << 16, (60, words), dtype=np.uint16)
    near = hashes[rng.integers(0, 60, 200)].copy()
    for row in near:  # up to two bits more than the radius, anywhere
        for bit in rng.choice(16 * words, rng.integers(0, radius + 3), replace=False):
            row[bit // 16] ^= np.uint16(1 << (bit % 16))
    found = HashIndex(hashes, radius).search(near, np.ones(60, bool))
    expected = brute_force(near, hashes, radius)
    assert len(found[0]) == len(expected)
    assert set(zip(*(values.tolist() for values in found), strict=True)) == expected


@given(hnp.arrays(np.uint16, (5, 2), elements=st.sampled_from([0, 1, 3, 7, 0x8000, 0xFFFF])), st.integers(0, 31))
def test_the_hash_index_is_exact_for_any_words_and_radius(hashes: NDArray[np.uint16], radius: int) -> None:
    hashes = np.unique(hashes, axis=0)
    if radius > 6:  # more values to look up than any test needs
        radius = radius % 7
    found = HashIndex(hashes, radius).search(hashes, np.ones(len(hashes), bool))
    assert set(zip(*(values.tolist() for values in found), strict=True)) == brute_force(hashes, hashes, radius)


def test_the_hash_index_leaves_out_what_is_not_wanted() -> None:
    hashes = np.array([[0], [1]], np.uint16)
    rows, found, bits = HashIndex(hashes, 1).search(hashes, np.array([False, True]))
    assert (rows.tolist(), found.tolist(), bits.tolist()) == ([0, 1], [1, 1], [1, 0])


def test_a_radius_of_all_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="radius of 0 to 63 bits, got 64"):
        HashIndex(np.zeros((1, 4), np.uint16), 64)


def unit(vectors: NDArray[np.float64]) -> NDArray[np.float16]:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


@pytest.mark.parametrize("kind", ["common part", "isotropic", "all alike", "two numbers"])
def test_the_embedding_index_finds_what_a_full_product_finds(kind: str) -> None:
    rng = np.random.default_rng(0)
    width = 2 if kind == "two numbers" else 200
    scale = {"common part": 0.5, "isotropic": 1.0, "all alike": 1e-3, "two numbers": 1.0}[kind]
    raw = rng.normal(size=(150, width)) * scale + (0 if kind in ("isotropic", "two numbers") else 1)
    raw[100:] = raw[:50] + rng.normal(size=(50, width)) * 0.4 * np.linspace(0, 1, 50)[:, None] * scale
    vectors = unit(raw)
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    wanted = rng.random(150) < 0.8
    rows, others, cosines = EmbeddingIndex(vectors, 0.9).search(50, 150, wanted)
    expected = {(i, j) for i in range(50, 150) for j in range(i) if wanted[j] and exact[i] @ exact[j] >= 0.9}
    assert expected
    assert set(zip(rows.tolist(), others.tolist(), strict=True)) == expected
    assert np.allclose(cosines, [exact[i] @ exact[j] for i, j in zip(rows, others, strict=True)], atol=1e-12)


# Which one stays


def marks(hashes: list[int], *, sha256: list[str] | None = None, vectors: Any = None, fixed: int = 0) -> Marks:
    words = np.array([[h] for h in hashes], np.uint16)
    names = np.array(sha256 or [f"picture {n}" for n in range(len(hashes))], "S32")
    far = np.full_like(words, 0x5555)  # no mirror image is near anything
    return Marks(names, words, far, None if vectors is None else unit(np.array(vectors, float)), fixed)


def test_a_chain_of_near_pictures_does_not_pull_in_its_far_end() -> None:
    # 0 bits and 2 bits: near; 2 and 4 bits: near; 0 and 4 bits: not. The middle goes, both ends stay.
    twins = find_twins(marks([0b0000, 0b0011, 0b1111]), hash_bits=2, cosine=0.9)
    assert twins == {1: Twin(0, "hash", 2.0)}


def test_equal_bytes_count_before_hashes_and_hashes_before_embeddings() -> None:
    vectors = [[1, 0], [1, 0], [1, 0], [1, 0.1]]
    twins = find_twins(marks([0, 0, 1, 0xFF00], sha256=["a", "a", "b", "c"], vectors=vectors), hash_bits=2, cosine=0.9)
    assert {row: (twin.row, twin.kind) for row, twin in twins.items()} == {
        1: (0, "exact"),
        2: (0, "hash"),
        3: (0, "embedding"),
    }
    assert twins[3].distance == pytest.approx(1 - 1 / np.sqrt(1 + 0.1**2), abs=1e-3)  # float16


def test_the_nearest_of_those_that_stay_is_named() -> None:
    # 0b11 is one bit from 0b111 and two from 0
    twins = find_twins(marks([0, 0b111, 0b11]), hash_bits=2, cosine=0.9)
    assert twins == {2: Twin(1, "hash", 1.0)}


def test_references_stay_however_near_they_are() -> None:
    twins = find_twins(marks([0, 0, 1, 0xF0F0], fixed=2), hash_bits=2, cosine=0.9)
    assert twins == {2: Twin(0, "hash", 1.0)}


def plain_twins(given_marks: Marks, hash_bits: int, cosine: float) -> set[int]:
    """Rows that go, by comparing every picture with all that stay before it."""
    exact = given_marks.embeddings.astype(float)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    stay: list[int] = []
    for row in range(len(given_marks.sha256)):
        own = (given_marks.hashes[row], given_marks.mirrored[row])
        near = any(
            given_marks.sha256[row] == given_marks.sha256[other]
            or any(sum(int(a ^ b).bit_count() for a, b in zip(h, given_marks.hashes[other], strict=True)) <= hash_bits
                   for h in own)
            or exact[row] @ exact[other] >= cosine
            for other in stay
        )  # fmt: skip
        if not near or row < given_marks.fixed:
            stay.append(row)
    return set(range(len(given_marks.sha256))) - set(stay)


@pytest.mark.parametrize("seed", range(4))
def test_the_decision_is_that_of_comparing_all_with_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 1 << 16, (60, 4), dtype=np.uint16)
    hashes = centres[rng.integers(0, 60, 700)] ^ (1 << rng.integers(0, 16, (700, 4))).astype(np.uint16)
    mirrored = centres[rng.integers(0, 60, 700)] ^ (1 << rng.integers(0, 16, (700, 4))).astype(np.uint16)
    vectors = unit(1 + rng.normal(size=(700, 12)))
    given_marks = Marks(np.array([f"{n}" for n in rng.integers(0, 600, 700)], "S32"), hashes, mirrored, vectors, 20)
    twins = find_twins(given_marks, hash_bits=6, cosine=0.97)
    assert set(twins) == plain_twins(given_marks, 6, 0.97)
    assert not {twin.row for twin in twins.values()} & set(twins)


def test_no_pictures_and_one_picture_have_no_twins() -> None:
    assert find_twins(marks([5]), hash_bits=2, cosine=0.9) == {}
    nothing = Marks(np.zeros(0, "S32"), np.zeros((0, 4), np.uint16), np.zeros((0, 4), np.uint16), None, 0)
    assert find_twins(nothing, hash_bits=2, cosine=0.9) == {}


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
