"""Label a corpus of any size with many workers: files in, Parquet shards out.

The work is planned beforehand: every file is divided into ranges of rows, and each range becomes one shard with a
fixed name. A restart therefore only checks which shards exist. If a worker dies, its shard is labelled again. Shards
sorted by name have the rows in their order.

Ray Data runs the work: one small block per shard goes through `map_batches` with a pool of actors. The rows do not
pass through Ray, whose readers and writers have no row numbers and do not skip existing shards. Each actor reads the
range of its shard, labels it and writes the shard (`shards`); it returns only counts.
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
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headhunt.data.columns import Columns
from headhunt.data.inputs import (
    Input,
    UnreadableInputError,
    check_schema,
    choose_columns,
    find_inputs,
    name_input,
    open_rows,
)
from headhunt.data.problems import brief, quote_some
from headhunt.delivery.corpus.manifest import MANIFEST, SUCCESS, Manifest, Options, Summary
from headhunt.delivery.corpus.output import OutputDirectory
from headhunt.delivery.corpus.shards import Labeller, ModelInfo, Shard, ShardResult, WorkerSettings
from headhunt.errors import DataError, HeadhuntError
from headhunt.run.model_info import hash_files

SHARD_ROWS = 16_384  # few enough to lose little at a crash, enough for batches of similar length
READERS = 8  # threads that inspect files


class View(Protocol):
    """A display of the progress."""

    def begin(self, total: int, done: int) -> None:
        """Start with the total number of rows and the number of those that are labelled already."""

    def advance(self, rows: int) -> None:
        """Add rows that have been labelled."""

    def end(self) -> None:
        """Finish."""


class _NoView:
    """No display."""

    def begin(self, total: int, done: int) -> None:
        """Show nothing."""

    def advance(self, rows: int) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""


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
    shard_rows: int = SHARD_ROWS,
    view: View | None = None,
) -> Summary:
    """Label all rows of all files, except those that an earlier job into the same folder has labelled.

    Args:
        model: A folder that Headhunt saved, or an ONNX export.
        source: A file, a folder, a pattern or a URL of Parquet, CSV, TSV, JSON or Arrow files.
        out: A folder or a URL; new, empty, or with an unfinished job of the same model, files and options.
        text: Text column (detected by default).
        text_b: Column of second texts (detected by default).
        keep: Input columns to keep in the output; all by default.
        probabilities: Add the probabilities of all labels to the output.
        workers: Number of processes; 0 labels in this process. One per core or GPU by default.
        ray: Address of a Ray cluster.
        device: "cuda", "mps" or "cpu"; the fastest available by default.
        precision: "auto", "fp32" or "bf16".
        shard_rows: Rows of a shard.
        view: Displays the progress.

    Raises:
        HeadhuntError: If the job cannot start or continue.
    """
    started = time.monotonic()
    info = ModelInfo.read(model)
    root, files = find_inputs(source)
    output = OutputDirectory(out)
    options = Options(text, text_b, None if keep is None else tuple(keep), probabilities, shard_rows)
    _check_output(output)  # before the lock, which creates the folder
    with output.lock():
        manifest = _start_or_resume(output, info, root, files, options)
        shards = list(_plan_shards(files, manifest.rows, shard_rows))
        settings = WorkerSettings(info, root, out, manifest.columns, options.keep, probabilities, device, precision)
        summary = _label(shards, settings, manifest, output, _Cluster(workers, ray), view or _NoView())
        summary = replace(summary, seconds=round(time.monotonic() - started, 1))
        replace(manifest, result=summary).write(output)
        if summary.complete:
            counts = {"rows": summary.rows, "labelled": summary.labelled, "problems": summary.problems}
            output.write_json(SUCCESS, counts)
    return summary


def _label(
    shards: Sequence[Shard],
    settings: WorkerSettings,
    manifest: Manifest,
    output: OutputDirectory,
    cluster: _Cluster,
    view: View,
) -> Summary:
    """Make the missing shards and count the rows of all."""
    sizes = {shard.name: shard.rows for shard in shards}
    problems = _find_finished(output, shards)  # by shard
    earlier = sum(sizes[name] for name in problems)
    unreadable = {name_input(settings.root, path): reason for path, reason in manifest.unreadable.items()}
    view.begin(sum(sizes.values()), earlier)
    try:
        for result in cluster.run([shard for shard in shards if shard.name not in problems], settings):
            if result.error:
                unreadable[name_input(settings.root, result.path)] = result.error
            else:
                problems[result.name] = Counter(result.problems)
            view.advance(sizes[result.name])
    finally:
        view.end()
    rows, total = sum(sizes[name] for name in problems), sum(problems.values(), Counter[str]())
    return Summary(
        out=output.url,
        rows=rows,
        labelled=rows - total.total(),
        problems=dict(total.most_common()),
        unreadable=unreadable,
        shards=len(problems),
        earlier=earlier,
    )


# ---------------------------------------------------------------------------------------------- planning


def _check_output(output: OutputDirectory) -> set[str]:
    """Return the names of the files in the output directory, which must be new, empty or of a job."""
    names = output.names()
    if names and MANIFEST not in names:
        raise HeadhuntError(
            f"must be a new or empty folder, or one of the same job; {output.url} has other files.", "out"
        )
    return names


def _start_or_resume(
    output: OutputDirectory, info: ModelInfo, root: str, files: Sequence[Input], options: Options
) -> Manifest:
    """Write and return the manifest of this job, after checking that an earlier one has the same settings."""
    fingerprint = hash_files(Path(info.folder))
    earlier = None
    if MANIFEST in _check_output(output):
        earlier = Manifest.read(output)
        earlier.check_same(output, fingerprint, root, files, options)
    columns, rows, unreadable = _inspect(root, files, info.pair, options, earlier)
    manifest = Manifest(
        model_folder=info.folder,
        model_fingerprint=fingerprint,
        problem_type=info.problem_type,
        labels=info.labels,
        options=options,
        root=root.partition("?")[0],
        files=tuple(files),
        columns=columns,
        rows=rows,
        unreadable=unreadable,
    )
    manifest.write(output)
    return manifest


def _inspect(
    root: str, files: Sequence[Input], pair: bool, options: Options, earlier: Manifest | None
) -> tuple[Columns, dict[str, int], dict[str, str]]:
    """Return the columns, the rows of each file, and the reasons why others cannot be read.

    Files that an earlier job has inspected are not read again.

    Raises:
        DataError: If no file can be read.
    """
    known = earlier.rows if earlier else {}
    columns = earlier.columns if earlier else _detect_columns(root, files, pair, options)

    def inspect(file: Input) -> tuple[int, str]:
        if file.path in known:
            return known[file.path], ""
        try:
            return _count_rows(root, file, columns, options), ""
        except UnreadableInputError as error:
            return 0, str(error)

    with ThreadPoolExecutor(READERS) as pool:
        results = dict(zip((file.path for file in files), pool.map(inspect, files), strict=True))
    rows = {path: number for path, (number, reason) in results.items() if not reason}
    unreadable = {path: reason for path, (_, reason) in results.items() if reason}
    if not rows:
        raise _no_readable_file(root, unreadable)
    return columns, rows, unreadable


def _detect_columns(root: str, files: Sequence[Input], pair: bool, options: Options) -> Columns:
    """Return the columns of the first file that can be read."""
    unreadable = {}
    for file in files:
        try:
            name = name_input(root, file.path).rpartition("/")[2]
            return choose_columns(open_rows(root, file), name, pair=pair, text=options.text, text_b=options.text_b)
        except UnreadableInputError as error:
            unreadable[file.path] = str(error)
    raise _no_readable_file(root, unreadable)


def _count_rows(root: str, file: Input, columns: Columns, options: Options) -> int:
    rows = open_rows(root, file)
    check_schema(rows.schema, columns)
    missing = sorted(set(options.keep or ()) - set(rows.schema.names))
    if missing:
        raise UnreadableInputError(
            f"there is no column {quote_some(missing)}; the columns are {quote_some(rows.schema.names)}"
        )
    return rows.rows


def _no_readable_file(root: str, unreadable: Mapping[str, str]) -> DataError:
    reasons = "\n".join(f"  - {name_input(root, path)}: {reason}" for path, reason in unreadable.items())
    return DataError(f"No file of the input can be read:\n{reasons}")


def _plan_shards(files: Sequence[Input], rows: Mapping[str, int], size: int) -> Iterator[Shard]:
    """Yield all shards in order."""
    for number, file in enumerate(files):
        for start in range(0, rows.get(file.path, 0), size):
            stop = min(start + size, rows[file.path])
            yield Shard(f"part-{number:06d}-{start:012d}.parquet", file.path, file.size, file.time, start, stop)


def _find_finished(output: OutputDirectory, shards: Sequence[Shard]) -> dict[str, Counter[str]]:
    """Return the problems of each shard that exists and is complete."""
    names = output.names()
    existing = [shard for shard in shards if shard.name in names]

    def read(shard: Shard) -> Counter[str] | None:
        try:
            rows, problems = output.count_problems(shard.name)
        except (OSError, pa.ArrowException):
            return None  # damaged: labelled again
        return problems if rows == shard.rows else None

    with ThreadPoolExecutor(READERS) as pool:
        results = zip(existing, pool.map(read, existing), strict=True)
        return {shard.name: problems for shard, problems in results if problems is not None}


# ---------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class _Cluster:
    """The processes that make shards.

    Args:
        workers: Number of processes; 0 for this process, None for one per core or GPU.
        address: Address of a Ray cluster.
    """

    workers: int | None
    address: str | None

    def run(self, shards: Sequence[Shard], settings: WorkerSettings) -> Iterator[ShardResult]:
        """Make shards and yield the result of each when it is finished."""
        if not shards:
            return
        if self.workers == 0:
            labeller = Labeller(settings)
            for shard in shards:
                yield labeller.make(shard)
            return
        with self._connect() as (ray, size, gpu_share):
            from ray.data import ActorPoolStrategy

            items = [{"shard": json.dumps(vars(shard))} for shard in shards]
            results = ray.data.from_items(items, override_num_blocks=len(shards)).map_batches(
                Labeller,
                fn_constructor_kwargs={"settings": settings, "threads": 1},
                batch_size=None,
                batch_format="numpy",
                num_cpus=1,
                num_gpus=gpu_share or None,
                # One shard at a time, so that faster workers take more. Ray restarts a dead actor and its shard.
                compute=ActorPoolStrategy(size=min(size, len(shards)), max_tasks_in_flight_per_actor=1),
            )
            try:
                yield from (ShardResult(**json.loads(row["result"])) for row in results.iter_rows())
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                raise HeadhuntError(
                    f"The workers failed: {brief(cause)}. Finished shards are kept; fix the problem and start the same "
                    "job again."
                ) from None

    @contextlib.contextmanager
    def _connect(self) -> Iterator[tuple[Any, int, float]]:
        """Yield Ray, the number of workers and the share of a GPU for each."""
        from headhunt.study.ray_executor import connect

        # Ray logs restarts of Ray Data's actors as if they were errors.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        ray, started_here = connect(self.address, self.workers, "corpus", "label in this process with 0 workers")
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
            size = self.workers or gpus or max(1, int(resources.get("CPU", 1)))
            yield ray, size, min(1.0, gpus / size) if gpus else 0.0
        finally:
            if started_here:
                ray.shutdown()
