"""The gated ImageNet-1k of the Hub, as an archive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .. import labels
from .archive import Archive, Member, slices
from .errors import BuildError

SCHEME = "hf://"
# The Hub library lets errors of its HTTP client through, which differ between its versions and are no OSError.
HTTP_CLIENTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3", "aiohttp")
_BYTES, _PATH = "bytes", "path"
# The Hub set writes the class behind the name: ILSVRC2012_val_00000293_n01440764.JPEG
_CLASS_IN_NAME = re.compile(r"_n\d{8}(?=\.[^.]+$)")


def hub_archive(address: str, split: str, scratch: Path) -> Archive:
    """The pictures of one split of `hf://OWNER/NAME` under `<wnid>/<name>`.

    BuildError says where to accept the terms of a gated set, or that the split has no Parquet files.
    """
    repo = address.removeprefix(SCHEME).removeprefix("datasets/").strip("/")
    return spool((Path(p) for p in _shards(repo, split)), scratch)


def _shards(repo: str, split: str) -> Iterator[str]:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    page = f"https://huggingface.co/datasets/{repo}"
    try:
        names = HfApi().list_repo_files(repo, repo_type="dataset")
        shards = sorted(n for n in names if re.fullmatch(rf"(?:.*/)?{split}-[^/]*\.parquet", n))
        if not shards:
            raise BuildError(f"expected {split}-*.parquet in {page}, got none; give the official archive or a folder")
        for name in shards:
            yield hf_hub_download(repo, name, repo_type="dataset")
    except GatedRepoError as error:
        raise BuildError(f"{repo} is gated: accept the terms at {page}, then log in with: hf auth login") from error
    except RepositoryNotFoundError as error:
        raise BuildError(
            f"expected a data set at {page}, got none that you may see; check the name or log in"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise _unreachable(page, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in HTTP_CLIENTS:
            raise
        raise _unreachable(page, error) from error


def _unreachable(page: str, error: Exception) -> BuildError:
    return BuildError(f"expected to read {page}, got {type(error).__name__}; check the network and try again")


def spool(shards: Iterable[Path], scratch: Path) -> Archive:
    """The pictures of Parquet files (columns image {bytes, path} and label), copied end to end into one file.

    Rows are wanted in the order of their names, and Parquet has no cheap access to single rows.
    """
    target, members = scratch / "pictures.bin", []
    with target.open("wb") as stream:
        for shard in shards:
            for number, (content, path, label) in enumerate(_rows(shard)):
                wnid = labels.imagenet_1k().wnids[label]
                name = _CLASS_IN_NAME.sub("", Path(path or f"{shard.stem}_{number:06d}.JPEG").name)
                members.append(Member(f"{wnid}/{name}", len(content), stream.tell()))
                stream.write(content)
    return slices(target, tuple(sorted(members, key=lambda m: m.path)), "hub")


def _rows(shard: Path) -> Iterator[tuple[bytes, str | None, int]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(shard)
    if not {"image", "label"} <= set(file.schema_arrow.names):
        raise BuildError(
            f"expected columns image and label, got {file.schema_arrow.names} in {shard.name}; check the repo"
        )
    for batch in file.iter_batches(100, columns=["image", "label"]):
        for row in batch.to_pylist():
            if not 0 <= row["label"] < 1000:
                raise BuildError(
                    f"expected labels 0 to 999, got {row['label']} in {shard.name}; take a split with labels"
                )
            yield row["image"][_BYTES], row["image"][_PATH], row["label"]
