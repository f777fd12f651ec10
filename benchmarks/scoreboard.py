"""Compare Headhunt with other tools: the same rows, the same time, and test rows that are predicted once.

`--peers DIR` has a script `run_NAME.py` per tool, which takes `--train`, `--test`, `--out`, `--seconds` and `--seed`,
reads the encoder from the variable PB_ENCODER, and writes JSON with `test_acc` and `wall_s`. If it also has
`predictions` of the test rows, any metric can be computed; otherwise the tool is compared by accuracy alone. A script
runs with the Python of its environment in DIR (`v_hf`, `v_setfit`, `v_ag`), or with this one if there is none.

There are two tables. In `same`, all tools have the first encoder. In `own`, Headhunt chooses from all encoders, and
tools that need a sentence encoder get the one named by `--sentence-encoder`.

The tools do not see the test rows: sst2's test rows for SST sentences; the test rows of mrpc that earlier
benchmarks did not draw, and its dev rows; training rows of trec6 that no draw has. Earlier benchmarks have used
some of them: those of mrpc, stsb, ag_news, sst2 and banking77.

    python benchmarks/scoreboard.py --data DIR --peers DIR --encoder DIR --encoders DIR,DIR --cells "same-sst-*"
    python benchmarks/scoreboard.py --summary

A cell is one tool on one draw, and one line of `scoreboard.jsonl`. Cells that are stored are not repeated.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from draws import CLASSES, REGRESSION, fit_frozen, sample
from measure import RESULTS, encoder_folders, finish, options, provenance

from headhunt.data import Task
from headhunt.evaluation import evaluate
from headhunt.run.directory import RunDirectory

EARLIER_DRAWS = range(13)  # of training rows, by earlier benchmarks and here
EARLIER_TEST_ROWS = 1_000
MAX_TEST_ROWS = 2_000
SHOTS = 16
HEADHUNT = "headhunt"


@dataclass(frozen=True)
class Peer:
    """A tool that Headhunt is compared with."""

    title: str
    environment: str
    """Name of the directory of its virtual environment."""
    pairs: bool = True
    """Whether it takes pairs of texts."""
    chooses: bool = False
    """Whether it gets the sentence encoder in the table `own`."""


PEERS = {
    "plain": Peer("Trainer, 5 epochs at 5e-5", "v_hf"),
    "hf_optuna": Peer("Trainer + Optuna", "v_hf"),
    "setfit": Peer("SetFit", "v_setfit", pairs=False, chooses=True),
    "probe": Peer("frozen + logistic regression", "v_hf", chooses=True),
    "autogluon": Peer("AutoGluon", "v_ag"),
    "frozen": Peer("frozen + ridge regression", "", chooses=True),
}
"""`frozen` is that of draws.py, for numbers, which the others do not take."""
STRONGEST = ("setfit", "probe")
"""The strongest peers for one text and for pairs; they and Headhunt have a third draw."""


@dataclass(frozen=True)
class Setting:
    """A data set with a number of rows and a time limit."""

    rows: int = 500
    seconds: int = 300
    metric: str = "accuracy"
    pair: bool = False
    few: bool = False
    """Whether there are 16 rows per class."""

    @property
    def problem_type(self) -> str:
        """Problem type of the data set."""
        return REGRESSION if self.metric == "pearson" else CLASSES

    @property
    def draws(self) -> range:
        """Seeds of the training rows."""
        return range(10, 20) if self.few else range(10, 13)


SETTINGS = {
    "sst": Setting(),
    "trec6": Setting(),
    "mrpc": Setting(pair=True),
    "cola": Setting(metric="mcc"),
    "banking77": Setting(rows=1_000),
    "stsb": Setting(rows=1_000, metric="pearson", pair=True),
    "few_sst": Setting(seconds=60, few=True),
    "few_ag_news": Setting(seconds=60, few=True),
}


@dataclass(frozen=True)
class Cell:
    """One tool on one draw."""

    table: str
    """`same` or `own`."""
    setting: str
    tool: str
    draw: int

    @property
    def name(self) -> str:
        """The name in files and patterns, such as "same-sst-headhunt-10"."""
        return f"{self.table}-{self.setting}-{self.tool}-{self.draw}"


def list_cells() -> list[Cell]:
    """Return all cells, draw by draw, so that a beginning of them can be compared."""
    cells = []
    for draw in range(10, 20):
        for table in ("same", "own"):
            for name, setting in SETTINGS.items():
                if draw in setting.draws:
                    tools = [HEADHUNT, *(peer for peer in PEERS if runs(table, setting, peer, draw))]
                    cells += [Cell(table, name, tool, draw) for tool in tools]
    return cells


def runs(table: str, setting: Setting, peer: str, draw: int) -> bool:
    """Return whether a peer has a cell of its own."""
    facts = PEERS[peer]
    if (peer == "frozen") != (setting.problem_type == REGRESSION):
        return False
    if (setting.pair and not facts.pairs) or (table == "own" and not facts.chooses):
        return False
    return setting.few or draw < setting.draws[-1] or peer in (STRONGEST[setting.pair], "frozen")


def read(data: Path, name: str, split: str) -> pandas.DataFrame:
    """Return a split with the columns text, text_b and label."""
    return pandas.read_parquet(data / name / f"{split}.parquet")[["text", "text_b", "label"]]


def sst(data: Path) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return SST sentences without the neutral class, and sst2's test rows."""
    train = read(data, "cs224n_sst5", "train")
    train = train[train.label.astype(int) != 2]
    # The test rows are in lower case.
    labels = np.where(train.label.astype(int) > 2, "positive", "negative")
    return train.assign(label=labels, text=train.text.str.lower()), read(data, "sst2", "test")


