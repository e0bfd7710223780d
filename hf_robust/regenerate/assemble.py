"""The accepted candidates as a data set with the columns of the published one, and the ledger of all candidates."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .. import __version__, labels
from ..benchmarks.derived import Derived
from ..builders import RECIPES, Built, build_regenerated
from ..builders.archive import Archive, Member
from ..builders.base import Chosen
from ..metrics import wilson
from ..predictions.plan import canonical, read_json
from ..predictions.temporary import renamed
from ..runner import Meter
from .layouts import LAYOUTS, Layout, distinct
from .ledger import KEEP, ROW_ID, Ledger
from .mine import VOTES
from .pictures import IMAGE, Pictures
from .references import write_hashes
from .stage import STAGE_FILE, StageError

SET, LEDGER_FILE, FUNNEL_FILE = "set", "ledger.parquet", "funnel.json"
EARLIER = "earlier-set"
_ENDINGS = {"PNG": ".png", "JPEG": ".JPEG", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tiff"}


@dataclass(frozen=True)
class AssembleSettings:
    """What the set is called and under which licence its pictures stand.

    name             None: the recipe's name and the first digits of what decided the set.
    licence          a sentence for the card; picture_licence the Hub's id of a licence, where all pictures have one.
    """

    name: str | None = None
    title: str | None = None
    licence: str = "The maker of this set has stated no licence for its pictures."
    picture_licence: str | None = None


def assemble(
    recipe: str,
    ledger: Ledger,
    settings: AssembleSettings,
    out: Path,
    *,
    meter: Meter,
    mask: Sequence[int] = (),
    more: Sequence[str] = (),
) -> Built:
    """The data set of the kept rows below `out`/set; writes ledger.parquet and funnel.json beside it.

    mask  ImageNet-1k classes that the filter saw, which the numbers of the set are restricted to too.
    more  lines of Markdown that the card says beside the funnel.
    StageError where no row is kept; see `withdraw`.
    """
    layout = LAYOUTS[recipe]
    chosen, archive = _chosen(layout, ledger)
    if not chosen:
        withdraw(ledger, out)
        raise StageError("expected accepted pictures, got none: see the reasons in the funnel")
    names = layout.names(list(dict.fromkeys(picture.group for _, picture in chosen)))
    own = replace(
        _derived(recipe, settings, ledger.key),
        classes=_classes(layout, chosen),
        made="\n".join([describe(recipe, ledger), *(["", *more] if more else [])]),
        mask=tuple(mask),
        groups=_groups(chosen) if recipe == "imagenet-d" else (),
        categories=names if recipe == "imagenet-d" else (),
    )
    _write_candidates(ledger, out)
    if "phash" in ledger.columns:
        write_hashes(ledger, out / f"{own.name}.hashes.parquet")
    return build_regenerated(
        RECIPES[recipe], archive, chosen, names=names, record=own.as_record(), out=out / SET, progress=meter
    )


def check_assemble(recipe: str, settings: AssembleSettings) -> None:
    """ValueError where no set can have that name, title or licence."""
    _derived(recipe, settings, "0" * 8)
    if not settings.licence.strip():
        raise ValueError("expected a sentence in licence of 'assemble', got none: leave it out where none is stated")


def _derived(recipe: str, settings: AssembleSettings, key: str) -> Derived:
    """What the set is as far as the settings say it."""
    return Derived(
        base=recipe,
        name=settings.name or f"{recipe}-{key[:8]}",
        title=settings.title or f"A set in the manner of {RECIPES[recipe].title.split(':')[0]}",
        classes=(),
        made="",
        licence=settings.licence,
        picture_licence=settings.picture_licence,
    )


def withdraw(ledger: Ledger, out: Path) -> None:
    """Ledger and funnel of candidates of which none is kept; the set of earlier settings is put aside, as EARLIER."""
    _write_candidates(ledger, out)
    if (out / SET).exists():
        shutil.rmtree(out / EARLIER, ignore_errors=True)
        (out / SET).rename(out / EARLIER)


def _write_candidates(ledger: Ledger, out: Path) -> None:
    write_ledger(ledger, out / LEDGER_FILE)
    _write(out / FUNNEL_FILE, json.dumps({"all": ledger.funnel(), **_funnels(ledger)}, indent=1))


def _chosen(layout: Layout, ledger: Ledger) -> tuple[Chosen, Archive]:
    """Each kept row as a member of an archive whose content is the ledger's pictures."""
    pictures, taken, chosen = Pictures(ledger), set[str](), []
    starts = accumulate(ledger.rows_of, initial=0)
    for start, table in zip(starts, ledger.tables(layout.reads), strict=False):
        for i, row in enumerate(table.to_pylist()):
            if row[KEEP]:
                content = pictures.read(start + i)
                picture = layout.picture(row, _ending(content, row[ROW_ID]))
                picture = replace(picture, file_name=distinct(picture.file_name, taken))
                chosen.append((Member(picture.file_name, len(content), start + i), picture))
    archive = Archive(
        "ledger", tuple(m for m, _ in chosen), lambda member: pictures.read(member.position), lambda: None
    )
    return chosen, archive


