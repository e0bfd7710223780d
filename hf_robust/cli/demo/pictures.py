"""Miniatures of every benchmark in the layout of its official archive; illustrations, not benchmark data."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter, ImageOps

from ... import labels
from . import drawing, photos

SIDE = 320
QUALITY = 92
README = (
    "Miniature made by `hf-robust demo` from photos in installed Python packages and drawn patterns. "
    "It has the layout of {name} and shows how the tools work; numbers on it are not benchmark results.\n"
)

# Numbers of the photos (see photos.PHOTOS) whose class is one of ImageNet-A's 200.
_A_PHOTOS = (2, 6, 7, 15, 17, 18)

# Parts of a photo that show the surroundings only: number of the photo, what is seen, boxes as fractions.
_Box = tuple[float, float, float, float]
_CONTEXTS: tuple[tuple[int, str, tuple[_Box, _Box]], ...] = (
    (3, "leaves", ((0.00, 0.72, 0.28, 1.00), (0.75, 0.00, 1.00, 0.25))),
    (6, "gravel", ((0.04, 0.72, 0.30, 0.98), (0.01, 0.73, 0.25, 0.97))),
    (8, "trees", ((0.00, 0.00, 0.52, 0.52), (0.01, 0.05, 0.46, 0.50))),
    (14, "cables", ((0.00, 0.46, 0.32, 0.78), (0.00, 0.56, 0.44, 1.00))),
    (15, "lawn", ((0.66, 0.66, 1.00, 1.00), (0.00, 0.77, 0.23, 1.00))),
    (17, "haze", ((0.00, 0.66, 0.34, 1.00), (0.25, 0.00, 0.55, 0.30))),
    (18, "leaf", ((0.62, 0.60, 1.00, 0.98), (0.00, 0.00, 0.24, 0.24))),
    (19, "sand", ((0.55, 0.01, 0.79, 0.25), (0.52, 0.66, 0.86, 1.00))),
    (20, "saucer", ((0.57, 0.71, 0.76, 0.99), (0.47, 0.69, 0.67, 1.00))),
)

# Photo, category folder of ImageNet-D, outline of the object as fractions.
_OBJECTS: tuple[tuple[int, str, tuple[tuple[float, float], ...]], ...] = (
    (1, "chair", ((0.27, 0.35), (0.69, 0.33), (0.70, 0.99), (0.30, 0.99), (0.33, 0.72))),
    (9, "bottle_cap", ((0.24, 0.22), (0.48, 0.16), (0.74, 0.23), (0.90, 0.44), (0.86, 0.66), (0.76, 0.80), (0.55, 0.90),
                       (0.30, 0.84), (0.13, 0.68), (0.08, 0.50), (0.14, 0.34))),
    (11, "dress_shoe_men", ((0.00, 0.24), (0.25, 0.24), (0.60, 0.17), (0.75, 0.18), (1.00, 0.30), (1.00, 0.62),
                            (0.80, 0.66), (0.30, 0.66), (0.00, 0.64))),
)  # fmt: skip

# Pictures of none of the 1,000 classes: lemma, class of ImageNet-O it is taken for, how confidently (softmax over the
# 200 classes), and the picture in a package, or none where it is drawn. Class and confidence as measured with
# EfficientNet-Lite0, the demo's classifier, where the real set used a ResNet-50.
_OUTSIDE: tuple[tuple[str, str, float, tuple[str, str] | None], ...] = (
    ("brickwork", "n03733281", 0.4901, ("skimage", "data/brick.png")),
    ("turf", "n02454379", 0.1459, ("skimage", "data/grass.png")),
    ("gravel", "n03223299", 0.1183, ("skimage", "data/gravel.png")),
    ("coin", "n09229709", 0.1853, ("skimage", "data/coins.png")),
    ("moon", "n09229709", 0.2847, ("skimage", "data/moon.png")),
    ("galaxy", "n09229709", 0.2573, ("skimage", "data/hubble_deep_field.jpg")),
    ("tissue", "n01917289", 0.2739, ("skimage", "data/ihc.png")),
    ("retina", "n03724870", 0.3505, ("skimage", "data/retina.jpg")),
    ("phantom", "n03724870", 0.1214, ("skimage", "data/phantom.png")),
    ("print", "n06785654", 0.2592, ("skimage", "data/page.png")),
    ("dahlia", "n13052670", 0.2034, ("sklearn", "datasets/images/flower.jpg")),
    ("stripe", "n03291819", 0.1328, None),
    ("polka_dot", "n03530642", 0.5056, None),
    ("ripple", "n03733281", 0.9926, None),
    ("marble", "n01917289", 0.5251, None),
    ("mist", "n03445777", 0.0944, None),
)


def draw(folder: Path) -> dict[str, Path]:
    """The folder of each miniature, by data set name: about 120 pictures in all, the same bytes on every call.

    Writes `folder/<name>/` for imagenet-val, imagenet-a, imagenet-o, spurious-imagenet and imagenet-d, in the layout of
    the official archives, to be built with allow_incomplete. The spurious classes are those of the photos at hand, not
    the official 100. An earlier miniature is replaced; FileExistsError where a folder holds anything else, ImportError
    where the demo extra is not installed.
    """
    makers = {
        "imagenet-val": _validation,
        "imagenet-a": _harder,
        "imagenet-o": _outside,
        "spurious-imagenet": _contexts,
        "imagenet-d": _composites,
    }
    for photo in photos.PHOTOS:
        photo.path.stat()  # a missing extra is told before anything is written
    for name in makers:
        _clear(folder / name, README.format(name=name))
    for name, make in makers.items():
        make(folder / name)
    return {name: folder / name for name in makers}


def _clear(folder: Path, readme: str) -> None:
    note = folder / "README.txt"
    ours = note.is_file() and note.read_text(encoding="utf-8", errors="replace") == readme
    if folder.exists() and not ours and any(folder.iterdir()):
        raise FileExistsError(
            f"expected no folder or an earlier miniature at {folder}, got other files: choose another folder"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    note.write_text(readme, encoding="utf-8")


def _save(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        picture.save(path, format="PNG")
    else:
        picture.save(path, format="JPEG", quality=QUALITY)


def _wnid(photo: photos.Photo) -> str:
    return labels.imagenet_1k().wnids[photo.index]


def _photo(number: int) -> Image.Image:
    return photos.square(photos.load(photos.PHOTOS[number].path, 2 * SIDE), SIDE)


def _packaged(package: str, name: str) -> Image.Image:
    return photos.square(photos.load(photos.package_file(package, name), 2 * SIDE), SIDE)


def _validation(folder: Path) -> None:
    """Each labelled photo as it is, and mirrored: two rows a photo."""
    for number, photo in enumerate(photos.PHOTOS):
        place = folder / _wnid(photo)
        place.mkdir(exist_ok=True)
        shutil.copyfile(photo.path, place / f"photo_{number:02d}{photo.path.suffix}")
        _save(ImageOps.mirror(photos.load(photo.path, SIDE)), place / f"photo_{number:02d}_mirrored.jpg")


def _harder(folder: Path) -> None:
    """Photos of ImageNet-A's classes made hard. No network filtered them: the fields of the name are placeholders."""
    extensions = ("jpg", "jpg", "jpeg", "JPEG")  # the archive has all three
    for number in _A_PHOTOS:
        for i, picture in enumerate(_hard_variants(_photo(number), seed=number)):
            name = f"0.0_not measured _ not measured {number}-{i}_0.0.{extensions[i]}"
            _save(picture, folder / _wnid(photos.PHOTOS[number]) / name)


