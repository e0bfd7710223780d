"""Archives and folders as lists of members that are read one by one; nothing is ever unpacked to a path of theirs."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from .errors import BuildError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MIB = 1 << 20
MAX_MEMBER = 64 * MIB  # the largest picture of ImageNet is about 15 MiB
MAX_RATIO = 100  # pictures hardly compress; a bomb does
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

# What reading one damaged member may raise; the member is then left out and listed.
READ_ERRORS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Member:
    """One file: normalised path with forward slashes, size in bytes, and where the archive keeps it."""

    path: str
    size: int
    position: int = 0

    @property
    def suffix(self) -> str:
        """The file name's ending as written, with its dot."""
        return os.path.splitext(self.path)[1]

    @property
    def is_image(self) -> bool:
        """Whether the ending is that of a picture, in any case."""
        return self.suffix.lower() in IMAGE_SUFFIXES


@dataclass(frozen=True)
class Archive:
    """An open source: its regular files, and how to read one.

    into        reads a member into memory of its size, where that spares a copy; OSError where it is not all there.
    concurrent  whether forks of this process may read at once.
    """

    kind: str
    members: tuple[Member, ...]
    read: Callable[[Member], bytes]
    close: Callable[[], None]
    into: Callable[[Member, memoryview], None] | None = None
    concurrent: bool = False

    def read_into(self, member: Member, place: memoryview) -> None:
        """Reads a member into memory of its size; OSError where it is of another."""
        if self.into is not None:
            self.into(member, place)
            return
        content = self.read(member)
        if len(content) != len(place):
            raise _other_size(len(place), f"{len(content):,}")
        place[:] = content

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def named(self, ending: str) -> Member | None:
        """The first member whose path is `ending` or ends with "/" + `ending`; None where there is none."""
        return next((m for m in self.members if m.path == ending or m.path.endswith("/" + ending)), None)


def open_archive(path: Path, *, scratch: Path, nested: bool = False) -> Archive:
    """The members of a tar, tar.gz, zip or folder.

    scratch  a folder for the unpacked tar of a tar.gz.  nested  look into the tars inside a tar, under their stem.
    BuildError names the member with an absolute path, "..", a link, a device, a name twice, a size above 64 MiB or a
    compression ratio above 100.
    """
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise BuildError(f"expected a tar, tar.gz, zip or folder, got nothing at {path}; check the path")
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic in (b"PK\x03\x04", b"PK\x05\x06"):
        return _open_zip(path)
    if magic[:2] == b"\x1f\x8b":
        path = _gunzip(path, scratch)
    return _open_tar(path, nested=nested)


def is_noise(path: str) -> bool:
    """Whether a path is what file managers leave behind: hidden files, `._x`, `__MACOSX`, `Thumbs.db`."""
    parts = path.split("/")
    return any(p.startswith(".") or p in ("__MACOSX", "Thumbs.db") for p in parts)


def _normalised(raw: str, source: Path) -> str:
    parts = [p for p in raw.split("/") if p not in ("", ".")]
    hostile = raw.startswith("/") or "\\" in raw or "\0" in raw or ".." in parts or re.match("[A-Za-z]:", raw)
    if hostile or not raw.isprintable() or not parts:
        raise BuildError(f"expected relative member names, got {raw!r} in {source.name}; do not trust this archive")
    return "/".join(parts)


def _checked(found: Iterable[tuple[str, int, int]], source: Path) -> tuple[Member, ...]:
    members: dict[str, Member] = {}
    for raw, size, position in found:
        path = _normalised(raw, source)
        if path in members:
            raise BuildError(f"expected each member once, got {path!r} twice in {source.name}; take an intact archive")
        if not 0 <= size <= MAX_MEMBER:
            raise BuildError(
                f"expected members of at most {MAX_MEMBER // MIB} MiB, got {path!r} with {size:,} bytes in "
                f"{source.name}; take the official archive"
            )
        members[path] = Member(path, size, position)
    return tuple(members[path] for path in sorted(members))


def _special(path: str, kind: str, source: Path) -> BuildError:
    return BuildError(
        f"expected files and folders only, got {kind} {path!r} in {source.name}; do not trust this archive"
    )


# Folders


def _open_folder(root: Path) -> Archive:
    members = _checked(((name, size, 0) for name, size in _walk(root)), root)

    def read(member: Member) -> bytes:
        with open(root / member.path, "rb") as stream:
            return _exactly(stream, member.size)

    return Archive("folder", members, read, lambda: None, concurrent=True)


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    inside = root.resolve()
    for folder, names, files in os.walk(root):
        for name in names:
            if os.path.islink(os.path.join(folder, name)):
                raise _special(os.path.relpath(os.path.join(folder, name), root), "the folder link", root)
        for name in files:
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise _special(relative, "a link that leads outside,", root)
            if not path.is_file():
                raise _special(relative, "a link or device", root)
            yield relative, path.stat().st_size


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size + 1)
    if len(data) != size:
        raise _other_size(size, "more" if len(data) > size else f"{len(data):,}")
    return data


def _other_size(size: int, got: str) -> OSError:
    return OSError(f"expected {size:,} bytes, got {got}")


