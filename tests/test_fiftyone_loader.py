"""FiftyOne's own loader reads what `hf-robust export fiftyone` wrote: samples, predictions, logits, correctness.

Runs where FIFTYONE_PYTHON names a Python with fiftyone and mongomock, as `make test-fiftyone` makes one. FiftyOne keeps
what it reads in a MongoDB, whose program its package downloads when it is installed. Where that download was possible,
or FIFTYONE_DATABASE_URI names a server, a real one is used; else mongomock, a MongoDB written in Python that lives in
the process, stands in for the server, and everything of FiftyOne is as installed. Which of the two it was is printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from builder_archives import SETS, as_tar
from datasets import Image
from loopback_hub import Hub, loopback_hub
from scipy.special import softmax
from tiny_runs import make_sets
from tiny_runs import run as evaluate_tiny

from hf_robust.benchmarks import benchmark
from hf_robust.builders import Built, find
from hf_robust.cli import main
from hf_robust.labels import imagenet_1k_names
from hf_robust.predictions.parts import source_folder
from hf_robust.predictions.read import Outputs, read_source

PYTHON = os.environ.get("FIFTYONE_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="needs fiftyone in an environment of its own: make test-fiftyone"),
]
NAMES = ("imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d")
PUBLISHED = ("imagenet-o", "imagenet-d")
SOURCES = {  # of the pictures that are not the control's: their folder in the run, and their role
    "imagenet-a": ("imagenet-a", "model", "test"),
    "imagenet-o": ("imagenet-o", "model", "outside"),
    "spurious-imagenet": ("spurious-imagenet", "spurious-image", "spurious"),
    "imagenet-d": ("imagenet-d", "model", "test"),
}
CLASSES = imagenet_1k_names()
START = """
import json, os, sys
from importlib.util import find_spec
from pathlib import Path

def has_mongod():
    folder = Path(find_spec("fiftyone").origin).parent / "db" / "bin"
    return any((folder / name).is_file() for name in ("mongod", "mongod.exe"))

def without_mongod():
    import mongomock, mongoengine, pymongo
    mongomock.SERVER_VERSION = "7.0.0"
    class Client(mongomock.MongoClient):
        _closed = False
    one, connect = Client(), mongoengine.connect
    pymongo.MongoClient = lambda *_, **__: one
    mongoengine.connect = lambda name, **_: connect(name, mongo_client_class=lambda *_, **__: one)
    os.environ["FIFTYONE_DATABASE_URI"] = "mongodb://mongomock"

real = "FIFTYONE_DATABASE_URI" in os.environ or has_mongod()
if not real:
    without_mongod()
import fiftyone as fo
found = {"database": "MongoDB" if real else "mongomock", "version": fo.__version__}
"""
READ = """
for folder in map(Path, sys.argv[1:]):
    data = fo.Dataset.from_dir(dataset_dir=str(folder), dataset_type=fo.types.FiftyOneDataset)
    rows = []
    for sample in data:
        rows.append({
            "id": sample.image_id, "file": sample.filepath, "sha256": sample.image_sha256, "role": sample.role,
            "tags": list(sample.tags), "truth": sample.ground_truth and sample.ground_truth.label,
            "acceptable": list(sample.acceptable), "label": sample.prediction.label,
            "confidence": sample.prediction.confidence, "logits": sample.prediction.logits.tolist(),
            "dtype": str(sample.prediction.logits.dtype), "hardness": sample.hardness, "correct": sample.correct,
        })
    found[folder.name] = {
        "rows": rows, "media": data.media_type, "classes": list(data.default_classes), "info": dict(data.info),
        "wrong": len(data.match(fo.ViewField("correct") == False)),
        "hardest": data.sort_by("hardness", reverse=True).first().image_id,
        "schema": sorted(data.get_field_schema()),
    }