def trec6(data: Path) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return the training rows, and 1,000 of them that no draw of 500 has."""
    train = read(data, "trec6", "train")
    drawn = {index for seed in EARLIER_DRAWS for index in train.sample(500, random_state=seed).index}
    return train, train[~train.index.isin(drawn)].sample(1_000, random_state=0)


def mrpc(data: Path) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return the training rows, and the test rows that were not drawn before with the dev rows."""
    test = read(data, "mrpc", "test")
    drawn = test.sample(EARLIER_TEST_ROWS, random_state=0).index
    return read(data, "mrpc", "train"), pandas.concat([test[~test.index.isin(drawn)], read(data, "mrpc", "dev")])


def official(name: str, test: str = "test") -> Callable[[Path], tuple[pandas.DataFrame, pandas.DataFrame]]:
    """Return a function that reads the training rows and the rows of another split."""
    return lambda data: (read(data, name, "train"), read(data, name, test))


SOURCES = {
    "sst": sst,
    "trec6": trec6,
    "mrpc": mrpc,
    "cola": official("cola", "dev"),
    "banking77": official("banking77"),
    "stsb": official("stsb"),
    "few_sst": sst,
    "few_ag_news": official("ag_news"),
}


def draw_rows(
    cell: Cell, setting: Setting, data: Path, folder: Path, test_rows: int = MAX_TEST_ROWS
) -> tuple[Path, Path]:
    """Write the training rows of a draw and the test rows to files; classes are numbers, as all tools take them."""
    train, test = SOURCES[cell.setting](data)
    if setting.few:
        groups = [group.sample(SHOTS, random_state=cell.draw) for _, group in train.groupby("label")]
        train = pandas.concat(groups).sample(frac=1, random_state=cell.draw)
    elif cell.setting == "banking77":
        train = sample(train, setting.rows, CLASSES, cell.draw)  # at least two rows per class
    else:
        train = train.sample(setting.rows, random_state=cell.draw)
    test = test[~test.text.isin(train.text)]
    test = test.sample(min(test_rows, len(test)), random_state=0)
    columns = ["text", "text_b", "label"] if setting.pair else ["text", "label"]
    if setting.problem_type == CLASSES:
        numbers = {label: number for number, label in enumerate(sorted(train.label.unique()))}
        train, test = (frame.assign(label=frame.label.map(numbers)) for frame in (train, test))
    paths = folder / f"{cell.setting}_train.parquet", folder / f"{cell.setting}_test.parquet"
    for frame, path in zip((train, test), paths, strict=True):
        frame[columns].to_parquet(path, index=False)
    return paths


