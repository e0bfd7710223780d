"""A source that may be an address, as a local path."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from .errors import BuildError

OFFICIAL = "official"


def local_source(source: str | Path, scratch: Path, *, addresses: Sequence[str]) -> Path:
    """The path of `source`, downloaded into `scratch` first where it is an http, https or file address.

    "official" stands for the official addresses, tried in order. BuildError names every address that failed.
    """
    text = str(source)
    if text == OFFICIAL:
        if not addresses:
            raise BuildError(
                "expected a path or an address, got 'official': this set has no open download; give the archive"
            )
        return _first(addresses, scratch)
    if text.startswith(("http://", "https://", "file://")):
        return _first([text], scratch)
    if "://" in text:
        raise BuildError(
            f"expected a path or an http, https or file address, got {text!r}; download it and give the file"
        )
    return Path(source).expanduser()


def already_here(source: str | Path) -> Path | None:
    """The path that `source` names, None for an address."""
    return None if str(source) == OFFICIAL or "://" in str(source) else Path(source).expanduser()


def _first(addresses: Sequence[str], scratch: Path) -> Path:
    failures = []
    for address in addresses:
        try:
            return _download(address, scratch)
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            failures.append(f"{address} ({error})")
    raise BuildError(f"expected a download, got {'; '.join(failures)}; download the archive yourself and give its path")


def _download(address: str, scratch: Path) -> Path:
    """The downloaded file; a file address of a folder is that folder."""
    parts = urllib.parse.urlsplit(address)
    local = Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None
    if local is not None and local.exists():
        return local
    target = scratch / (os.path.basename(parts.path) or "archive")
    partial = target.with_name(target.name + ".part")
    with urllib.request.urlopen(address, timeout=60) as answer, partial.open("wb") as stream:
        expected = answer.headers.get("Content-Length")
        shutil.copyfileobj(answer, stream, 1 << 20)
    if expected is not None and partial.stat().st_size != int(expected):
        raise OSError(f"expected {int(expected):,} bytes, got {partial.stat().st_size:,}")
    return partial.rename(target)
