"""Folders of strangers: pictures that decode to something else than they show, names that are no pictures at all."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_runs import A_AND_O, Sets, make_sets, run, write, write_validation

from hf_robust.cli import main
from hf_robust.data import PictureError, decode, open_folder
from hf_robust.health import look_at
from hf_robust.health.pictures import look
from hf_robust.predictions.read import read_source
from hf_robust.regenerate.inspect_picture import inspect_picture
from hf_robust.runner.loop import PictureFailedError

GREY = np.add.outer(np.arange(64) * 2, np.arange(80)).astype(np.uint8)  # 80 wide, 64 high, 0 to 205
COLOUR = np.dstack([GREY, GREY[::-1], 255 - GREY])
HUGE = (64 << 20) + 1  # one byte more than a picture may take


def bytes_of(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def tiff(data: bytes, *, bits: int, white_is_zero: bool = False) -> bytes:
    """A grey TIFF of 80 x 64 pixels around packed values."""
    tags = [
        (256, 4, 80), (257, 4, 64), (258, 3, bits), (259, 3, 1), (262, 3, int(not white_is_zero)), (273, 4, 200),
        (277, 3, 1), (278, 4, 64), (279, 4, len(data)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    return head.ljust(200, b"\0") + data


def twelve_bits(values: np.ndarray[Any, np.dtype[np.uint16]]) -> bytes:
    """Two values of 12 bits in three bytes, the high bits first."""
    first, second = values.reshape(-1, 2).T.astype(int)
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=1)
    return packed.astype(np.uint8).tobytes()


# --- pixels


def test_12_bit_grey_is_brought_to_8_bits_and_not_left_nearly_black() -> None:
    deep = GREY.astype(np.uint16) * 16 + 7  # the upper eight of twelve bits are GREY
    pixels = np.asarray(decode(tiff(twelve_bits(deep), bits=12)))
    np.testing.assert_array_equal(pixels, np.dstack([GREY] * 3))


@pytest.mark.parametrize("bits", [8, 16])
def test_grey_whose_zero_is_white_is_no_negative(bits: int) -> None:
    values = GREY if bits == 8 else (GREY.astype("<u2") * 257)
    pixels = np.asarray(decode(tiff(values.tobytes(), bits=bits, white_is_zero=True)))
    np.testing.assert_array_equal(pixels, np.dstack([255 - GREY] * 3))


def test_grey_from_0_to_1_is_refused_and_not_taken_for_black() -> None:
    with pytest.raises(PictureError, match=r"grey values from 0 to 0\.803922, which no 8-bit picture stands for"):
        decode(bytes_of(Image.fromarray(GREY.astype(np.float32) / 255), "TIFF"))  # 205 / 255 = 0.803922


@pytest.mark.parametrize("size", [(65_535, 1), (1, 65_535), (101, 1)])
def test_a_picture_that_resizing_would_blow_up_is_refused(size: tuple[int, int]) -> None:
    # 65,535 x 1 with the short side brought to 256 is 16,776,960 x 256 pixels: 13 GB
    with pytest.raises(PictureError, match=rf"{size[0]} x {size[1]} pixels, more than 100 times as long as wide"):
        decode(bytes_of(Image.new("RGB", size)))
    assert decode(bytes_of(Image.new("RGB", (100, 1)))).size == (100, 1)


# --- health and pools


def broken_second_frame() -> bytes:
    """A TIFF whose second directory says nothing: the first picture is whole."""
    whole = bytearray(tiff(GREY.tobytes(), bits=8))
    whole[8 + 2 + 9 * 12 : 8 + 2 + 9 * 12 + 4] = struct.pack("<I", len(whole))
    return bytes(whole) + struct.pack("<HI", 0, 0)


def test_a_broken_second_frame_is_a_fault_and_no_crash() -> None:
    seen = look(broken_second_frame())
    assert seen.faults == ("animated: frames that cannot be read (TypeError); models see the first",)
    assert seen.bits is not None


def test_a_photo_with_a_preview_behind_it_is_not_called_animated() -> None:
    photo = Image.fromarray(COLOUR)
    content = bytes_of(photo, "MPO", save_all=True, append_images=[photo.resize((40, 32))])
    assert look(content).faults == ()
    assert inspect_picture(content, min_side=1).trouble is None


@pytest.mark.parametrize("kind", ["ICO", "PPM", "JPEG2000", "EPS"])
def test_a_pool_opens_no_format_that_no_benchmark_opens(kind: str) -> None:
    seen = inspect_picture(bytes_of(Image.fromarray(COLOUR), kind), min_side=1)
    assert (seen.format, seen.trouble, seen.detail) == (None, "unreadable", "no picture format that Pillow knows")


def strange(folder: Path) -> Path:
    """A picture, one under a name that is no UTF-8, a pipe, a link to nothing, a link to itself, a huge empty file."""
    content = bytes_of(Image.fromarray(COLOUR))
    write(folder / "good.png", content)
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png")).write_bytes(content)
    os.mkfifo(folder / "pipe.png")
    (folder / "nothing.png").symlink_to("nowhere")
    (folder / "itself.png").symlink_to("itself.png")
    with (folder / "huge.png").open("wb") as stream:
        stream.truncate(200 << 30)  # holes: it takes no room
    return folder


def faults_of(folder: Path) -> tuple[Sequence[str], dict[str, str]]:
    rows = open_folder(folder)
    found = look_at(rows, lambda done, total: None)
    return rows.table.ids, {rows.table.ids[i]: fault for i, fault in found.faults}


def test_files_that_can_be_no_picture_are_faults_of_a_folder_and_are_not_left_out(tmp_path: Path) -> None:
    ids, faults = faults_of(strange(tmp_path))
    assert ids == ("caf\\xe9.png", "good.png", "huge.png", "itself.png", "nothing.png", "pipe.png")
    no_file = dict.fromkeys(("itself.png", "nothing.png", "pipe.png"), "unreadable: no plain file")
    assert faults == no_file | {"huge.png": "unreadable: 214,748,364,800 bytes, more than the 64 MiB that are safe"}


def test_health_writes_its_page_about_such_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [str(strange(tmp_path / name)) for name in ("set", "reference")]
    assert main(["health", places[0], "--reference", places[1], "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "health.html").read_text(encoding="utf-8")
    assert "no plain file" in page
    assert "faulty files" in capsys.readouterr().out


# --- validation pictures


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return make_sets(tmp_path_factory.mktemp("sets"), a=3, o=3)


def test_a_file_too_large_for_a_picture_is_counted_and_never_read(sets: Sets, tmp_path: Path) -> None:
    mine = replace(sets, validation=write_validation(tmp_path / "validation", A_AND_O[:1]))
    with (mine.validation / A_AND_O[0] / "ILSVRC2012_val_00000002.JPEG").open("wb") as stream:
        stream.truncate(HUGE)
    with pytest.raises(
        PictureFailedError, match="'ILSVRC2012_val_00000002' of imagenet-val, got 67,108,865 bytes, more"
    ):
        run(mine, tmp_path / "runs", "plain", "imagenet-val")
    read = read_source(run(mine, tmp_path / "runs", "plain", "imagenet-val", on_error="record") / "imagenet-val.model")
    assert ([key for key, _ in read.failed], len(read.outputs)) == (["ILSVRC2012_val_00000002"], 3 - 1)


def test_names_that_are_no_text_are_stored_as_text(sets: Sets, tmp_path: Path) -> None:
    mine = replace(sets, validation=write_validation(tmp_path / "validation", A_AND_O[:1]))
    place = os.fsencode(mine.validation / A_AND_O[0]) + b"/\xff\xfe.JPEG"
    Path(os.fsdecode(place)).write_bytes(bytes_of(Image.fromarray(COLOUR), "JPEG"))
    read = read_source(run(mine, tmp_path / "runs", "plain", "imagenet-val") / "imagenet-val.model")
    assert f"{A_AND_O[0]}/\\xff\\xfe.JPEG" in read.outputs.ids
