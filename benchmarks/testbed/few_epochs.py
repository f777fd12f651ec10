"""Measure which known recipe, learning rate and batch size are best when there is time for few epochs only.

The first two known recipes differ in the start of the head: random weights, or the solution for the frozen encoder.
They are trained on all rows of a tuning set, for few epochs, with several learning rates, and predict its test rows.
The first one is trained with several batch sizes.
Each training run is a line of the `.jsonl` file beside the result, and is not repeated.

    python benchmarks/testbed/few_epochs.py --data DIR --encoder DIR --out benchmarks/results/testbed_few_epochs.json
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

sys.path.append(str(Path(__file__).parents[1]))
from draws import CLASSES, sample

SETS = {"subj": "subj", "cr": "cr", "mpqa": "mpqa", "umsab_en": "umsab_sentiment", "clinc30": "clinc150"}
"""The tuning sets and their folders: umsab_en has the English rows, clinc30 has 30 random intents."""
INTENTS = 30
MAX_TEST_ROWS = 1_000
SET_NAMES = ("mpqa", "clinc30", "cr")
STARTS = ("random", "solved")
VARIANTS = ((2.0, 1e-4), (4.0, 1e-4), (4.0, 2e-4), (4.0, 4e-4))
"""Epochs and learning rate."""
BATCH_SIZES = (32, 16, 8)
ROWS = 500
BATCH_SETS = ("mpqa", "clinc30", "cr", "subj", "umsab_en")
KEY = ("set", "start", "epochs", "rate", "batch")


def read(data: Path, name: str, split: str) -> pandas.DataFrame:
    """Return the rows of a split that belong to a tuning set."""
    frame = pandas.read_parquet(data / SETS[name] / f"{split}.parquet")
    if name == "umsab_en":
        frame = frame[frame.lang == "english"]
    if name == "clinc30":
        names = np.array(sorted(set(frame.label) - {"oos"}))
        frame = frame[frame.label.isin(np.random.default_rng(0).permutation(names)[:INTENTS])]
    return frame[["text", "label"]].reset_index(drop=True)


def draw_set(
    data: Path, name: str, rows: int, test_rows: int = MAX_TEST_ROWS
) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return training rows of a tuning set, and test rows whose text is not among them."""
    train, test = sample(read(data, name, "train"), rows, CLASSES), read(data, name, "test")
    test = test[~test.text.isin(train.text)].drop_duplicates("text")
    return train, test.sample(min(test_rows, len(test)), random_state=0)


def measure_cell(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train a known recipe and return its test score."""
    import torch

    from headhunt.data import Task
    from headhunt.engine.trial_runner import TrialRunner
    from headhunt.engine.workers import RunnerSettings
    from headhunt.evaluation import DEFAULT_METRIC, measure
    from headhunt.predictor import Predictor
    from headhunt.run.directory import RunDirectory
    from headhunt.run.task import save_task
    from headhunt.spec import Space
    from headhunt.study.candidates import Candidates
    from headhunt.study.requests import FitAllRows

    torch.set_num_threads(1)
    known = Candidates(Space.load("default"), encoder=job["encoder"], rows=ROWS).known_recipes()
    spec = [spec for spec, _ in known][STARTS.index(job["start"])]
    changes = {"learning_rate": job["rate"], "batch_size": job["batch"], "epochs": job["epochs"]}
    spec = replace(spec, recipe=replace(spec.recipe, **changes))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        train, rows = draw_set(Path(job["data"]), job["set"], job["rows"], job["test_rows"])
        task = Task.load(train, test=rows, problem_type="single_label_classification")
        save_task(task, RunDirectory(folder / "run").task)
        metric, test = DEFAULT_METRIC[task.problem_type], task.splits["test"]
        runner = TrialRunner(RunnerSettings(directory=str(folder / "run"), metric=metric, threads=1))
        fitted = runner.run(FitAllRows(trial=0, spec=spec, seed=0, out=folder / "model"))
        if fitted.outcome != "ok":
            raise RuntimeError(f"{job}: {fitted}")
        model = Predictor.load(folder / "model", device=torch.device("cpu"))
        score = measure(task.problem_type, metric, model.outputs(test.texts(), test.texts_b()), test.targets)
    return {**{name: job[name] for name in KEY}, "test": round(100 * score, 2)}


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the test scores by epochs, rate and start, and their mean over the sets that all starts have."""
    scores: dict[tuple[float, float], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if record["batch"] == BATCH_SIZES[0]:
            scores[record["epochs"], record["rate"]][record["start"]][record["set"]] = record["test"]
    result: dict[str, Any] = {}
    for (epochs, rate), starts in sorted(scores.items()):
        common = sorted(set.intersection(*(set(by_set) for by_set in starts.values())))
        means = {start: round(float(np.mean([by_set[name] for name in common])), 2) for start, by_set in starts.items()}
        result[f"{epochs:g} epochs, {rate:g}"] = {"sets": common, "mean": means if common else {}, "scores": starts}
    return {"training_runs": len(records), "variants": result, "batch_sizes": compare_batch_sizes(records)}


def compare_batch_sizes(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean test score by set and batch size, and the mean difference to the first one."""
    epochs, rate = VARIANTS[1]
    chosen = [
        record for record in records if (record["start"], record["epochs"], record["rate"]) == ("random", epochs, rate)
    ]
    scores = {(record["set"], record["batch"]): record["test"] for record in chosen}
    result: dict[str, Any] = {}
    for size in BATCH_SIZES:
        pairs = {key: (score, scores[key[0], BATCH_SIZES[0]]) for key, score in scores.items() if key[1] == size}
        if not pairs:
            continue
        gains = np.array([first - second for first, second in pairs.values()])
        by_set = {key[0]: pair[0] for key, pair in sorted(pairs.items())}
        error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else None
        result[str(size)] = {"runs": len(gains), "gain": round(float(gains.mean()), 2), "sets": by_set}
        result[str(size)]["standard_error"] = None if error is None else round(error, 2)
    return result


def main() -> None:
    from measure import encoder_folder, finish, options, run_jobs

    parser = options(__doc__)
    parser.add_argument("--sets", nargs="*", default=list(SET_NAMES), choices=list(SETS), help="sets to work on")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    common = {"data": str(args.data), "encoder": encoder_folder(args.encoder), "rows": ROWS, "test_rows": MAX_TEST_ROWS}
    cells = [(name, start, *variant, 32) for variant in VARIANTS for name in args.sets for start in STARTS]
    cells += [(name, "random", *VARIANTS[1], size) for name in BATCH_SETS for size in BATCH_SIZES]
    cells = list(dict.fromkeys(cells))
    if args.quick:
        cells, common = [("mpqa", "random", 1.0, 1e-4, 32)], {**common, "rows": 60, "test_rows": 30}
    jobs = [{**common, **dict(zip(KEY, cell, strict=True))} for cell in cells]
    finish(args, summarize(run_jobs(args, measure_cell, jobs, KEY)))


if __name__ == "__main__":
    main()
