"""Run a grid of searches, and compare what each delivers with the plain head and with the others.

Every cell of the grid is an ordinary run directory, so that an experiment continues after any interruption: finished
cells are skipped, and an interrupted one is resumed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow.csv

from headhunt.engine.options import divide
from headhunt.engine.search import Search, resume, search
from headhunt.errors import HeadhuntError
from headhunt.evaluation import apply_thresholds
from headhunt.evaluation.comparison import MEAN, adjust_p_values, compare_sets, draw_scores
from headhunt.report import charts, markdown, markup, page
from headhunt.report.terminal import format_duration
from headhunt.run.directory import RunDirectory, read_test_predictions
from headhunt.run.model_info import saved_thresholds
from headhunt.run.results import ENSEMBLE, PLAIN
from headhunt.run.settings import SearchOptions, parse_duration
from headhunt.run.task import open_task, tested_rows
from headhunt.spec import DEFAULT_ENCODER, Space, describe
from headhunt.spec.space import read_toml
from headhunt.storage import remove, write_text

GRID: dict[str, tuple[str, Any]] = {
    "encoder": ("encoders", DEFAULT_ENCODER),
    "space": ("spaces", "default"),
    "strategy": ("strategies", "prior"),
    "budget": ("budgets", "10m"),
    "seed": ("seeds", 0),
}
"""Axes beside `set`, with their names in a file and the value that they have by default."""
LAST_SECONDS = 30.0  # for a cell that was interrupted when its time was over
TRAINING_RUNS = 10  # of a model, at most
PLAIN_HEAD = "plain head"
HEADS = ("set", "setting", "against", "draws", "score", "reference", "gain, 95 % interval", "p, Holm")
NOTE = (
    "Scores are those on test rows × 100. Intervals and p-values are of a bootstrap over test rows, the same for both "
    "models, and over draws; with one draw, chance in training is not part of them. Holm's method adjusts the p-values "
    "of all comparisons of one kind."
)


@dataclass(frozen=True)
class Cell:
    """One search of an experiment."""

    axes: dict[str, Any]
    """Name of the value of each axis: set, encoder, space, strategy, budget and seed."""
    train: Path
    options: dict[str, Any]
    """Options of the search."""
    folder: Path

    @property
    def is_finished(self) -> bool:
        """Whether the search has ended by itself."""
        result = RunDirectory(self.folder).read_result()
        return result is not None and result.reason != "interrupted"


def experiment(
    source: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    only: Sequence[str] = (),
    dry_run: bool = False,
    progress: Callable[[str], None] | None = None,
    **resources: Any,
) -> list[dict[str, Any]]:
    """Run a search for every combination of data sets, encoders, spaces, strategies, budgets and seeds.

    Finished searches are not repeated, and an interrupted one is resumed. The folder gets `results.jsonl` with a line
    per search, `table.md` and `table.csv` with the comparisons, and `report.html` with a chart.

    Args:
        source: A TOML file, or its content. `sets` has a table for each data set, with its file `train` and options of
            `search` and `Task.load` such as `test` and `text_b`. `encoders`, `spaces`, `strategies`, `budgets` and
            `seeds` are lists, or tables with a name for each value. `rows` is the number of training rows, which are
            drawn with the seed. All other keys are options of `search` for every set.
        out: Folder of the experiment; by default one in `runs/` with the name of the file.
        data: Folder that paths are relative to; by default that of the file.
        only: Searches to run, such as `["set=rte", "seed=0"]`; by default all.
        dry_run: Whether only to list the searches.
        progress: Function called with a line before each search.
        resources: `ray` and `trust_remote_code`, as for `search`.

    Returns:
        A row per search, for `pandas.DataFrame`.
    """
    definition = source if isinstance(source, Mapping) else read_toml(Path(source))
    file = Path("experiment" if isinstance(source, Mapping) else source)
    folder = Path("runs") / file.stem if out is None else Path(out)
    cells = list_cells(definition, file.parent if data is None else Path(data), folder)
    chosen = [each.partition("=")[::2] for each in only]
    for axis in dict(chosen):
        cells = [cell for cell in cells if (axis, str(cell.axes.get(axis))) in chosen]
    if not cells:
        raise HeadhuntError(f"An experiment must have a search; none has {', '.join(only)}. Check the names.")
    if dry_run:
        return [cell.axes | {"seconds": cell.options["time"], "finished": cell.is_finished} for cell in cells]
    if missing := sorted({str(cell.train) for cell in cells if not cell.train.exists()}):
        raise HeadhuntError(f"The data of an experiment must exist; found no {', '.join(missing)}. Check the folder.")
    failed: dict[Path, str] = {}
    waiting = [cell for cell in cells if not cell.is_finished]
    for number, cell in enumerate(waiting, len(cells) - len(waiting)):
        if progress is not None:
            left = sum(each.options["time"] or 0.0 for each in waiting[number - len(cells) :])
            progress(
                f"{number + 1}/{len(cells)} {' '.join(map(str, cell.axes.values()))} ({format_duration(left)} left)"
            )
        try:
            _run(cell, resources)
        except HeadhuntError as error:
            failed[cell.folder] = str(error)
        _write_results(folder, cells, failed)
    return _write_results(folder, cells, failed)


def list_cells(definition: Mapping[str, Any], base: Path, out: Path) -> list[Cell]:
    """Return the searches of an experiment, all sets of one combination after the other.

    Args:
        definition: Content of the file.
        base: Folder that paths are relative to.
        out: Folder of the experiment.

    Raises:
        HeadhuntError: If an option does not exist, or has an invalid value.
    """
    common = {key: value for key, value in definition.items() if key != "sets"}
    grid = []
    for plural, default in GRID.values():
        values = common.pop(plural, [default])
        grid.append(list(values.items() if isinstance(values, dict) else ((value, value) for value in values)))
    cells = []
    for combination, (name, own) in itertools.product(itertools.product(*grid), definition.get("sets", {}).items()):
        labels, values = zip(*combination, strict=True)
        axes = {"set": name} | dict(zip(GRID, labels, strict=True))
        options = {**common, **own, **dict(zip(GRID, values, strict=True))}
        # Other options make another cell: results of an earlier version of the file are never mixed in.
        digest = crc32(json.dumps(options, sort_keys=True, default=str).encode())
        folder = out / re.sub(r"[^\w.-]+", "_", "-".join([*map(str, axes.values()), f"{digest:08x}"]))
        train = base / str(options.pop("train", name))
        for key in ("encoder", "space", "test", "validation", "unlabelled"):
            if isinstance(options.get(key), str) and (base / options[key]).exists():
                options[key] = str(base / options[key])
        options |= {"time": parse_duration(options.pop("budget")), "limit": options.pop("rows", None)}
        if isinstance(options["space"], dict):
            options["space"] = Space.from_dict(options["space"], str(axes["space"]))
        SearchOptions(**divide(options)[0])  # refuses invalid ones before any search
        cells.append(Cell(axes, train, options, folder))
    return cells


def _run(cell: Cell, resources: Mapping[str, Any]) -> None:
    """Search, or resume the search of a cell."""
    if RunDirectory(cell.folder).exists():
        found = Search(cell.folder)
        over = found.settings.time is not None and found.settings.time - found.state.elapsed < LAST_SECONDS
        found = resume(cell.folder, time=LAST_SECONDS if over else None, **resources)
    else:
        remove(cell.folder)
        found = search(cell.train, out=cell.folder, **cell.options, **resources)
    if found.result is not None and found.result.reason == "interrupted":
        raise KeyboardInterrupt


def _write_results(folder: Path, cells: Sequence[Cell], failed: Mapping[Path, str]) -> list[dict[str, Any]]:
    """Write the rows of finished and failed searches, the tables and the page; return the rows."""
    finished = [cell for cell in cells if cell.is_finished]
    rows = [_row(cell) for cell in finished]
    rows += [cell.axes | {"error": failed[cell.folder]} for cell in cells if cell.folder in failed]
    write_text(folder / "results.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    compared = compare_cells(finished)
    if compared:
        pyarrow.csv.write_csv(pyarrow.Table.from_pylist(compared), folder / "table.csv")
        texts = [_texts(row) for row in compared]
        write_text(folder / "table.md", f"# {folder.name}\n\n{NOTE}\n\n{markdown.table(HEADS, texts)}\n")
        write_text(folder / "report.html", _page(folder.name, compared, markup.table(HEADS, texts)))
    return rows


def _row(cell: Cell) -> dict[str, Any]:
    """Return the facts of a finished search."""
    run = Search(cell.folder)
    result, plan = run.result, run.directory.read_plan()
    assert result is not None and plan is not None
    verdict, tested = result.verdict, result.test.scores if result.test else {}
    score, plain = (
        tested[role][result.metric].value if role in tested else None for role in (verdict.delivered, PLAIN)
    )
    winner = result.winner or result.plain
    return cell.axes | {
        "metric": result.metric,
        "delivered": verdict.delivered,
        "score": score,
        "plain": plain,
        "gain": verdict.gain,
        "low": verdict.low,
        "high": verdict.high,
        "claim": verdict.claim,
        "training_runs": verdict.training_runs,
        "winner": describe(winner.spec) if winner else None,
        "candidates": result.trials,
        "seconds": round(result.seconds, 1),
        "train_rows": run.task.rows["train"],
        "test_rows": result.test.rows if result.test else 0,
        "texts_per_second": round(plan.rows_per_second, 1),
        "run": cell.folder.name,
    }


def compare_cells(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return what each setting gains over the plain head, and each further one over the first, by set and on average.

    Args:
        cells: Finished searches.
    """
    axes = [axis for axis in GRID if axis != "seed" and len({cell.axes[axis] for cell in cells}) > 1]
    scores: dict[str, dict[str, dict[Any, np.ndarray]]] = {}  # by setting, set and seed
    for cell in cells:
        if (drawn := _draw_scores(cell.folder)) is not None:
            sets = scores.setdefault(" ".join(cell.axes[axis] for axis in axes) or "search", {})
            sets.setdefault(cell.axes["set"], {})[cell.axes["seed"]] = drawn
    rows: list[dict[str, Any]] = []
    for setting, sets in scores.items():
        first, others = next(iter(scores.items()))
        compared = compare_sets({name: list(seeds.values()) for name, seeds in sets.items()})
        rows += [{"setting": setting, "against": PLAIN_HEAD} | row for row in compared]
        if setting != first:
            shared = {name: sorted(seeds.keys() & others.get(name, {}).keys()) for name, seeds in sets.items()}
            pairs = {name: [np.stack([sets[name][s][0], others[name][s][0]]) for s in shared[name]] for name in sets}
            rows += [{"setting": setting, "against": first} | row for row in compare_sets(pairs)]
    for plain, mean in itertools.product((True, False), repeat=2):
        kind = [row for row in rows if (row["against"] == PLAIN_HEAD, row["set"] == MEAN) == (plain, mean)]
        for row, p_value in zip(kind, adjust_p_values([row["p"] for row in kind]), strict=True):
            row["p_holm"] = p_value
    return rows