class _OwnPosition(io.RawIOBase):
    """A file to read whose position is this process's own: an open file has one that its forks share."""

    def __init__(self, path: Path) -> None:
        self._file, self._at = path.open("rb", buffering=0), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (os.fstat(self._file.fileno()).st_size if start is None else start)
        return self._at

    def readinto(self, place: WriteableBuffer) -> int:
        size = os.preadv(self._file.fileno(), [place], self._at)
        self._at += size
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _open(path: Path) -> io.RawIOBase:
    return _OwnPosition(path) if hasattr(os, "preadv") else path.open("rb", buffering=0)


# Zip


def _open_zip(path: Path) -> Archive:
    stream = io.BufferedReader(_open(path))
    try:
        file = zipfile.ZipFile(stream)
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
        stream.close()
        raise BuildError(f"expected a whole zip, got {path} ({error}); download it again") from error
    try:
        infos = file.infolist()
        for info in infos:
            _check_zip_member(info, path)
        _check_no_overlap(infos, path)
        members = _checked(((i.filename, i.file_size, n) for n, i in enumerate(infos) if not i.is_dir()), path)
    except BuildError:
        stream.close()
        raise

    def read(member: Member) -> bytes:
        with file.open(infos[member.position]) as stream:
            return _exactly(stream, member.size)  # type: ignore[arg-type]  # ZipExtFile reads like a binary file

    return Archive("zip", members, read, stream.close, concurrent=True)


def _check_zip_member(info: zipfile.ZipInfo, path: Path) -> None:
    _normalised(f"{info.orig_filename}/file", path)  # before zipfile cut it at a zero byte
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _special(info.filename, "a link or device", path)
    if info.flag_bits & 1:
        raise BuildError(f"expected a zip without a password, got {info.filename!r} encrypted in {path.name}")
    if info.file_size > MIB and info.file_size > MAX_RATIO * max(info.compress_size, 1):
        ratio = info.file_size // max(info.compress_size, 1)
        raise BuildError(
            f"expected pictures, got {info.filename!r} compressed {ratio:,} times in {path.name}; "
            "this looks like a decompression bomb"
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BuildError(
            f"expected stored or deflated members, got {info.filename!r} otherwise in {path.name}; zip it again"
        )


def _check_no_overlap(infos: list[zipfile.ZipInfo], path: Path) -> None:
    end = 0
    for info in sorted(infos, key=lambda i: i.header_offset):
        if info.header_offset < end:
            raise BuildError(
                f"expected separate members, got {info.filename!r} over another in {path.name}; do not trust it"
            )
        end = info.header_offset + info.compress_size


# Tar


def _gunzip(path: Path, scratch: Path) -> Path:
    limit = max(MAX_MEMBER, MAX_RATIO * path.stat().st_size)
    target, written = scratch / "unpacked.tar", 0
    try:
        with gzip.open(path) as packed, target.open("wb") as stream:
            while block := packed.read(MIB):
                written += len(block)
                if written > limit:
                    raise BuildError(
                        f"expected pictures, got over {limit:,} bytes in {path.name}; a decompression bomb"
                    )
                stream.write(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BuildError(f"expected a whole tar.gz, got {path} ({error}); download it again") from error
    return target


def _open_tar(path: Path, *, nested: bool) -> Archive:
    try:
        with tarfile.open(path, "r:") as file:
            found = list(_tar_members(file, path, nested=nested))
            kind = "tar of tars" if nested and any(name.endswith(".tar") for name in file.getnames()) else "tar"
    except (tarfile.TarError, ValueError, OverflowError, OSError) as error:  # the last: offsets that cannot be
        raise BuildError(f"expected a tar, tar.gz, zip or folder, got {path} ({error}); download it again") from error
    return slices(path, _checked(found, path), kind)


def _tar_members(file: tarfile.TarFile, path: Path, *, nested: bool) -> Iterator[tuple[str, int, int]]:
    for info in file:
        if info.isdir():
            _normalised(f"{info.name}/file", path)
            continue
        if not info.isreg() or info.issparse():
            raise _special(info.name, "a link or device", path)
        if nested and info.name.endswith(".tar"):
            yield from _inner_members(file, info, path)
        else:
            yield info.name, info.size, info.offset_data


def _inner_members(file: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> Iterator[tuple[str, int, int]]:
    with tarfile.open(fileobj=file.extractfile(info), mode="r:") as inner:
        for name, size, offset in _tar_members(inner, path, nested=False):
            yield f"{info.name.removesuffix('.tar')}/{name}", size, info.offset_data + offset


def slices(path: Path, members: tuple[Member, ...], kind: str) -> Archive:
    """An archive whose members are byte ranges of one file: position is the offset of the first byte."""
    file = _open(path)

    def into(member: Member, place: memoryview) -> None:
        got = 0
        file.seek(member.position)
        while got < member.size and (size := file.readinto(place[got:])):
            got += size
        if got != member.size:
            raise _other_size(member.size, f"{got:,}")

    def read(member: Member) -> bytes:
        place = bytearray(member.size)
        into(member, memoryview(place))
        return bytes(place)

    return Archive(kind, members, read, file.close, into, concurrent=True)
