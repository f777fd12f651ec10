"""Measure what texts without labels are worth: further pretraining, then 500 labels; and distillation.

Further pretraining: the encoder is trained on masked tokens of 20,000 unlabelled texts of SST-2. The old encoder
and the new one are then fine-tuned on 500 labelled rows with a fixed recipe and three seeds, and scored on test rows.
The solved head of each, whose out-of-fold score is what a search decides by, is measured too.

Distillation: a model of the encoder, fine-tuned on the same 500 rows, labels the texts. A student with a smaller
encoder (`--student`) learns from its probabilities. The reference is a model of that encoder, trained on the 500 rows.

    python benchmarks/pretraining.py --data DIR --student DIR --out benchmarks/results/pretraining.json

Scores in the `.jsonl` file beside the result are not repeated. Test texts are not among the unlabelled ones.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pandas
from draws import CLASSES, sample
from encoder_ranking import solved_score
from measure import encoder_folder, finish, options
from scipy.stats import t

from headhunt.data import Task

SEEDS = (0, 1, 2)
ROWS, TEXTS, EPOCHS, STUDENT_EPOCHS = 500, 20_000, 1.0, 1.0
RECIPE = {"learning_rate": 1e-4, "head_lr_multiplier": 5.0, "freeze": "embeddings", "layer_decay": 0.95}
HEAD = {"pooling": "mean"}


def draw(data: Path, name: str, folder: Path, rows: int, texts: int, test_rows: int) -> tuple[Task, Path, Path]:
    """Return the labelled rows as a task, the file of unlabelled texts, and the file of test rows."""
    train = pandas.read_parquet(data / name / "train.parquet")[["text", "label"]].drop_duplicates("text")
    test = pandas.read_parquet(data / name / "test.parquet")[["text", "label"]]
    test = test[~test.text.isin(train.text)]
    test = test.sample(min(test_rows, len(test)), random_state=0)
    labelled = sample(train, rows, CLASSES)
    others = train.drop(labelled.index)
    unlabelled = others.sample(min(texts, len(others)), random_state=0)[["text"]]
    unlabelled.to_parquet(folder / "unlabelled.parquet", index=False)
    test.to_parquet(folder / "test.parquet", index=False)
    labelled.to_parquet(folder / "train.parquet", index=False)
    return Task.load(folder / "train.parquet", test=folder / "test.parquet"), *(
        folder / f"{kind}.parquet" for kind in ("unlabelled", "test")
    )


def fine_tune(task: Task, encoder: str, seed: int, epochs: float, out: Path | None = None) -> float:
    """Return the test accuracy of a fine-tuning run with the fixed recipe."""
    import headhunt
    from headhunt.spec import Spec

    spec = Spec.from_dict({"encoder": encoder, "head": HEAD, "recipe": {**RECIPE, "epochs": epochs}})
    predictor = headhunt.fit(task, spec=spec, seed=seed, out=out)
    return float(predictor.facts["test"]["scores"]["accuracy"]["value"])


class Log:
    """The scores so far, by key; each is appended to a file at once."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.entries = [json.loads(line) for line in lines]

    def get(self, **key: Any) -> dict[str, Any] | None:
        """Return the entry of a key, if it is known."""
        return next((each for each in self.entries if key.items() <= each.items()), None)

    def add(self, **entry: Any) -> dict[str, Any]:
        """Store an entry."""
        print(entry, flush=True)
        self.entries.append(entry)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        return entry


def measure_pretraining(
    log: Log,
    task: Task,
    unlabelled: Path,
    encoder: str,
    folder: Path,
    epochs: float,
    tuned: float,
    seeds: Sequence[int],
) -> None:
    """Fine-tune the encoder as it was and after further pretraining."""
    from headhunt.engine.api import pretrain

    wanted = [{"part": "pretraining", "kind": "solved", "seed": 0}]
    wanted += [{"part": "pretraining", "kind": "fine-tuned", "seed": seed} for seed in seeds]
    for name in ("original", "pretrained"):
        missing = [key for key in wanted if log.get(encoder=name, **key) is None]
        place = encoder
        if missing and name == "pretrained":
            place = str(folder / "encoder")
            started = time.perf_counter()
            done = pretrain(encoder, str(unlabelled), out=place, epochs=epochs)
            if log.get(part="pretraining", kind="training") is None:
                seconds = round(time.perf_counter() - started, 1)
                losses = {"first_loss": done.first_loss, "last_loss": done.last_loss, "seconds": seconds}
                log.add(part="pretraining", kind="training", texts=done.texts, epochs=done.epochs, **losses)
        for key in missing:
            solved = key["kind"] == "solved"
            score = solved_score(task, place) if solved else fine_tune(task, place, key["seed"], tuned)
            log.add(encoder=name, **key, score=round(score, 4))


