"""A corpus of any size, labelled by many workers: files in, shards out, each whole or not there.

What is to be done is laid out beforehand: every file is cut into stretches of rows, and each stretch is one shard with
a name of its own. So a restart needs to know nothing but which shards exist, a worker that died is replaced and its
shard done again, and shards sorted by name are the rows in their order.

Ray Data runs it: one small block per shard goes through `map_batches` with a pool of actors, which hands out the work
and replaces actors that die. The rows themselves do not travel through Ray: its readers and writers know neither row
numbers nor shards that are there already, and cut blocks by bytes. Each actor reads the stretch it is given, labels it
and writes the shard (`shards`); what comes back is a count.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headhunt.data.columns import Columns
from headhunt.data.inputs import (
    Input,
    ParquetRows,
    TableRows,
    UnreadableInputError,
    check_schema,
    choose_columns,
    find_inputs,
    name_input,
    open_rows,
)
from headhunt.data.problems import brief, count, quote_some
from headhunt.delivery.corpus.shards import Card, Labeller, Place, Shard
from headhunt.errors import DataError, HeadhuntError

SCHEMA = 1
MANIFEST, SUCCESS = "_manifest.json", "_SUCCESS"  # readers of folders pass over names with an underscore
SHARD = 16_384  # rows: small enough to lose little at a crash, big enough for batches of like length
READERS = 8  # threads that look at files while the work is laid out


class View(Protocol):
    """Who is told how it goes."""

    def begin(self, total: int, done: int) -> None:
        """So many rows are to be labelled in all, and so many are already."""

    def advance(self, rows: int) -> None:
        """So many more are."""

    def end(self) -> None:
        """There will be no more."""


class _Silent:
    def begin(self, total: int, done: int) -> None: ...
    def advance(self, rows: int) -> None: ...
    def end(self) -> None: ...


@dataclass
class Summary:
    """What became of a corpus."""

    out: str
    rows: int = 0
    labelled: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    """Rows without a label, by what is wrong with them."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files that were not read, or not to their end, and why."""
    shards: int = 0
    earlier: int = 0
    """Rows that were labelled before this run began."""
    seconds: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether every row of every file has been dealt with."""
        return not self.unreadable


def label_corpus(
    model: str | Path,
    source: str,
    out: str,
    *,
    text: str | None = None,
    text_b: str | None = None,
    keep: Sequence[str] | None = None,
    probabilities: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    device: str | None = None,
    precision: str = "auto",
    shard_rows: int = SHARD,
    view: View | None = None,
) -> Summary:
    """Labels all rows of all files; what an earlier run into the same folder has done is not done again.

    Args:
        model: A folder that Headhunt saved, or an ONNX export.
        source: A file, a folder, a pattern or a URL of Parquet, CSV, TSV, JSON or Arrow files.
        out: A folder or a URL; new, empty, or begun with the same model, files and options.
        text: The column of texts; found unless given.
        text_b: The column of second texts.
        keep: Columns of the input that go into the output; all unless given.
        probabilities: Whether the probabilities of all labels go into the output.
        workers: Processes; 0 labels in this one. One per core or GPU unless given.
        ray: Address of a Ray cluster.
        device: "cuda", "mps" or "cpu"; the fastest there is unless given.
        precision: "auto", "fp32" or "bf16".
        shard_rows: Rows of a shard.
        view: Told how it goes.

    Raises:
        HeadhuntError: If the work cannot be begun, or not be gone on with.
    """
    began = time.monotonic()
    view = view or _Silent()
    card = Card.read(model)
    root, files = find_inputs(source)
    place = Place(out)
    asked: dict[str, Any] = {"text": text, "text_b": text_b, "keep": None if keep is None else list(keep)}
    asked |= {"probabilities": probabilities, "shard_rows": shard_rows}
    manifest = _take_up(place, card, root, files, asked)
    columns = Columns(manifest["columns"]["text"], manifest["columns"]["text_b"], None)
    shards = list(_lay_out(files, manifest["rows"], shard_rows))
    done = _count_done(place, shards)
    left = [shard for shard in shards if shard.name not in done]
    problems = Counter[str]()
    for found in done.values():
        problems.update(found)
    summary = Summary(place.url, earlier=sum(shard.stop - shard.start for shard in shards if shard.name in done))
    unreadable = {name_input(root, path): reason for path, reason in manifest["unreadable"].items()}
    view.begin(sum(shard.stop - shard.start for shard in shards), summary.earlier)
    settings = {"card": asdict(card), "root": root, "out": out, "columns": asdict(columns), "keep": manifest["keep"]}
    settings |= {"probabilities": probabilities, "device": device, "precision": precision}
    sizes = {shard.name: shard.stop - shard.start for shard in left}
    try:
        for answer in _run(left, settings, workers, ray):
            if answer["error"]:
                unreadable[name_input(root, answer["path"])] = answer["error"]
            else:
                problems.update(json.loads(answer["problems"]))
                done[answer["name"]] = Counter()
            view.advance(sizes[answer["name"]])
    finally:
        view.end()
    summary.rows = sum(shard.stop - shard.start for shard in shards if shard.name in done)
    summary.labelled = summary.rows - problems.total()
    summary.problems, summary.unreadable, summary.shards = dict(problems.most_common()), unreadable, len(done)
    summary.seconds = round(time.monotonic() - began, 1)
    place.write(MANIFEST, {**manifest, "result": asdict(summary)})
    if summary.whole:
        place.write(SUCCESS, {"rows": summary.rows, "labelled": summary.labelled, "problems": summary.problems})
    place.clear()
    return summary


def _take_up(place: Place, card: Card, root: str, files: list[Input], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of the run that was begun there, if it was the same; else a new one."""
    begun: dict[str, Any] = {}
    names = place.names()
    if MANIFEST in names:
        try:
            begun = json.loads(place.read(MANIFEST))
        except (ValueError, OSError) as error:
            raise HeadhuntError(f"{place.url}/{MANIFEST} cannot be read: {brief(error)}. Give a new folder.") from None
        _check_same(place, begun, card, root, files, asked)
    elif names:
        raise HeadhuntError(
            f"--out must be a new or empty folder, or one begun by the same command; {place.url} holds other files."
        )
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "model": {"folder": card.folder, "fingerprint": card.fingerprint()},
        "problem_type": card.problem_type,
        "labels": list(card.labels),
        "asked": dict(asked),
        "root": root.partition("?")[0],
        "files": [asdict(file) for file in files],
        **_inspect(root, files, card.pair, asked, begun),
    }
    place.write(MANIFEST, manifest)
    return manifest


