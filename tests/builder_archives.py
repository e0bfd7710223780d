"""Small archives in the official layouts, for the tests of the builders."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from hf_robust.builders import find

Files = Mapping[str, bytes]
ROOT = Path(__file__).resolve().parents[1]


def picture(seed: int, *, size: tuple[int, int] = (12, 12), kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (seed % 256, seed // 256, 77)).save(stream, kind)
    return stream.getvalue()


def as_tar(path: Path, files: Files, *, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def as_targz(path: Path, files: Files) -> Path:
    return as_tar(path, files, mode="w:gz")


def as_zip(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def as_folder(path: Path, files: Files) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


A_FILES = {
    "imagenet-a/README.txt": b"about",
    "imagenet-a/n01531178/0.01_washbasin _ bucket_0.5.jpeg": picture(3),
    "imagenet-a/n01498041/0.000116_digital clock _ digital clock_0.865662.jpg": picture(1),
    "imagenet-a/n01498041/0.25_jack-o'-lantern _ box turtle_0.5.JPEG": picture(2),
}
MANY_FILES = {  # three record batches of ImageNet-A: 100 + 100 + 50
    f"imagenet-a/n01498041/0.{n:04d}_x _ y_0.5.jpg": picture(n, size=(8, 8 + n % 5)) for n in range(250)
}
O_FILES = {
    "imagenet-o/README.txt": b"about",
    "imagenet-o/n02786058/lass_lassie_young_girl_jeune_fille_0.9998679.JPEG": picture(1),
    "imagenet-o/n03196217/readout_read-out_0.9999783.JPEG": picture(2),
}
SPURIOUS_FILES = {
    "images/timestamp.txt": b"today",
    "images/spurious_class_0_component_12/aa.png": picture(1, kind="PNG"),
    "images/spurious_class_2_component_1/bb.png": picture(2, kind="PNG"),
}
D_FILES = {
    "background/alarm_clock/abcdefghijklmnopqrstu1.png": picture(1, kind="PNG"),
    "material/backpack/abcdefghijklmnopqrstu2.png": picture(2, kind="PNG"),
    "texture/alarm_clock/abcdefghijklmnopqrstu3.png": picture(3, kind="PNG"),
    "questions/background.csv": (
        b"image_dir\tgt_category\ttop1_pred_cate\ttop2_pred_cate\n"
        b"background/alarm_clock/abcdefghijklmnopqrstu1.png\talarm_clock\tbackpack\talarm_clock\n"
    ),
}
VAL_FILES = {
    "n01440764/ILSVRC2012_val_00000002.JPEG": picture(2),
    "n15075141/ILSVRC2012_val_00000001.JPEG": picture(1),
}
TRAIN_FILES = {"n01440764/n01440764_10026.JPEG": picture(1), "n01443537/n01443537_2.JPEG": picture(2)}
SETS: dict[str, Files] = {
    "imagenet-a": A_FILES,
    "imagenet-o": O_FILES,
    "spurious-imagenet": SPURIOUS_FILES,
    "imagenet-d": D_FILES,
    "imagenet-val": VAL_FILES,
    "imagenet-train": TRAIN_FILES,
}


def rows_of(name: str, out: Path) -> list[dict[str, object]]:
    from datasets import Image as ImageColumn

    splits = find(name, out=out).load()
    return [row for split in splits.values() for row in split.cast_column("image", ImageColumn(decode=False))]
