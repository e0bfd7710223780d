"""Two machines that share nothing but a folder, as bench/hosts.py makes them: the bytes of one process alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench" / "hosts.py"
PATIENCE = 400  # seconds for all ways on a busy machine


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(("place", "ways"), [("network", 3), ("island", 1)])
def test_two_machines_give_the_bytes_of_one_process_alone(place: str, ways: int, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "--only", place, "--processes", "2", "--shared", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = re.search(rf"^{place} +skipped: (.*)", done.stdout, re.MULTILINE)
    if skipped is not None:
        pytest.skip(skipped[1])
    assert len(re.findall(rf"^{place}, .* equal$", done.stdout, re.MULTILINE)) == ways