def measure_distillation(
    log: Log, task: Task, files: tuple[Path, Path], encoder: str, small: str, folder: Path, epochs: float, tuned: float
) -> None:
    """Distil a model of the encoder into one of the smaller encoder, beside one that learns from the labels alone."""
    from headhunt.engine.distillation import distil

    if log.get(part="distillation", kind="labels alone") is None:
        log.add(part="distillation", kind="labels alone", score=round(fine_tune(task, small, 0, tuned), 4))
    if log.get(part="distillation", kind="student") is not None:
        return
    fine_tune(task, encoder, 0, tuned, folder / "teacher")
    unlabelled, test = files
    done = distil(
        folder / "teacher", str(unlabelled), encoder=small, out=folder / "student", test=str(test), epochs=epochs
    )
    for kind, each in (("teacher", done.teacher), ("student", done.student)):
        cost = {"latency_ms": each.cost.latency["1"].p50_ms, "megabytes": each.cost.megabytes}
        entry = {"score": round(each.scores["accuracy"].value, 4), **cost}
        log.add(part="distillation", kind=kind, texts=done.texts, agreement=done.agreement, **entry)


def summarize(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores of both parts, with the mean and the standard deviation over seeds."""
    result: dict[str, Any] = {}
    for name in ("original", "pretrained"):
        of_name = [each for each in entries if each.get("encoder") == name]
        tuned = [each["score"] for each in of_name if each["kind"] == "fine-tuned"]
        solved = [each["score"] for each in of_name if each["kind"] == "solved"]
        if tuned:
            spread = round(stdev(tuned), 4) if len(tuned) > 1 else None
            result[name] = {"fine_tuned": round(mean(tuned), 4), "std": spread, "runs": tuned, "solved": solved}
    for each in entries:
        if each["kind"] == "training" or each["part"] == "distillation":
            name = "pretraining" if each["kind"] == "training" else each["kind"].replace(" ", "_")
            result[name] = {key: value for key, value in each.items() if key not in ("part", "kind")}
    if "original" in result and "pretrained" in result:
        pairs = zip(result["pretrained"]["runs"], result["original"]["runs"], strict=False)
        result["gain_by_seed"] = gains = [round(new - old, 4) for new, old in pairs]
        result["gain"] = round(mean(gains), 4)
        if len(gains) > 1:  # Student's t over seeds
            half = float(t.ppf(0.975, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
            result["gain_low"], result["gain_high"] = round(mean(gains) - half, 4), round(mean(gains) + half, 4)
    return result


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--student", default=None, metavar="DIR", help="encoder of the student; none: no distillation")
    parser.add_argument("--set", default="sst2", help="data set with train and test rows, such as sst2 or imdb")
    parser.add_argument("--epochs", type=float, default=EPOCHS, help="of further pretraining")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    sizes = (40, 200, 40) if args.quick else (ROWS, TEXTS, 2_000)
    seeds, tuned, epochs = (SEEDS[:1], 1.0, 0.2) if args.quick else (SEEDS, 10.0, args.epochs)
    log = Log(args.out.with_suffix(".jsonl") if args.out and not args.quick else None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.quick:
            os.environ["HEADHUNT_CACHE"] = name
        task, *files = draw(args.data, args.set, folder, *sizes)
        measure_pretraining(log, task, files[0], encoder, folder, epochs, tuned, seeds)
        if args.student or args.quick:
            small = args.student or encoder
            student_epochs = 0.3 if args.quick else STUDENT_EPOCHS
            measure_distillation(log, task, (files[0], files[1]), encoder, small, folder, student_epochs, tuned)
    finish(args, {"set": args.set, "rows": sizes[0], "texts": sizes[1], **summarize(log.entries)})


if __name__ == "__main__":
    main()
