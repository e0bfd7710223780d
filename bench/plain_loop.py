"""What throughput.py compares with: the loop that everybody writes, and the limit that no loop can pass.

python bench/plain_loop.py loop MODEL FOLDER FILE   ImageFolder, DataLoader (2 workers, batch 64), torch's own number of
                                                    threads; names and logits go to FILE (npz)
python bench/plain_loop.py limit MODEL FOLDER       milliseconds a picture of one core alone: decoding with the
                                                    transform, and the forward pass in its best batch size and layout

Both use the package for the model, its weights and its transform alone, and print one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from hf_robust.models import load_model

BATCH, WORKERS = 64, 2
LIMIT_PICTURES = 96


def loop(name: str, folder: Path, file: Path) -> dict[str, float]:
    model = load_model(name)
    started = time.perf_counter()
    pictures = ImageFolder(folder, model.preprocessing.transform)
    logits = []
    with torch.inference_mode():
        for batch, _ in DataLoader(pictures, batch_size=BATCH, num_workers=WORKERS):
            logits.append(model.module(batch).numpy())
    np.savez(file, names=[Path(path).stem for path, _ in pictures.samples], logits=np.concatenate(logits))
    return {"seconds": time.perf_counter() - started, "pictures": len(pictures)}


def limit(name: str, folder: Path) -> dict[str, float]:
    torch.set_num_threads(1)
    model = load_model(name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())[:LIMIT_PICTURES]
    pictures = ImageFolder(folder, model.preprocessing.transform)
    chosen = [index for index, (path, _) in enumerate(pictures.samples) if Path(path) in set(files)]
    decode = _best(lambda: [pictures[index] for index in chosen]) / len(chosen)
    pixels = torch.stack([pictures[index][0] for index in chosen])
    forward: dict[str, float] = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        module, batches = model.module.to(memory_format=layout), pixels.contiguous(memory_format=layout)
        for size in (1, 2, 4, 8, 16, 64):
            with torch.inference_mode():
                seconds = _best(lambda module=module, b=batches, n=size: [module(x) for x in b.split(n)])
            forward[f"{layout}, {size}".removeprefix("torch.")] = seconds / len(chosen)
    best = min(forward, key=forward.__getitem__)
    return {"decode_ms": decode * 1e3, "forward_ms": forward[best] * 1e3, "best": best}  # type: ignore[dict-item]


def _best(call: object, repeats: int = 3) -> float:
    """Least processor time of this thread: what other programs take from it does not count."""
    times = []
    for _ in range(repeats):
        started = time.thread_time()
        call()  # type: ignore[operator]
        times.append(time.thread_time() - started)
    return min(times)


if __name__ == "__main__":
    what, model_name, place, *rest = sys.argv[1:]
    print(
        json.dumps(loop(model_name, Path(place), Path(rest[0])) if what == "loop" else limit(model_name, Path(place)))
    )