def _check_same(
    place: Place, begun: dict[str, Any], card: Card, root: str, files: list[Input], asked: Mapping[str, Any]
) -> None:
    differs = []
    if begun.get("schema") != SCHEMA:
        differs.append(f"it was written by another version (schema {begun.get('schema')}, here {SCHEMA})")
    elif begun["model"]["fingerprint"] != card.fingerprint():
        differs.append(f"the model is another ({begun['model']['folder']} was used)")
    for name, value in asked.items():
        if name in begun.get("asked", {}) and begun["asked"][name] != value:
            differs.append(f"--{name.replace('_', '-')} was {begun['asked'][name]!r} and is {value!r}")
    before = {file["path"]: Input(**file) for file in begun.get("files", [])}
    now = {file.path: file for file in files}
    for words, paths in (
        ("more", now.keys() - before.keys()),
        ("fewer", before.keys() - now.keys()),
        ("changed", {path for path in now.keys() & before.keys() if now[path] != before[path]}),
    ):
        if paths:
            listed = quote_some([name_input(root, path).rpartition("/")[2] for path in sorted(paths)], 3)
            differs.append(f"{count(len(paths), 'input file')} {words} ({listed})")
    if differs:
        raise HeadhuntError(
            f"--out must be a new folder, or one begun by the same command; in {place.url} {'; '.join(differs)}. "
            "Give another folder, or go on with what was given before."
        )


