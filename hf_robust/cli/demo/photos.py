"""Photos that ship in the wheels of the demo extra, found without importing those packages."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

# foolbox/data/imagenet_<number>_<ImageNet-1k index>.jpg, by number. They are ImageNet pictures: copied from the
# installed wheel when the demo runs, never committed.
_FOOLBOX = (243, 559, 438, 990, 949, 853, 609, 609, 915, 455, 541, 630, 741, 471, 129, 99, 251, 22, 317, 305)
_ESPRESSO = 967


@dataclass(frozen=True)
class Photo:
    """A photo in a wheel and the ImageNet-1k index of what it shows."""

    package: str
    name: str
    index: int

    @property
    def path(self) -> Path:
        """Where the installed photo lies; ImportError where it is not installed."""
        return package_file(self.package, self.name)


PHOTOS = (
    *(Photo("foolbox", f"data/imagenet_{number:02d}_{index}.jpg", index) for number, index in enumerate(_FOOLBOX)),
    Photo("skimage", "data/coffee.png", _ESPRESSO),
)


def package_file(package: str, name: str) -> Path:
    """The file `name` in the folder of an installed package; ImportError says what to install where it is absent."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f'the demo takes photos from the package {package}: pip install "hf-robust[demo]"')
    path = Path(spec.submodule_search_locations[0], name)
    if not path.is_file():
        raise ImportError(
            f"expected the photo {name} in the installed package {package}, got no such file in "
            f'{spec.submodule_search_locations[0]}: pip install --force-reinstall "hf-robust[demo]"'
        )
    return path


def load(path: Path, side: int) -> Image.Image:
    """The picture as RGB, at most `side` pixels on its longer side."""
    with Image.open(path) as image:
        picture = image.convert("RGB")
    picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    return picture


def square(picture: Image.Image, side: int, *, box: tuple[float, float, float, float] = (0, 0, 1, 1)) -> Image.Image:
    """The centre square of the part `box` (left, top, right, bottom as fractions) of a picture, `side` pixels wide."""
    width, height = picture.size
    part = picture.crop((int(box[0] * width), int(box[1] * height), int(box[2] * width), int(box[3] * height)))
    short = min(part.size)
    left, top = (part.width - short) // 2, (part.height - short) // 2
    return part.crop((left, top, left + short, top + short)).resize((side, side), Image.Resampling.BICUBIC)