def _ending(content: bytes, key: str) -> str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as header:
            kind = header.format or ""
    except (UnidentifiedImageError, OSError) as error:
        raise StageError(f"expected the picture of row {key}, got bytes that are none: {error}") from error
    return _ENDINGS.get(kind, f".{kind.lower()}")


def _classes(layout: Layout, chosen: Chosen) -> tuple[int, ...]:
    if layout.base == "imagenet-d":
        return tuple(sorted({i for _, picture in chosen for i in picture.columns["imagenet_1k"]}))
    return tuple(sorted({labels.imagenet_1k_index()[picture.group] for _, picture in chosen}))


def _groups(chosen: Chosen) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted({tuple(picture.columns["imagenet_1k"]) for _, picture in chosen}))


def write_ledger(ledger: Ledger, path: Path) -> None:
    """Every candidate, kept or not, with every column but the pictures' bytes, in one Parquet file."""
    columns = tuple(name for name in ledger.columns if name != IMAGE)
    with renamed(path) as temporary:
        writer: pq.ParquetWriter | None = None
        try:
            for table in ledger.tables(columns):
                writer = writer or pq.ParquetWriter(temporary, table.schema, compression="zstd")
                writer.write_table(table.cast(writer.schema))
        except pa.ArrowInvalid as error:
            raise StageError(f"expected the same type in every part of a column, got others: {error}") from error
        finally:
            if writer is not None:
                writer.close()


def _funnels(ledger: Ledger) -> dict[str, Any]:
    return {by: ledger.funnel(by) for by in ("nuisance", "category", "wnid") if by in ledger.columns}


def describe(recipe: str, ledger: Ledger) -> str:
    """How the set was made, in Markdown: stages with what decided them, the funnel, what each model got right."""
    lines = [f"Made by `hf-robust regenerate {recipe}` of hf-robust {__version__}; its key is `{ledger.key}`."]
    lines += ["", *funnel_lines(ledger.funnel())]
    if "nuisance" in ledger.columns:
        kept = {row["nuisance"]: row for row in ledger.funnel("nuisance") if row["stage"] == ledger.stages[-1].name}
        first = {r["nuisance"]: r["rows"] for r in ledger.funnel("nuisance") if r["stage"] == ledger.stages[0].name}
        lines += ["", "| nuisance | candidates | accepted |", "|---|---:|---:|"]
        lines += [f"| {name} | {first[name]:,} | {row['kept']:,} |" for name, row in kept.items()]
    if VOTES in ledger.columns:
        lines += ["", *vote_lines(votes(ledger))]
    lines += ["", "What decided each stage:", ""]
    for stage in ledger.stages:
        record = read_json(stage.folder / STAGE_FILE, ["settings", "facts"])
        lines.append(f"- **{stage.name}**: `{canonical(record['settings'])}`; `{canonical(record['facts'])}`")
    return "\n".join(lines)


def funnel_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A funnel as a Markdown table."""
    lines = ["| stage | candidates | dropped | kept | why |", "|---|---:|---:|---:|---|"]
    for row in rows:
        why = "; ".join(f"{reason}: {n:,}" for reason, n in row["reasons"].items())
        lines.append(f"| {row['stage']} | {row['rows']:,} | {row['dropped']:,} | {row['kept']:,} | {why} |")
    return lines


def votes(ledger: Ledger) -> list[dict[str, Any]]:
    """For each model that was asked: right answers on all candidates it saw and on those that are kept.

    The gap between surrogates and held-out targets on the kept ones is the effect of having been selected against.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for table in ledger.tables((VOTES,)):
        for kept, given in zip(table[KEEP].to_pylist(), table[VOTES].to_pylist(), strict=True):
            for vote in given or ():
                if vote["error"] is None:
                    count = counts.setdefault((vote["role"], vote["model"]), [0, 0, 0, 0])
                    right = int(vote["correct"])
                    count[0], count[1] = count[0] + right, count[1] + 1
                    count[2], count[3] = count[2] + right * kept, count[3] + kept
    return [
        {"role": role, "model": model, "right": right, "candidates": n, "right_of_kept": on_kept, "kept": kept}
        for (role, model), (right, n, on_kept, kept) in counts.items()
    ]


def vote_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The votes as a Markdown table with 95 % Wilson intervals."""
    lines = ["| model | role | accuracy on all candidates | accuracy on the accepted |", "|---|---|---|---|"]
    for row in rows:
        everything, kept = _share(row["right"], row["candidates"]), _share(row["right_of_kept"], row["kept"])
        lines.append(f"| `{row['model']}` | {row['role']} | {everything} | {kept} |")
    return lines


def _share(successes: int, n: int) -> str:
    if n == 0:
        return "—"
    low, high = wilson(successes, n)
    return f"{100 * successes / n:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {n:,}"


def _write(path: Path, text: str) -> None:
    with renamed(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