def _inspect(
    root: str, files: list[Input], pair: bool, asked: Mapping[str, Any], begun: Mapping[str, Any]
) -> dict[str, Any]:
    """Rows of each file, the columns taken, and the files that cannot be read; what is known is not read again."""
    known: dict[str, int] = begun.get("rows", {})
    names = begun.get("columns")
    columns = Columns(names["text"], names["text_b"], None) if names else None
    unreadable: dict[str, str] = {}
    kept: list[str] | None = begun.get("keep")

    def look(file: Input) -> int:
        rows = open_rows(root, file)
        check_schema(rows.schema, columns or choose(file, rows))
        missing = sorted(set(asked["keep"] or ()) - set(rows.schema.names))
        if missing:
            raise UnreadableInputError(
                f"there is no column {quote_some(missing)}; the columns are {quote_some(rows.schema.names)}"
            )
        return rows.rows

    def choose(file: Input, rows: ParquetRows | TableRows) -> Columns:
        where = name_input(root, file.path).rpartition("/")[2]
        return choose_columns(rows, where, pair=pair, text=asked["text"], text_b=asked["text_b"])

    def attempt(file: Input) -> int | None:
        if file.path in known:
            return known[file.path]
        try:
            return look(file)
        except UnreadableInputError as error:
            unreadable[file.path] = str(error)
            return None

    rows: dict[str, int] = {}
    left = iter(files)
    for file in left:  # the first that can be read settles the columns
        if columns is None:
            with contextlib.suppress(UnreadableInputError):
                columns = choose(file, open_rows(root, file))
        found = attempt(file)
        if found is not None:
            rows[file.path] = found
            break
    with ThreadPoolExecutor(READERS) as pool:
        rest = list(left)
        rows |= {
            file.path: found for file, found in zip(rest, pool.map(attempt, rest), strict=True) if found is not None
        }
    if columns is None or not rows:
        listed = "\n".join(f"  - {name_input(root, path)}: {reason}" for path, reason in unreadable.items())
        raise DataError(f"No file of the input can be read:\n{listed}")
    if kept is None and asked["keep"] is not None:
        kept = list(asked["keep"])
    columns_taken = {"text": columns.text, "text_b": columns.text_b}
    return {"columns": columns_taken, "keep": kept, "rows": rows, "unreadable": unreadable}


def _lay_out(files: Sequence[Input], rows: Mapping[str, int], size: int) -> Iterator[Shard]:
    """All shards there will be, in order."""
    for number, file in enumerate(files):
        for start in range(0, rows.get(file.path, 0), size):
            stop = min(start + size, rows[file.path])
            yield Shard(f"part-{number:06d}-{start:012d}.parquet", file.path, file.size, file.time, start, stop)


def _count_done(place: Place, shards: Sequence[Shard]) -> dict[str, Counter[str]]:
    """The shards that are there and whole, each with its problems."""
    names = place.names()
    there = [shard for shard in shards if shard.name in names]

    def look(shard: Shard) -> Counter[str] | None:
        try:
            rows, problems = place.count(shard.name)
        except (OSError, pa.ArrowException):
            return None  # damaged since; done again
        return problems if rows == shard.stop - shard.start else None

    with ThreadPoolExecutor(READERS) as pool:
        found = zip(there, pool.map(look, there), strict=True)
        return {shard.name: problems for shard, problems in found if problems is not None}


def _run(
    shards: Sequence[Shard], settings: dict[str, Any], workers: int | None, address: str | None
) -> Iterator[dict[str, Any]]:
    """Makes shards, and yields what is in each as it is done."""
    if not shards:
        return
    if workers == 0:
        labeller = Labeller(**settings)
        for shard in shards:
            yield labeller.make(shard)
        return
    with _cluster(workers, address) as (ray, size, share):
        from ray.data import ActorPoolStrategy

        work = ray.data.from_items([asdict(shard) for shard in shards], override_num_blocks=len(shards)).map_batches(
            Labeller,
            fn_constructor_kwargs={**settings, "threads": 1},
            batch_size=None,
            batch_format="numpy",
            num_cpus=1,
            num_gpus=share or None,
            # One shard at a time: who is quicker takes the next. Ray starts a dead actor again, and its shard.
            compute=ActorPoolStrategy(size=min(size, len(shards)), max_tasks_in_flight_per_actor=1),
        )
        try:
            yield from work.iter_rows()
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            raise HeadhuntError(
                f"The workers cannot go on: {brief(cause)}. What is written stays; mend it and run the command again."
            ) from None


@contextlib.contextmanager
def _cluster(workers: int | None, address: str | None) -> Iterator[tuple[Any, int, float]]:
    """Ray, with as many workers as there are to be and each one's share of a GPU."""
    from headhunt.study.ray_executor import connect

    # Ray Data's actors can be started again, and Ray's core warns the user of that as if it were an error.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    ray, ours = connect(address, workers, "label in this process with workers=0")
    try:
        import_module("ray.data")
    except ImportError as error:
        raise HeadhuntError(f'A corpus needs Ray Data: pip install "headhunt[corpus]" ({brief(error)}).') from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        size = workers or gpus or max(1, int(resources.get("CPU", 1)))
        yield ray, size, min(1.0, gpus / size) if gpus else 0.0
    finally:
        if ours:
            ray.shutdown()
