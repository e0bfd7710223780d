"""What worker ids are hashed with: a random text in the folder of a review, which never leaves it."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from .base import ReviewError

SALT = "salt"


def read_salt(folder: Path) -> str:
    """The salt of the folder; made once, readable by its owner only, whoever comes first.

    ReviewError for a file that is no such salt.
    """
    path = folder / SALT
    if not path.exists():
        temporary = folder / f".{SALT}.{secrets.token_hex(8)}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another process was first: its salt holds
        finally:
            temporary.unlink()
    salt = path.read_bytes().strip()
    if not re.fullmatch(rb"[0-9a-f]{64}", salt):  # under another one everybody would be somebody else
        raise ReviewError(
            f"expected 64 hexadecimal digits in {path}, got {len(salt)} other bytes: put back a copy; without one, "
            "remove the file, and people who answered before are taken for others"
        )
    return salt.decode("ascii")
