"""Which pictures are the same: exact searches, the rule by which one stays, rows in files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hf_robust.regenerate.embedding_index import EmbeddingIndex
from hf_robust.regenerate.hash_index import HashIndex, differing_bits
from hf_robust.regenerate.row_file import RowFile, TextFile
from hf_robust.regenerate.twins import Marks, Twin, find_twins

# Searches


def bits_between(queries: NDArray[np.uint16], hashes: NDArray[np.uint16]) -> NDArray[np.int64]:
    one, other = (np.unpackbits(words.astype(">u2").view(np.uint8), axis=1) for words in (queries, hashes))
    return (one[:, None, :] != other[None, :, :]).sum(axis=2)


def nearest_of_all(
    queries: NDArray[np.uint16], hashes: NDArray[np.uint16], holders: NDArray[np.int64], radius: int
) -> list[tuple[int, int]]:
    """Holder and bits of the nearest hash of each query, by comparing all with all."""
    found = []
    for row in bits_between(queries, hashes).tolist():
        near = [(bits, holder) for bits, holder in zip(row, holders.tolist(), strict=True) if holder >= 0]
        bits, holder = min(near, default=(radius + 1, -1))
        found.append((holder, bits) if bits <= radius else (-1, radius + 1))
    return found


def nearest(
    queries: NDArray[np.uint16], hashes: NDArray[np.uint16], holders: NDArray[np.int64], radius: int
) -> list[tuple[int, int]]:
    found, bits = HashIndex(hashes, radius).nearest(queries, holders)
    return list(zip(found.tolist(), bits.tolist(), strict=True))


@pytest.mark.parametrize(("words", "radius"), [(4, 0), (4, 3), (4, 10), (16, 15), (16, 33), (3, 7)])
def test_the_hash_index_finds_what_comparing_all_finds(words: int, radius: int) -> None:
    rng = np.random.default_rng(words * 100 + radius)
    hashes = rng.integers(0, 1 << 16, (60, words), dtype=np.uint16)
    queries = hashes[rng.integers(0, 60, 600)].copy()
    for row in queries:  # up to two bits more than the radius, anywhere
        for bit in rng.choice(16 * words, rng.integers(0, radius + 3), replace=False):
            row[bit // 16] ^= np.uint16(1 << (bit % 16))
    holders = rng.permutation(60) - 6  # a tenth of them not wanted
    found = nearest(queries, hashes, holders, radius)
    assert found == nearest_of_all(queries, hashes, holders, radius)
    assert {holder for holder, _ in found} == {-1, *range(54)}


@given(hnp.arrays(np.uint16, (5, 2), elements=st.sampled_from([0, 1, 3, 7, 0x8000, 0xFFFF])), st.integers(0, 6))
def test_the_hash_index_is_exact_for_any_words_and_radius(hashes: NDArray[np.uint16], radius: int) -> None:
    holders = np.arange(5)[::-1].copy()
    assert nearest(hashes, hashes, holders, radius) == nearest_of_all(hashes, hashes, holders, radius)


def test_of_equally_near_hashes_the_smallest_holder_counts() -> None:
    hashes = np.array([[0b01], [0b10], [0b11]], np.uint16)
    # 0 differs from each of the first two in one bit, from the third in two
    assert nearest(np.array([[0]], np.uint16), hashes, np.array([7, 3, 0]), 2) == [(3, 1)]


def test_an_index_without_hashes_and_one_of_which_none_is_wanted_find_nothing() -> None:
    queries = np.zeros((2, 4), np.uint16)
    assert nearest(queries, queries[:0], np.zeros(0, np.int64), 5) == [(-1, 6)] * 2
    assert nearest(queries, queries, np.full(2, -1), 5) == [(-1, 6)] * 2
    assert nearest(queries[:0], queries, np.arange(2), 5) == []


def test_a_radius_of_all_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="radius of 0 to 63 bits, got 64"):
        HashIndex(np.zeros((1, 4), np.uint16), 64)


@pytest.mark.parametrize("words", [1, 3, 4, 16])
def test_bits_are_counted_over_all_words(words: int) -> None:
    hashes = np.random.default_rng(words).integers(0, 1 << 16, (20, words), dtype=np.uint16)
    assert np.array_equal(differing_bits(hashes[:7], hashes), bits_between(hashes[:7], hashes))


def unit(vectors: NDArray[np.float64]) -> NDArray[np.float16]:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def cosines_of(vectors: NDArray[np.float16]) -> NDArray[np.float64]:
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    return exact @ exact.T


def related_vectors(kind: str) -> NDArray[np.float16]:
    rng = np.random.default_rng(0)
    width = 2 if kind == "two numbers" else 200
    scale = {"common part": 0.5, "isotropic": 1.0, "all alike": 1e-3, "two numbers": 1.0}[kind]
    raw = rng.normal(size=(150, width)) * scale + (0 if kind in ("isotropic", "two numbers") else 1)
    raw[100:] = raw[:50] + rng.normal(size=(50, width)) * 0.4 * np.linspace(0, 1, 50)[:, None] * scale
    return unit(raw)


KINDS_OF_VECTORS = ("common part", "isotropic", "all alike", "two numbers")


@pytest.mark.parametrize("kind", KINDS_OF_VECTORS)
def test_the_embedding_index_finds_what_a_full_product_finds(kind: str) -> None:
    vectors = related_vectors(kind)
    cosines = cosines_of(vectors)
    wanted = np.random.default_rng(1).random(150) < 0.8
    with closing(EmbeddingIndex(vectors, 0.9)) as index:
        found, apart = index.nearest(100, 150, wanted)
        rows, others, between = index.within(50, 150)
    for row, (other, distance) in enumerate(zip(found.tolist(), apart.tolist(), strict=True), 100):
        reached = [other for other in range(100) if wanted[other] and cosines[row, other] >= 0.9]
        assert other == max(reached, key=lambda o: cosines[row, o], default=-1)
        assert distance == pytest.approx(1 - cosines[row, other] if reached else np.inf, abs=1e-12)
    pairs = {(i, j) for i in range(50, 150) for j in range(50, i) if cosines[i, j] >= 0.9}
    assert set(zip(rows.tolist(), others.tolist(), strict=True)) == pairs
    assert np.allclose(between, [1 - cosines[i, j] for i, j in zip(rows, others, strict=True)], atol=1e-12)


def test_a_cosine_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"above -1 and at most 1, got 1\.5"):
        EmbeddingIndex(unit(np.ones((2, 3))), 1.5)


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


def test_rows_that_stay_are_not_in_the_answer() -> None:
    twins = find_twins(marks([0, 1, 0xF0F0]), hash_bits=2, cosine=0.9)
    assert (len(twins), list(twins), 0 in twins, 2 in twins) == (1, [1], False, False)
    assert twins.places(np.array([0, 1, 2, 9])).tolist() == [-1, 0, -1, -1]
    with pytest.raises(KeyError):
        twins[2]


def plain_twins(given_marks: Marks, hash_bits: int, cosine: float) -> dict[int, tuple[int, str, float]]:
    """The rule as it is written, comparing every picture with all that stay before it."""
    hashes, mirrored = given_marks.hashes[:], given_marks.mirrored[:]
    bits = np.minimum(bits_between(hashes, hashes), bits_between(mirrored, hashes)).tolist()
    apart = None if given_marks.embeddings is None else (1 - cosines_of(given_marks.embeddings[:])).tolist()
    sha256 = given_marks.sha256[:].tolist()
    stay: list[int] = list(range(given_marks.fixed))
    gone: dict[int, tuple[int, str, float]] = {}
    for row in range(given_marks.fixed, len(sha256)):
        same = [(0.0, other) for other in stay if sha256[other] == sha256[row]]
        near = [(float(bits[row][other]), other) for other in stay if bits[row][other] <= hash_bits]
        alike = [(apart[row][other], other) for other in stay if apart[row][other] <= 1 - cosine] if apart else []
        for kind, found in (("exact", same), ("hash", near), ("embedding", alike)):
            if found:
                gone[row] = (min(found)[1], kind, max(0.0, min(found)[0]))
                break
        else:
            stay.append(row)
    return gone


def few_photos(seed: int) -> tuple[Marks, int, float]:
    """Random marks of pictures that are often near one another, and limits: every kind of tie comes about."""
    rng = np.random.default_rng(seed)
    rows, words, centres = int(rng.integers(1, 120)), int(rng.choice([1, 3, 4, 8])), int(rng.integers(1, 20))
    photos = rng.integers(0, 1 << 16, (centres, words), dtype=np.uint16)

    def near_photos() -> NDArray[np.uint16]:
        flips = (1 << rng.integers(0, 16, (rows, words))) * (rng.random((rows, words)) < 2 / words)
        return photos[rng.integers(0, centres, rows)] ^ flips.astype(np.uint16)

    vectors = None
    if seed % 3:
        width, spread = int(rng.choice([2, 12, 150])), float(rng.choice([0.05, 0.2, 1.0]))
        vectors = unit(
            rng.normal(size=(centres, width))[rng.integers(0, centres, rows)]
            + rng.normal(size=(rows, width)) * spread / np.sqrt(width)
        )
    names = np.array([f"{n}" for n in rng.integers(0, 2 * rows, rows)], "S32")
    fixed = int(rng.integers(0, rows + 1)) if seed % 2 else 0
    limits = int(rng.integers(0, 6)), float(rng.choice([0.5, 0.9, 0.97]))
    return Marks(names, near_photos(), near_photos(), vectors, fixed), *limits


@pytest.mark.parametrize("hundred", range(3))
def test_the_decision_is_that_of_comparing_all_with_all_wherever_the_rows_are_cut(hundred: int) -> None:
    kinds: set[str] = set()
    for seed in range(100 * hundred, 100 * hundred + 100):
        given_marks, bits, cosine = few_photos(seed)
        expected = plain_twins(given_marks, bits, cosine)
        twins = find_twins(given_marks, hash_bits=bits, cosine=cosine, segment=20 + seed % 41)
        assert {row: (twin.row, twin.kind) for row, twin in twins.items()} == {r: e[:2] for r, e in expected.items()}
        assert [twin.distance for twin in twins.values()] == pytest.approx([e[2] for e in expected.values()], abs=1e-12)
        kinds |= {twin.kind for twin in twins.values()}
    assert kinds == {"exact", "hash", "embedding"}


def test_the_decision_does_not_depend_on_blocks_either() -> None:
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 1 << 16, (300, 4), dtype=np.uint16)
    hashes, mirrored = (
        centres[rng.integers(0, 300, 1500)] ^ (1 << rng.integers(0, 16, (1500, 4))).astype(np.uint16) for _ in range(2)
    )
    vectors = unit(1 + rng.normal(size=(1500, 12)))
    given_marks = Marks(np.array([f"{n}" for n in rng.integers(0, 3000, 1500)], "S32"), hashes, mirrored, vectors, 20)
    twins = find_twins(given_marks, hash_bits=6, cosine=0.98)
    expected = plain_twins(given_marks, 6, 0.98)
    assert {row: (twin.row, twin.kind) for row, twin in twins.items()} == {r: e[:2] for r, e in expected.items()}
    assert 1500 - len(twins) > 300  # more rows stay than are decided at once


def test_no_pictures_and_one_picture_have_no_twins() -> None:
    assert find_twins(marks([5]), hash_bits=2, cosine=0.9) == {}
    nothing = Marks(np.zeros(0, "S32"), np.zeros((0, 4), np.uint16), np.zeros((0, 4), np.uint16), None, 0)
    assert find_twins(nothing, hash_bits=2, cosine=0.9) == {}


def test_marks_in_files_give_what_marks_in_arrays_give(tmp_path: Path) -> None:
    given_marks, bits, cosine = few_photos(1)
    rows = np.arange(len(given_marks.sha256))
    files = []
    for values in (given_marks.sha256, given_marks.hashes, given_marks.mirrored, given_marks.embeddings):
        assert values is not None
        part = values[:]
        files.append(RowFile(len(rows), part.shape[1] if part.ndim == 2 else None, part.dtype, tmp_path))
        files[-1].put(rows[::-1], part[::-1])
    stored = Marks(*files, given_marks.fixed)
    found = find_twins(stored, hash_bits=bits, cosine=cosine, folder=tmp_path, segment=30)
    assert dict(found) == dict(find_twins(given_marks, hash_bits=bits, cosine=cosine))
    for file in files:
        file.close()
    assert not list(tmp_path.iterdir())


# Rows in files


@pytest.fixture
def rows_in_file(tmp_path: Path) -> Iterator[RowFile]:
    with closing(RowFile(10, 3, np.float16, tmp_path)) as file:
        yield file


def test_rows_come_out_as_they_were_put_in_whatever_the_order(rows_in_file: RowFile) -> None:
    values = np.arange(30).reshape(10, 3).astype(np.float16)
    order = np.random.default_rng(0).permutation(10)
    rows_in_file.put(order[:4], values[order[:4]])
    rows_in_file.put(order[4:], values[order[4:]])
    assert len(rows_in_file) == 10
    assert np.array_equal(rows_in_file[:], values)
    assert np.array_equal(rows_in_file[7:20], values[7:])
    assert rows_in_file[5:5].shape == (0, 3)


def test_rows_that_were_never_put_are_zero_and_none_may_be_put(rows_in_file: RowFile) -> None:
    rows_in_file.put(np.zeros(0, np.int64), np.zeros((0, 3), np.float16))
    assert not rows_in_file[:].any()


def test_a_file_that_was_cut_short_is_told(rows_in_file: RowFile) -> None:
    rows_in_file._file.truncate(7)
    with pytest.raises(OSError, match="expected 10 rows in a temporary file, got fewer"):
        rows_in_file[0:10]


def test_texts_of_any_length_and_script_come_out_by_row(tmp_path: Path) -> None:
    with closing(TextFile(5, tmp_path)) as file:
        file.put(np.array([3, 1]), ["ein Käfer.png", ""])
        file.put(np.array([0]), ["虫/1.jpg"])
        assert file[np.array([1, 0, 3, 4, 0])] == ["", "虫/1.jpg", "ein Käfer.png", "", "虫/1.jpg"]
    assert not list(tmp_path.iterdir())
