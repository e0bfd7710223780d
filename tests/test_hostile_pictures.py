"""Pictures as they come: every kind that Pillow writes, damaged ones, and files that are none."""

from __future__ import annotations

import io
import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps
from tiny_runs import A_AND_O, Sets, make_sets, run, write, write_validation

from hf_robust.cli import main
from hf_robust.data import PictureError, decode
from hf_robust.predictions.read import read_source
from hf_robust.runner.loop import PictureFailedError

GREY = np.add.outer(np.arange(20) * 8, np.arange(30) * 3).astype(np.uint8)  # 30 wide, 20 high, 0 to 239
COLOUR = np.dstack([GREY, GREY[::-1], 255 - GREY])
ORIENTATION = 0x0112


def bytes_of(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def pixels(data: bytes, **options: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    picture = decode(data, **options)
    assert picture.mode == "RGB"
    return np.asarray(picture)


def jpeg(quality: int = 95, **options: Any) -> bytes:
    return bytes_of(Image.fromarray(COLOUR), "JPEG", quality=quality, **options)


def with_exif(block: bytes) -> bytes:
    return jpeg(exif=b"Exif\0\0" + block)


def bomb(side: int) -> bytes:
    """A PNG of side x side white pixels, one bit each: few bytes in the file."""
    row = zlib.compressobj(9)
    body = b"".join(row.compress(b"\0" + b"\xff" * (side // 8)) for _ in range(side)) + row.flush()

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


# --- every kind of picture keeps its values


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_brought_to_8_bits_and_not_cut_off_at_255(kind: str) -> None:
    deep = GREY.astype(np.uint16) * 257  # 0 to 65,535 as 0 to 255
    np.testing.assert_array_equal(pixels(bytes_of(Image.fromarray(deep), kind)), np.dstack([GREY] * 3))


def test_values_that_no_8_bit_picture_stands_for_are_refused() -> None:
    good = bytes_of(Image.fromarray(GREY.astype(np.float32)), "TIFF")
    np.testing.assert_array_equal(pixels(good), np.dstack([GREY] * 3))
    for values in (GREY.astype(np.int32) * 257, GREY.astype(np.float32) - 1, np.full((2, 2), np.nan, np.float32)):
        with pytest.raises(PictureError, match=r"grey values from .* to .*, which no 8-bit picture stands for"):
            decode(bytes_of(Image.fromarray(values), "TIFF"))


def test_alpha_is_left_out_and_grey_is_repeated() -> None:
    seen = Image.fromarray(np.dstack([COLOUR, GREY]))
    np.testing.assert_array_equal(pixels(bytes_of(seen)), COLOUR)
    np.testing.assert_array_equal(pixels(bytes_of(Image.fromarray(GREY))), np.dstack([GREY] * 3))
    np.testing.assert_array_equal(pixels(bytes_of(Image.fromarray(GREY).convert("LA"))), np.dstack([GREY] * 3))


@pytest.mark.parametrize("transparency", [None, 3, bytes(range(256))])
def test_a_palette_gives_its_colours_with_any_transparency_and_no_warning(transparency: int | bytes | None) -> None:
    picture = Image.fromarray(COLOUR).quantize(256)
    options = {} if transparency is None else {"transparency": transparency}
    expected = np.asarray(picture.getpalette(), np.uint8).reshape(-1, 3)[np.asarray(picture)]
    np.testing.assert_array_equal(pixels(bytes_of(picture, **options)), expected)


def test_cmyk_becomes_rgb() -> None:
    inks = Image.fromarray(COLOUR).convert("CMYK")
    np.testing.assert_allclose(pixels(bytes_of(inks, "TIFF")), COLOUR, atol=1)
    assert np.abs(pixels(bytes_of(inks, "JPEG", quality=100)).astype(int) - COLOUR).mean() < 4


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_is_its_first_picture(kind: str) -> None:
    red = Image.new("RGB", (30, 20), "red")
    options = {"lossless": True} if kind == "WEBP" else {}
    data = bytes_of(red, kind, save_all=True, append_images=[Image.new("RGB", (30, 20), "blue")], **options)
    assert set(map(tuple, pixels(data).reshape(-1, 3).tolist())) == {(255, 0, 0)}


def test_a_name_with_the_wrong_ending_says_nothing_about_the_bytes(sets: Sets, tmp_path: Path) -> None:
    mine = replace(sets, validation=write_validation(tmp_path / "validation"))
    write(mine.validation / A_AND_O[0] / "ILSVRC2012_val_00000002.JPEG", bytes_of(Image.fromarray(COLOUR), "WEBP"))
    assert not read_source(run(mine, tmp_path / "runs", "plain", "imagenet-a") / "imagenet-val.model").failed


# --- what is no picture


NOT_PICTURES = {
    "zero bytes": (b"", "no picture format that Pillow knows"),
    "html": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "no picture format that Pillow knows"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>', "no picture format"),
    "the header only": (jpeg()[:20], "no picture format that Pillow knows"),
    "half a jpeg": (jpeg()[:-100], "image file is truncated"),
    "half a png": (bytes_of(Image.fromarray(COLOUR))[:-40], "truncated|broken PNG|IDAT"),
    "a bomb of 20,000 x 20,000": (bomb(20_000), "DecompressionBombError: Image size .400000000 pixels"),
    "postscript": (bytes_of(Image.fromarray(COLOUR), "EPS"), "no picture format that Pillow knows"),
}


@pytest.mark.parametrize(("data", "reason"), NOT_PICTURES.values(), ids=NOT_PICTURES)
def test_what_is_no_picture_stops_the_run_with_its_name_or_is_counted(
    sets: Sets, tmp_path: Path, data: bytes, reason: str
) -> None:
    mine = replace(sets, validation=write_validation(tmp_path / "validation", A_AND_O[:1]))
    write(mine.validation / A_AND_O[0] / "ILSVRC2012_val_00000002.JPEG", data)
    with pytest.raises(PictureFailedError, match=rf"at id 'ILSVRC2012_val_00000002' of imagenet-val, got .*({reason})"):
        run(mine, tmp_path / "runs", "plain", "imagenet-val")
    read = read_source(run(mine, tmp_path / "runs", "plain", "imagenet-val", on_error="record") / "imagenet-val.model")
    assert ([key for key, _ in read.failed], len(read.outputs)) == (["ILSVRC2012_val_00000002"], 3 - 1)


def test_half_a_picture_is_refused_even_where_a_library_lets_pillow_fill_it_with_grey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(PictureError, match="image file is truncated"):
        decode(jpeg()[:-100])


@given(st.data())
def test_any_damage_gives_a_picture_or_one_kind_of_error(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([jpeg(), bytes_of(Image.fromarray(COLOUR)), with_exif(b"MM\0*\0\0\0\x08\0\1")]))
    broken = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, max(len(broken) - 1, 0)), max_size=8)) if broken else ():
        broken[place] = data.draw(st.integers(0, 255))
    try:
        reason = decode(bytes(broken), exif=data.draw(st.sampled_from(["ignore", "apply"]))).mode
    except PictureError as error:
        reason = str(error)
    assert reason == "RGB" or " at 0x" not in reason  # a reason is the same in every process


# --- EXIF orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_orientation_is_ignored_unless_it_is_to_be_applied(kind: str, orientation: int) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    data = bytes_of(Image.fromarray(COLOUR), kind, exif=exif_of(orientation), **options)
    plain = pixels(bytes_of(Image.fromarray(COLOUR), kind, **options))
    np.testing.assert_array_equal(pixels(data), plain)
    seen = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    np.testing.assert_array_equal(pixels(data, exif="apply"), seen)
    assert seen.shape == ((30, 20, 3) if orientation > 4 else (20, 30, 3))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_turned_once_in_both_cases_as_its_format_says(orientation: int) -> None:
    data = bytes_of(Image.fromarray(COLOUR), "TIFF", exif=exif_of(orientation))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(pixels(data), expected)
    np.testing.assert_array_equal(pixels(data, exif="apply"), expected)


BROKEN_EXIF = {
    "no header": b"no TIFF header at all",
    "a directory beyond the end": b"II*\0\xff\xff\xff\xff",
    "nothing": b"",
    "entries that are not there": b"MM\0*\0\0\0\x08\xff\xff\x01\x12",
    "an orientation of 9": b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0\0\0\0\0",
    "an orientation of text": b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x02up\0\0\0\0\0\0",
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.filterwarnings("ignore:Metadata Warning")
@pytest.mark.parametrize("block", BROKEN_EXIF.values(), ids=BROKEN_EXIF)
def test_exif_that_cannot_be_read_turns_nothing_and_spoils_nothing(block: bytes) -> None:
    plain = pixels(jpeg())
    np.testing.assert_array_equal(pixels(with_exif(block)), plain)
    np.testing.assert_array_equal(pixels(with_exif(block), exif="apply"), plain)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return make_sets(tmp_path_factory.mktemp("sets"), o=9)


@pytest.fixture(scope="module")
def turned(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """The same with validation pictures of three classes, one of them stored upside down."""
    folder = write_validation(tmp_path_factory.mktemp("turned"), A_AND_O)
    path = folder / A_AND_O[0] / "ILSVRC2012_val_00000002.JPEG"
    upright = Image.open(path).convert("RGB")
    path.write_bytes(bytes_of(upright.transpose(Image.Transpose.ROTATE_180), "JPEG", quality=100, exif=exif_of(3)))
    return replace(sets, validation=folder)


def command(sets: Sets, out: Path, *more: str) -> list[str]:
    return [
        "evaluate", "--model", sets.model("plain"), "--benchmark", "imagenet-val", "--imagenet-val",
        str(sets.validation), "--out", str(out), "--device", "cpu", "--processes", "1", "--allow-chance", *more,
    ]  # fmt: skip


def test_applied_and_ignored_orientation_are_two_runs_and_every_result_says_which(
    turned: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(turned, tmp_path)) == 0
    assert main(command(turned, tmp_path, "--exif", "apply")) == 0
    results = json.loads((tmp_path / "results" / "results.json").read_text())["results"]
    said = {(r["run"], r["plan"]["exif"], r["protocol"]["preprocessing"]["test"]["exif"]) for r in results}
    assert [pair for _, *pair in sorted(said, key=lambda s: s[1])] == [["apply", "apply"], ["ignore", "ignore"]]
    assert len({name for name, *_ in said}) == 2
    noted = [r["plan"]["exif"] for r in results if any("EXIF orientation applied" in note for note in r["notes"])]
    assert noted == ["apply"] * (len(results) // 2)
    assert "EXIF orientation applied" in " ".join(capsys.readouterr().out.split())


def test_applied_orientation_changes_the_logits_of_the_turned_picture_and_of_no_other(
    turned: Sets, tmp_path: Path
) -> None:
    ignored, applied = (
        read_source(run(turned, tmp_path, "plain", "imagenet-val", exif=exif) / "imagenet-val.model").outputs
        for exif in ("ignore", "apply")
    )
    assert ignored.sha256 == applied.sha256
    changed = [
        i for i, a, b in zip(ignored.ids, ignored.logits, applied.logits, strict=True) if not np.array_equal(a, b)
    ]
    assert changed == ["ILSVRC2012_val_00000002"]


def test_another_word_for_the_orientation_is_refused(turned: Sets, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(command(turned, tmp_path, "--exif", "yes"))
    assert "--exif: invalid choice: 'yes'" in capsys.readouterr().err
