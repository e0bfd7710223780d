"""ImageNet-1k itself: the development kit, the tar of tars, the gated Hub set."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builder_archives import (
    ROOT,
    TRAIN_FILES,
    VAL_FILES,
    Files,
    as_folder,
    as_tar,
    as_targz,
    picture,
    rows_of,
)

from hf_robust import labels, schema
from hf_robust.builders import BuildError, build


def devkit_files(wnids: list[str], truth: list[int]) -> Files:
    import numpy as np
    from scipy.io import savemat

    synsets = np.zeros(len(wnids), dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")])
    for i, wnid in enumerate(wnids):
        synsets[i] = (i + 1, wnid, 0)
    stream = io.BytesIO()
    savemat(stream, {"synsets": synsets})
    folder = "ILSVRC2012_devkit_t12/data"
    lines = "".join(f"{number}\n" for number in truth).encode()
    return {
        f"{folder}/meta.mat": stream.getvalue(),
        f"{folder}/ILSVRC2012_validation_ground_truth.txt": lines,
    }


def test_the_flat_validation_archive_takes_its_classes_from_the_kits_unsorted_ids(tmp_path: Path) -> None:
    wnids = ["n02119789", "n15075141", "n01440764", "n00001740"]  # ids 1, 2, 3 and an inner node
    kit = as_targz(tmp_path / "kit.tar.gz", devkit_files(wnids, [2, 3, 1]))
    flat = {f"ILSVRC2012_val_0000000{i}.JPEG": picture(i) for i in (3, 1, 2)}
    source = as_tar(tmp_path / "val.tar", flat)
    built = build("imagenet-val", source, allow_incomplete=True, out=tmp_path / "out", devkit=kit)
    index = labels.imagenet_1k_index()
    found = {schema.image_id(str(r["file_name"])): r["label"] for r in rows_of("imagenet-val", tmp_path / "out")}
    assert found == {
        "ILSVRC2012_val_00000001": index["n15075141"],
        "ILSVRC2012_val_00000002": index["n01440764"],
        "ILSVRC2012_val_00000003": index["n02119789"],
    }
    folders = as_folder(
        tmp_path / "val", {f"{wnids[t - 1]}/{n}": flat[n] for t, n in zip([2, 3, 1], sorted(flat), strict=True)}
    )
    again = build("imagenet-val", folders, allow_incomplete=True, out=tmp_path / "out")
    assert again.fingerprint == built.fingerprint
    assert any("archive's md5 is" in d for d in built.differences)
    assert not any("md5" in d for d in again.differences)


def test_the_devkit_is_found_beside_the_flat_archive(tmp_path: Path) -> None:
    as_targz(tmp_path / "ILSVRC2012_devkit_t12.tar.gz", devkit_files(["n01440764"], [1]))
    source = as_tar(tmp_path / "val.tar", {"ILSVRC2012_val_00000001.JPEG": picture(1)})
    assert build("imagenet-val", source, allow_incomplete=True, out=tmp_path / "out").rows == 1


def test_a_flat_validation_archive_without_the_devkit_is_refused(tmp_path: Path) -> None:
    source = as_tar(tmp_path / "val.tar", {"ILSVRC2012_val_00000001.JPEG": picture(1)})
    with pytest.raises(BuildError, match=r"ILSVRC2012_devkit_t12\.tar\.gz beside the flat archive"):
        build("imagenet-val", source, allow_incomplete=True, out=tmp_path / "out")


def test_a_ground_truth_with_an_unknown_class_id_is_refused(tmp_path: Path) -> None:
    kit = as_targz(tmp_path / "kit.tgz", devkit_files(["n01440764"], [7]))
    source = as_tar(tmp_path / "val.tar", {"ILSVRC2012_val_00000001.JPEG": picture(1)})
    with pytest.raises(BuildError, match=r"expected class ids of meta\.mat, got 7"):
        build("imagenet-val", source, allow_incomplete=True, out=tmp_path / "out", devkit=kit)


def test_the_training_tar_of_tars_is_read_without_unpacking(tmp_path: Path) -> None:
    inner = {}
    for path, content in TRAIN_FILES.items():
        wnid, name = path.split("/")
        inner[f"{wnid}.tar"] = as_tar(tmp_path / f"{wnid}.tar", {name: content}).read_bytes()
    outer = as_tar(tmp_path / "train.tar", inner)
    nested = build("imagenet-train", outer, allow_incomplete=True, out=tmp_path / "nested")
    folders = as_folder(tmp_path / "train", TRAIN_FILES)
    assert nested.fingerprint == build("imagenet-train", folders, allow_incomplete=True, out=tmp_path / "f").fingerprint


def test_the_hub_set_gives_the_same_data_set_as_class_folders(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hf_robust.builders.hub import spool

    rows = []
    for path, content in VAL_FILES.items():
        wnid, name = path.split("/")
        rows.append(
            {
                "image": {"bytes": content, "path": name.replace(".JPEG", f"_{wnid}.JPEG")},
                "label": labels.imagenet_1k_index()[wnid],
            }
        )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "validation-00000.parquet")
    with spool([tmp_path / "validation-00000.parquet"], tmp_path) as archive:
        assert {m.path: archive.read(m) for m in archive.members} == VAL_FILES


GATED = """
import http.server, os, sys, threading
class Gate(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(403); self.send_header("X-Error-Code", "GatedRepo"); self.end_headers()
    do_HEAD = do_GET
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gate)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
from pathlib import Path
from hf_robust.builders import build
build("imagenet-val", "hf://ILSVRC/imagenet-1k", out=Path(sys.argv[1]))
"""


def test_the_gated_hub_set_says_where_to_accept_the_terms(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", GATED, str(tmp_path / "out")], env=environment, capture_output=True, text=True
    )
    assert "ILSVRC/imagenet-1k is gated: accept the terms at" in ran.stderr
    assert "then log in with" in ran.stderr
