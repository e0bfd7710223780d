"""Scoring reads logits a few rows at a time: the same numbers, and memory that does not grow with the pictures."""

from __future__ import annotations

import gc
import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from run_folder import A, Source, scored, write_run

from hf_robust.benchmarks.views import Scored
from hf_robust.metrics import class_probability, hits, log_sum_exp, max_probability, softmax
from hf_robust.metrics.softmax import chosen_logit, highest_logit, leading, predicted
from hf_robust.ood_scores import fit as ood_fit
from hf_robust.ood_scores import rows as ood_rows
from hf_robust.ood_scores import score as ood_score
from hf_robust.predictions.parts import source_folder
from hf_robust.predictions.read import read_source
from hf_robust.schema import RowStore, StoredRows


def stored(rows: NDArray[np.float32], *, pieces: int = 3) -> StoredRows:
    """The rows in a temporary file, written in pieces."""
    store = RowStore(rows.shape[1])
    for piece in np.array_split(rows, pieces):
        store.append(piece)
    return store.rows()


def some_logits(n: int, width: int = 7) -> NDArray[np.float32]:
    """Few distinct values, so that there are ties, and columns without an output."""
    logits = np.random.default_rng(0).integers(-2, 3, (n, width)).astype(np.float32)
    logits[:, 3] = -np.inf
    return logits


def small_a(n: int) -> Source:
    labels = [A[i % 200] for i in range(n)]
    logits = np.random.default_rng(0).normal(0, 2, (n, 1000)).astype(np.float32)
    logits[np.arange(n), labels] += 6
    return Source("imagenet-a", [[k] for k in labels], logits)


@pytest.mark.parametrize(
    "key",
    [
        slice(None), slice(2, 9), slice(20, None), slice(0, 0), np.array([5, 4, 5, 19]), np.arange(20) % 3 == 1,
        np.zeros(20, bool), (slice(None), [4, 0]), (np.array([3, 1]), slice(1, 3)), (slice(1, 3), np.array([6])),
    ],
)  # fmt: skip
def test_rows_on_disk_are_indexed_as_an_array_is(key) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    mine, expected = stored(rows)[key], rows[key]
    assert (mine.shape, len(mine), mine.size) == (expected.shape, len(expected), expected.size)
    np.testing.assert_array_equal(np.asarray(mine), expected)
    assert np.asarray(mine, dtype=np.float64).dtype == np.float64


def test_views_of_views_count_from_the_view() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    np.testing.assert_array_equal(
        np.asarray(stored(rows)[::2][:, [5, 2, 0]][1:4][:, [2, 0]]), rows[[2, 4, 6]][:, [0, 5]]
    )


def test_a_single_row_is_taken_as_a_slice() -> None:
    with pytest.raises(IndexError, match="expected slices or arrays of positions, got 3: take i:i \\+ 1"):
        stored(np.zeros((5, 2), np.float32))[3]


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected float32 rows of width 3, got float32 of shape \(2, 4\)"):
        RowStore(3).append(np.zeros((2, 4), np.float32))


def test_a_disk_that_is_full_names_the_place_and_the_way_out() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = RowStore(1000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match=r"expected room for 400,000 bytes in .*; set TMPDIR to another disk"):
            store.append(np.zeros((100, 1000), np.float32))  # 100 * 1000 * 4 bytes
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_row_functions_do_not_depend_on_chunks_or_where_the_rows_lie(monkeypatch) -> None:
    logits, labels = some_logits(23), np.random.default_rng(1).integers(0, 7, (23, 2))
    functions = (
        predicted, highest_logit, log_sum_exp, max_probability,
        lambda z: leading(z, 5), lambda z: hits(z, labels, k=2),
        lambda z: class_probability(z, labels[:, 0]), lambda z: chosen_logit(z, labels[:, 0]),
        lambda z: ood_score("energy", logits=z), lambda z: ood_score("margin", logits=z),
    )  # fmt: skip
    whole = [function(logits) for function in functions]
    monkeypatch.setattr(softmax, "CHUNK_BYTES", 8 * 7 * 4)  # four rows
    for function, expected in zip(functions, whole, strict=True):
        np.testing.assert_array_equal(function(stored(logits)), expected)
        np.testing.assert_array_equal(function(logits), expected)
    np.testing.assert_array_equal(whole[0], logits.argmax(axis=1))
    np.testing.assert_array_equal(whole[4], np.argsort(-logits, axis=1, kind="stable")[:, :5])


def test_an_error_in_a_later_chunk_names_the_row_of_the_whole(monkeypatch) -> None:
    logits = some_logits(9)
    logits[8] = -np.inf
    monkeypatch.setattr(softmax, "CHUNK_BYTES", 8 * 7 * 4)
    with pytest.raises(ValueError, match="got only -inf at row 8"):
        log_sum_exp(stored(logits))


def test_a_source_reads_the_same_into_memory_and_onto_disk(tmp_path: Path) -> None:
    run = write_run(tmp_path, ["imagenet-a"], [small_a(250)])
    folder = source_folder(run, "imagenet-a", "model")
    memory, disk = (read_source(folder, A[:50], on_disk=where).outputs for where in (False, True))
    assert isinstance(memory.logit_rows, np.ndarray)
    assert isinstance(disk.logit_rows, StoredRows)
    assert (memory.ids, memory.sha256) == (disk.ids, disk.sha256)
    np.testing.assert_array_equal(memory.logits, disk.logits)
    np.testing.assert_array_equal(memory.log_normaliser, disk.log_normaliser)
    odd = np.arange(len(memory)) % 2 == 1
    one, other = (Scored(outputs.select(odd), A) for outputs in (memory, disk))
    np.testing.assert_array_equal(one.confidence, other.confidence)
    np.testing.assert_array_equal(one.logits, other.logits)
    assert one.correct.tolist() == other.correct.tolist()


def test_a_source_without_rows_reads_onto_disk_too(tmp_path: Path) -> None:
    run = write_run(tmp_path, ["imagenet-a"], [small_a(20)])
    read = read_source(source_folder(run, "imagenet-a", "model"), [999], on_disk=True).outputs
    assert (len(read), read.logits.shape) == (0, (0, 1000))


def test_peak_memory_does_not_grow_by_the_logits_of_more_pictures(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(softmax, "CHUNK_BYTES", 2**17)
    few, many = 500, 2500
    for n in (few, many):
        write_run(tmp_path / str(n), ["imagenet-a"], [small_a(n)])
    scored(tmp_path / str(few), replicates=0)  # what is read once and kept
    peaks = []
    for n in (few, many):
        gc.collect()
        tracemalloc.start()
        assert any(row["headline"] for row in scored(tmp_path / str(n), replicates=0))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < (many - few) * 1000  # bytes a picture; 1,000 float32 logits are 4,000


def test_anomaly_scores_of_logits_and_their_fits_do_not_read_all_rows_at_once(monkeypatch) -> None:
    monkeypatch.setattr(ood_rows, "CHUNK_BYTES", 2**17)
    logits = np.random.default_rng(0).normal(size=(4000, 500)).astype(np.float32)
    rows, labels = stored(logits), logits.argmax(axis=1)
    labels[::3] = 0
    for name in ("max_logit", "energy", "entropy", "margin", "gen", "temperature_scaled_msp"):
        tracemalloc.start()
        fitted = ood_fit(name, logits=rows, labels=labels) if name == "temperature_scaled_msp" else None
        values = ood_score(name, logits=rows, fit=fitted)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(values) == 4000
        assert peak < logits.nbytes / 4