class Scoreboard:
    """Runs cells and stores them.

    Args:
        args: The options of the command.
        log: The `.jsonl` file.
        settings: Settings by name.
    """

    def __init__(self, args: Namespace, log: Path, settings: dict[str, Setting]) -> None:
        self.args, self.log, self.settings = args, log, settings
        self.encoders = encoder_folders(args.encoder, args.encoders)
        self.rows = read_rows(log)

    def run(self, cell: Cell, folder: Path) -> None:
        """Measure a cell in an empty directory and store it."""
        setting = self.settings[cell.setting]
        train, test = draw_rows(cell, setting, self.args.data, folder, 200 if self.args.quick else MAX_TEST_ROWS)
        run = self._run_headhunt if cell.tool == HEADHUNT else self._run_peer
        row = {"cell": cell.name, "table": cell.table, "setting": cell.setting, "tool": cell.tool, "draw": cell.draw}
        row |= {"metric": setting.metric, "limit_s": setting.seconds, "score": None, "accuracy": None}
        row |= run(cell, setting, train, test, folder) | provenance()
        self.rows.append(row)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(json.dumps({key: row[key] for key in ("cell", "score", "accuracy", "seconds", "exit")}), flush=True)

    def _run_headhunt(self, cell: Cell, setting: Setting, train: Path, test: Path, folder: Path) -> dict[str, Any]:
        encoders = list(self.encoders.values()) if cell.table == "own" else [next(iter(self.encoders.values()))]
        command = [sys.executable, "-m", "headhunt.cli", "search", str(train), "--test", str(test)]
        command += ["--problem-type", setting.problem_type, "--metric", setting.metric]
        command += ["--encoder", ",".join(encoders), "--time", f"{setting.seconds}s", "--seed", str(cell.draw)]
        directory = RunDirectory(folder / "run")
        with keep_models(directory, folder / "models") as kept:
            code, _, seconds, output = run_command([*command, "--json", "--out", str(directory.path)], setting.seconds)
        row: dict[str, Any] = {"seconds": round(seconds, 1), "exit": code}
        result = directory.read_result()
        if code or result is None or not directory.model.exists():
            print(output[-3000:], flush=True)
            return row
        verdict = result.verdict
        row |= {"claim": verdict.claim, "gain": verdict.gain, "low": verdict.low, "high": verdict.high}
        task = Task.load(train, test=test, problem_type=setting.problem_type)  # type: ignore[arg-type]
        targets = task.splits["test"].targets
        scores = [
            score(setting, delivered_predictions(model, task), targets, task.labels)
            for model in (*(model for _, model in kept), directory.model)
        ]
        times = [*(at for at, _ in kept), seconds]
        curve = [[round(at, 1), found["score"]] for at, found in zip(times, scores, strict=True)]
        return row | {"curve": curve} | scores[-1]

    def _run_peer(self, cell: Cell, setting: Setting, train: Path, test: Path, folder: Path) -> dict[str, Any]:
        peer, out = PEERS[cell.tool], folder / "result.json"
        encoder = next(iter(self.encoders.values()))
        if cell.table == "own" and self.args.sentence_encoder:
            encoder = self.args.sentence_encoder
        if cell.tool == "frozen":
            task = Task.load(train, test=test, problem_type=setting.problem_type)  # type: ignore[arg-type]
            fitted = fit_frozen(task, encoder, setting.seconds)
            found = score(setting, fitted.predictions, task.splits["test"].targets, task.labels)
            return {"seconds": round(fitted.seconds, 1), "exit": 0} | found
        python = self.args.peers / peer.environment / "bin" / "python"
        words = [str(python) if python.exists() else sys.executable, str(self.args.peers / f"run_{cell.tool}.py")]
        words += ["--train", str(train), "--test", str(test), "--out", str(out), "--seed", str(cell.draw)]
        # The scripts write beside themselves; the working directory is a temporary one.
        begin = f'cd "{folder}" && PB_ENCODER="{encoder}" exec "$@"'
        command = ["bash", "-c", begin, "peer", *words, "--seconds", str(setting.seconds)]
        code, _, seconds, output = run_command(command, setting.seconds)
        row: dict[str, Any] = {"seconds": round(seconds, 1), "exit": code}
        if code or not out.exists():
            print(output[-3000:], flush=True)
            return row
        result = json.loads(out.read_text(encoding="utf-8"))
        row["accuracy"] = accuracy = read_accuracy(result["test_acc"])
        if "runs" in result:  # several training runs, of which a user would do one
            each = [run["run_s"] for run in result["runs"]]
            row["seconds"] = round(result.get("startup_s", 0.0) + sum(each) / len(each), 1)
        if "predictions" in result:
            targets = pandas.read_parquet(test).label.to_numpy()
            names = [str(number) for number in range(int(targets.max()) + 1)]
            return row | score(setting, np.asarray(result["predictions"]), targets, names)
        return row | {"score": accuracy if setting.metric == "accuracy" else None}


@contextmanager
def keep_models(run: RunDirectory, folder: Path) -> Iterator[list[tuple[float, Path]]]:
    """Copy every model that a search has as its best so far; yield them, with the seconds since the start of the block.

    The models are scored after the search, so that it takes no time of the search.
    """
    kept: list[tuple[float, Path]] = []
    ended, started = threading.Event(), time.monotonic()

    def watch() -> None:
        last = ""
        while not ended.wait(0.2):
            copy = folder / str(len(kept))
            try:
                target = str((run.path / "best").readlink())
                if target == last:
                    continue
                shutil.copytree(run.path / target, copy, copy_function=os.link)
            except (OSError, shutil.Error):  # not there yet, or being removed
                shutil.rmtree(copy, ignore_errors=True)
                continue
            kept.append((time.monotonic() - started, copy))
            last = target

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield kept
    finally:
        ended.set()
        watcher.join()