print(json.dumps(found))
"""


def in_fiftyone(home: Path, code: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """What the code finds, run in the environment of FiftyOne."""
    quiet = {"FIFTYONE_DO_NOT_TRACK": "true", "FIFTYONE_DEFAULT_DATASET_DIR": str(home / "sets"), "HOME": str(home)}
    done = subprocess.run(
        [str(PYTHON), "-c", START + code, *arguments], cwd=home, env={**os.environ, **quiet, **variables},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"fiftyone {found['version']} on {found['database']}")
    return found


@dataclass(frozen=True)
class Read:
    """The run, its export for each benchmark, and what FiftyOne says it read."""

    run: Path
    exports: Path
    found: dict[str, Any]

    def rows(self, name: str, role: str) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.found[name]["rows"] if row["role"] == role}

    def outputs(self, name: str) -> tuple[Outputs, dict[str, dict[str, Any]]]:
        """The predictions of the benchmark's own pictures and what FiftyOne read of them."""
        dataset, rule, role = SOURCES[name]
        return read_source(source_folder(self.run, dataset, rule)).outputs, self.rows(name, role)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    home = tmp_path_factory.mktemp("fiftyone")
    sets = make_sets(home / "sets", a=17, o=30)
    run = evaluate_tiny(sets, home / "runs", "plain", *NAMES)
    places = ["--data", str(sets.data), "--imagenet-val", str(sets.validation)]
    for name in NAMES:
        given = [str(run), "--benchmark", name, *places, "--out", str(home / "exports" / name)]
        assert main(["export", "fiftyone", *given]) == 0
    folders = [str(home / "exports" / name) for name in NAMES]
    return Read(run, home / "exports", in_fiftyone(home, READ, *folders))


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_is_there_with_its_picture(read: Read, name: str) -> None:
    outputs, _ = read.outputs(name)
    rows = read.found[name]["rows"]
    written = json.loads((read.exports / name / "samples.json").read_text(encoding="utf-8"))["samples"]
    assert len(rows) == len(written)
    assert {row["id"] for row in rows} >= set(outputs.ids)
    assert read.found[name]["media"] == "image"
    for row in rows:
        assert hashlib.sha256(Path(row["file"]).read_bytes()).hexdigest() == row["sha256"]
        assert row["tags"] == [name, row["role"]]


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_prediction_are_those_of_the_run(read: Read, name: str) -> None:
    outputs, rows = read.outputs(name)
    mask = list(benchmark(name).mask or range(1000))
    assert read.found[name]["classes"] == [CLASSES[k] for k in mask]
    for i, key in enumerate(outputs.ids):
        logits = outputs.logits[i, mask]
        assert rows[key]["dtype"] == "float32"
        np.testing.assert_array_equal(np.asarray(rows[key]["logits"], dtype=np.float32), logits)
        assert rows[key]["label"] == CLASSES[mask[int(logits.argmax())]]
        assert rows[key]["confidence"] == pytest.approx(softmax(logits.astype(np.float64)).max(), abs=1e-12)


def test_correctness_and_hardness_of_labelled_pictures_are_those_of_the_run(read: Read) -> None:
    outputs, rows = read.outputs("imagenet-a")
    mask = list(benchmark("imagenet-a").mask or ())
    right = 0
    for i, key in enumerate(outputs.ids):
        logits, truth = outputs.logits[i, mask].astype(np.float64), mask.index(outputs.labels[i, 0])
        assert rows[key]["truth"] == CLASSES[outputs.labels[i, 0]]
        assert rows[key]["acceptable"] == [rows[key]["truth"]]
        assert rows[key]["correct"] == (int(logits.argmax()) == truth)
        assert rows[key]["hardness"] == pytest.approx(1 - softmax(logits)[truth], abs=1e-12)
        right += rows[key]["correct"]
    controls = [row["correct"] for row in read.rows("imagenet-a", "control").values()]
    assert read.found["imagenet-a"]["wrong"] == len(outputs) - right + controls.count(False)  # asked of FiftyOne


def test_pictures_outside_the_classes_have_no_label(read: Read) -> None:
    outputs, rows = read.outputs("imagenet-o")
    assert len(rows) == len(outputs) == 30
    assert {(row["truth"], row["correct"], tuple(row["acceptable"])) for row in rows.values()} == {(None, None, ())}