@cache
def _draw_scores(folder: Path) -> np.ndarray | None:
    """Return scores of the delivered model and of the plain head; None if one of them was not tested."""
    run = Search(folder)
    directory, result = run.directory, run.result
    if result is None or result.plain is None:
        return None
    runs = result.verdict.training_runs or 1  # those that the verdict counts: others were cut short
    plain = _outputs(directory, result.plain.trial)[:runs]
    delivered = _outputs(directory, result.winner.trial)[:runs] if result.winner else plain
    if result.verdict.delivered == ENSEMBLE:
        members = [_outputs(directory, trial)[:1] for trial in result.ensemble_members]
        delivered = [np.mean(list(itertools.chain.from_iterable(members)), 0)]
    if not plain or not delivered:
        return None
    test = open_task(directory.task, ("test",)).splits["test"]
    rows = tested_rows(test, len(plain[0]))
    targets = test.targets if rows is None else test.targets[rows]
    return draw_scores(run.task.problem_type, result.metric, (delivered, plain), targets)


def _outputs(directory: RunDirectory, trial: int) -> list[np.ndarray]:
    """Return what each training run of a trial predicts for the test rows, with its thresholds."""
    models = [directory.final_model(trial, seed) for seed in range(TRAINING_RUNS)]
    return [
        apply_thresholds(read_test_predictions(file)[0], saved_thresholds(model))
        for model in models
        if (file := directory.test_predictions(model.name)).exists()
    ]


def _texts(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a comparison in a table."""
    interval = f"{100 * row['gain']:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
    return [
        *(str(row[name]) for name in HEADS[:4]),
        f"{100 * row['score']:.1f}",
        f"{100 * row['reference']:.1f}",
        interval,
        f"{row['p_holm']:.2g}",
    ]


def _page(name: str, compared: Sequence[Mapping[str, Any]], table: str) -> str:
    """Return the page with a chart of all comparisons."""
    items = [
        {
            "name": f"{row['set']}: {row['setting']} against {row['against']}",
            "difference": 100 * row["gain"],
            "low": 100 * row["low"],
            "high": 100 * row["high"],
            "significant": row["p_holm"] < 0.05,
        }
        for row in compared
    ]
    chart = markup.both_widths(lambda width: charts.differences(items, "test score × 100", width))
    body = markup.figure("Gains with 95 % intervals; those beyond chance are in color", chart)
    opening = f"<h1>{markup.statement(name)}</h1><p>{markup.statement(NOTE)}</p>"
    return page.document(
        name, opening, f"<section>{body}</section><section>{table}</section>", "results.jsonl holds the searches."
    )