def run_command(words: list[str], limit: float) -> tuple[int, float, float, str]:
    """Run a command; return its exit code, its start in seconds since 1970, its duration and its output.

    A command that takes three times its limit is killed with everything it started.
    """
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    began, started = time.time(), time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
        )
        try:
            code = process.wait(timeout=3 * limit + 120)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        seconds = time.monotonic() - started
        output.seek(0)
        return code, began, seconds, output.read()


def delivered_predictions(model: Path, task: Task) -> np.ndarray:
    """Return what a user of the saved model gets for the test rows, with its own thresholds."""
    import headhunt

    test = task.splits["test"]
    predictor = headhunt.load(model)
    labels = [prediction.label for prediction in predictor.predict(test.texts(), test.texts_b())]
    numbers = {name: number for number, name in enumerate(task.labels)}
    if task.problem_type == CLASSES:
        return np.array([numbers[str(label)] for label in labels])
    return np.array(labels, np.float64)


def as_outputs(problem_type: str, predictions: np.ndarray, count: int) -> np.ndarray:
    """Return predictions in the form of a model's outputs: a class id becomes a row with a single 1."""
    return np.eye(count)[predictions.astype(int)] if problem_type == CLASSES else predictions


def read_accuracy(found: Any) -> float:
    """Return the accuracy of a peer; of several learning rates, the mean of the runs with the usual one."""
    return float(found["5e-05"]["mean"] if isinstance(found, dict) else found)


def score(setting: Setting, predictions: np.ndarray, targets: np.ndarray, labels: Any) -> dict[str, Any]:
    """Return the score of predictions of the test rows, and their accuracy if there are classes."""
    outputs = as_outputs(setting.problem_type, predictions, len(labels))
    scores = evaluate(setting.problem_type, outputs, targets, labels).scores  # type: ignore[arg-type]
    found = {"score": round(scores[setting.metric].value, 4)}
    return found | ({"accuracy": round(scores["accuracy"].value, 4)} if "accuracy" in scores else {})


def read_rows(log: Path) -> list[dict[str, Any]]:
    """Return the last line of each cell that is stored."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return list({row["cell"]: row for row in map(json.loads, lines)}.values())


def choose_cells(args: Namespace) -> list[Cell]:
    """Return the cells that the options select."""
    cells = [cell for cell in list_cells() if cell.table == "same" or args.encoders]
    patterns = args.cells.split(",") if args.cells else ["same-few_sst-*-10"] if args.quick else ["*"]
    if args.quick and not args.cells:
        cells = [cell for cell in cells if cell.tool in (HEADHUNT, "probe")]
    return [cell for cell in cells if any(fnmatch.fnmatch(cell.name, pattern) for pattern in patterns)]


def main() -> None:
    parser = options(__doc__, data=False)
    parser.add_argument("--data", type=Path, metavar="DIR", help="directory with a subdirectory per data set")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="directory with the scripts of other tools")
    parser.add_argument("--encoders", default="", metavar="DIR,DIR", help="further encoders of the table `own`")
    parser.add_argument("--sentence-encoder", metavar="DIR", help="encoder of SetFit and probe in the table `own`")
    parser.add_argument("--cells", default="", metavar="PATTERN", help='only these, such as "same-*-setfit-*,own-*"')
    parser.add_argument("--summary", action="store_true", help="compare and draw the cells that are stored")
    args = parser.parse_args()
    log = args.out or RESULTS / "scoreboard.jsonl"
    if args.summary:
        from scoreboard_summary import summarize

        finish(Namespace(out=log.with_suffix(".json")), summarize(log))
        return
    if args.data is None or args.peers is None:
        parser.error("--data and --peers are required, except with --summary")
    settings = SETTINGS
    if args.quick:
        settings = {name: replace(setting, seconds=30) for name, setting in SETTINGS.items()}
    with tempfile.TemporaryDirectory() as temporary:
        if args.quick and not args.out:
            log = Path(temporary) / "scoreboard.jsonl"
        board = Scoreboard(args, log, settings)
        done = {row["cell"] for row in board.rows if row["exit"] == 0}
        for cell in choose_cells(args):
            if cell.name not in done:
                with tempfile.TemporaryDirectory() as folder:
                    os.environ["HEADHUNT_CACHE"] = f"{folder}/cache"  # nothing is left from earlier cells
                    board.run(cell, Path(folder))
        finish(Namespace(out=None), {"cells": len(board.rows), "each": board.rows})


if __name__ == "__main__":
    main()