def _hard_variants(photo: Image.Image, *, seed: int) -> tuple[Image.Image, ...]:
    small = drawing.scene(SIDE, seed=seed, above=(150, 180, 210), below=(120, 110, 80))
    patch = photo.resize((SIDE // 3, SIDE // 3), Image.Resampling.BICUBIC)
    small.paste(patch, (SIDE // 6, SIDE // 2), _oval(SIDE // 3))
    night = drawing.tinted(photo.rotate(180), (5, 5, 40), (120, 160, 255))
    close = photos.square(photo, SIDE, box=(0.30, 0.30, 0.65, 0.65))
    fence = Image.composite(
        Image.new("RGB", photo.size, (70, 60, 50)), photo.rotate(90), _mask(drawing.stripes(SIDE, count=9, angle=30))
    )
    return small, night, close, fence


def _mask(field: drawing.Field) -> Image.Image:
    return drawing.ramp(field, (0, 0, 0), (255, 255, 255)).convert("L")


def _oval(side: int) -> Image.Image:
    mask = Image.new("L", (side, side), 0)
    ImageDraw.Draw(mask).ellipse((2, 2, side - 3, side - 3), fill=255)
    return mask.filter(ImageFilter.GaussianBlur(side / 30))


def _outside(folder: Path) -> None:
    """Pictures of none of the 1,000 classes, under the class they are taken for."""
    drawn = _patterns()
    for lemma, wnid, confidence, shipped in _OUTSIDE:
        picture = _packaged(*shipped) if shipped else drawn[lemma]
        _save(picture, folder / wnid / f"{lemma}_{confidence}.JPEG")


def _patterns() -> dict[str, Image.Image]:
    return {
        "stripe": drawing.ramp(drawing.stripes(SIDE, count=7, angle=35), (200, 30, 40), (250, 240, 220)),
        "polka_dot": drawing.ramp(drawing.dots(SIDE, count=9), (30, 40, 110), (245, 245, 245)),
        "ripple": drawing.ramp(drawing.rings(SIDE, count=9), (20, 60, 90), (190, 225, 235)),
        "marble": drawing.ramp(drawing.marble(SIDE, seed=2), (90, 80, 90), (240, 235, 230)),
        "mist": drawing.ramp(drawing.clouds(SIDE, seed=9, cells=4), (90, 110, 140), (235, 235, 240)),
    }


def _contexts(folder: Path) -> None:
    """Square pictures of what surrounds an object, without the object: two parts of a photo."""
    for number, seen, boxes in _CONTEXTS:
        photo = photos.PHOTOS[number]
        place = folder / "images" / f"mini_context_{photo.index}_{seen}_0"
        for i, box in enumerate(boxes):
            _save(photos.square(photos.load(photo.path, 2 * SIDE), SIDE, box=box), place / f"{i}.jpg")


def _composites(folder: Path) -> None:
    """Objects cut out of photos, on foreign backgrounds, with foreign textures and of foreign materials."""
    sea = drawing.scene(SIDE, seed=3, above=(170, 200, 235), below=(30, 90, 140))
    wall = drawing.tinted(_packaged("skimage", "data/brick.png"), (60, 20, 10), (220, 120, 90))
    plain = drawing.ramp(drawing.clouds(SIDE, seed=5, cells=2), (150, 150, 150), (205, 205, 205))
    striped = drawing.ramp(drawing.stripes(SIDE, count=8, angle=20), (40, 60, 160), (250, 250, 250))
    dotted = drawing.ramp(drawing.dots(SIDE, count=12), (250, 220, 60), (40, 120, 60))
    for number, category, outline in _OBJECTS:
        photo, mask = _photo(number), _outline(outline)
        variants = {
            "background": (_pasted(photo, mask, sea), _pasted(photo, mask, wall)),
            "texture": tuple(_pasted(Image.blend(photo, pattern, 0.5), mask, plain) for pattern in (striped, dotted)),
            "material": (
                _pasted(drawing.tinted(photo, (50, 25, 0), (255, 225, 120)), mask, plain),  # brass
                _pasted(drawing.tinted(photo, (20, 60, 90), (235, 250, 255)), mask, plain),  # ice
            ),
        }
        for kind, pictures in variants.items():
            for i, picture in enumerate(pictures):
                name = hashlib.sha256(f"{kind}/{category}/{i}".encode()).hexdigest()[:22]
                _save(picture, folder / kind / category / f"{name}.png")


def _outline(points: tuple[tuple[float, float], ...]) -> Image.Image:
    mask = Image.new("L", (SIDE, SIDE), 0)
    ImageDraw.Draw(mask).polygon([(x * SIDE, y * SIDE) for x, y in points], fill=255)
    return mask.filter(ImageFilter.GaussianBlur(2))


def _pasted(thing: Image.Image, mask: Image.Image, background: Image.Image) -> Image.Image:
    return Image.composite(thing, background, mask)