@pytest.mark.parametrize("name", NAMES)
def test_fiftyone_sorts_by_hardness(read: Read, name: str) -> None:
    rows = read.found[name]["rows"]
    hardest = max(row["hardness"] for row in rows)
    assert read.found[name]["hardest"] in {row["id"] for row in rows if row["hardness"] == hardest}


def test_the_groups_of_a_set_are_fields(read: Read) -> None:
    assert "nuisance" in read.found["imagenet-d"]["schema"]
    assert {"spurious_class", "component"} <= set(read.found["spurious-imagenet"]["schema"])
    assert read.found["imagenet-d"]["info"]["run"] == read.run.name


# --- a published data set, through load_from_hub


HUB = """
import fiftyone.utils.huggingface as hub
hub.DATASETS_SERVER_URL = sys.argv[1]
for name in sys.argv[2:]:
    data = hub.load_from_hub(f"hf_robust/{name}")
    found[name] = [
        {"label": sample[label].label, "sha256": sample["sha256"], "file": sample.filepath, "tags": list(sample.tags)}
        for sample in data
        for label in ("label", "confused_with") if sample.has_field(label)
    ]
print(json.dumps(found))
"""


class Viewer(BaseHTTPRequestHandler):
    """The data set viewer of the Hub, as far as `load_from_hub` asks it: splits, info, rows, and their pictures."""

    built: dict[str, Built]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = {key: values[0].rstrip("]") for key, values in parse_qs(parts.query).items()}
        built = self.built[asked["dataset"].removeprefix("hf_robust/")]
        content = getattr(self, parts.path.strip("/"))(built.load(), asked)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def splits(self, splits: Any, asked: dict[str, str]) -> Any:
        return {"splits": [{"split": split, "config": "default"} for split in splits]}

    def info(self, splits: Any, asked: dict[str, str]) -> Any:
        sizes = {split: {"num_examples": len(rows)} for split, rows in splits.items()}
        return {"dataset_info": {"features": splits[asked["split"]].features.to_dict(), "splits": sizes}}

    def rows(self, splits: Any, asked: dict[str, str]) -> Any:
        offset = int(asked["offset"])
        rows = list(splits[asked["split"]].remove_columns("image"))[offset : offset + int(asked["length"])]
        place = f"http://{self.headers['Host']}/picture?dataset={asked['dataset']}&split={asked['split']}&row="
        return {
            "rows": [
                {"row_idx": i, "row": {**row, "image": {"src": f"{place}{i}"}}} for i, row in enumerate(rows, offset)
            ]
        }

    def picture(self, splits: Any, asked: dict[str, str]) -> bytes:
        rows = splits[asked["split"]].cast_column("image", Image(decode=False))
        return bytes(rows[int(asked["row"])]["image"]["bytes"])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[str]:
    """The address of a viewer of the data sets that are built below `tmp_path`."""
    Viewer.built = {name: find(name, out=tmp_path / "out") for name in PUBLISHED}
    with ThreadingHTTPServer(("127.0.0.1", 0), Viewer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A Hub that holds what our command published."""
    with loopback_hub() as served:
        for name in PUBLISHED:
            source = as_tar(tmp_path / f"{name}.tar", SETS[name])
            words = ["build", name, "--source", str(source), "--out", "out", "--allow-incomplete", "--push-to-hub"]
            done = served.call([sys.executable, "-m", "hf_robust", *words, f"hf_robust/{name}"], tmp_path)
            assert done.returncode == 0, done.stderr
        yield served


def test_load_from_hub_opens_a_published_set_by_its_fiftyone_yml(hub: Hub, viewer: str, tmp_path: Path) -> None:
    home = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    found = in_fiftyone(tmp_path, HUB, viewer, *PUBLISHED, **home)
    for name in PUBLISHED:
        column = "label" if name == "imagenet-d" else "confused_with"
        expected = [
            {"label": rows.features[column].int2str(row[column]), "sha256": row["sha256"], "tags": [split]}
            for split, rows in find(name, out=tmp_path / "out").load().items()
            for row in rows.remove_columns("image")
        ]
        for sample in found[name]:
            assert hashlib.sha256(Path(sample.pop("file")).read_bytes()).hexdigest() == sample["sha256"]
        assert found[name] == expected
