"""Compare rules for combining layers and poolings in a solved head: one block, or all of them in one ridge regression.

Every rule sees 500 rows of each data set. A single block, one layer with one pooling, is chosen by its out-of-fold
score; test rows play no part in the choice. Nothing is trained.

    python benchmarks/solved_rules.py --data DIR --encoder DIR
"""

from __future__ import annotations

import numpy as np
import pandas
from measure import encoder_folder, finish, options

from headhunt.data import Task
from headhunt.engine.assembly import prepare
from headhunt.spec import solved
from headhunt.training.ridge import fit_ridge

SETS = ("cr", "subj", "mr", "mpqa", "ag_news", "trec6", "clinc150", "banking77", "umsab_sentiment", "rte", "mrpc")
ROWS, TEST_ROWS, FOLDS = 500, 1000, 3


def load(data, name: str, rows: int) -> Task:
    """Return 500 random rows of a data set, and up to 1,000 test rows that are not among them."""
    folder = data / name
    test_file = next(path for split in ("test", "dev") if (path := folder / f"{split}.parquet").exists())
    train, test = pandas.read_parquet(folder / "train.parquet"), pandas.read_parquet(test_file)
    columns = [column for column in ("text", "text_b", "label") if column in train and train[column].notna().any()]
    train = train[columns].dropna().sample(min(rows, len(train)), random_state=0)
    counts = train["label"].value_counts()
    train = train[train["label"].isin(counts[counts > 1].index)]
    test = test[columns].dropna()
    test = test[~test["text"].isin(train["text"]) & test["label"].isin(train["label"])]
    test = test.sample(min(TEST_ROWS, len(test)), random_state=0)
    return Task.load(train, test=test, problem_type="single_label_classification", name=name)


def accuracy(features, blocks, targets, rows, predicted) -> float:
    """Return the accuracy on some rows of a ridge regression that was fitted to others."""
    ridge = fit_ridge(features[rows], blocks, targets[rows], "single_label_classification", int(targets.max()) + 1)
    return float((ridge.logits(features[predicted]).argmax(1) == targets[predicted]).mean())


def measure_set(task: Task, encoder: str) -> dict[str, float]:
    """Return the test accuracy of every rule on one data set."""
    train, test = task.splits["train"], task.splits["test"]
    spec = solved(encoder, pair=task.pair)
    features, targets = [], [train.targets, test.targets]
    for split in (train, test):
        training, _ = prepare(task, split, spec)
        features.append(training.features.get(np.arange(len(split))))
    blocks = training.model.head.feature_blocks
    features, targets = np.concatenate(features), np.concatenate(targets)
    learned, tested = np.arange(len(train)), len(train) + np.arange(len(test))
    folds = task.folds(FOLDS)
    starts = np.cumsum([0, *blocks[:-1]])
    wide = [number for number, width in enumerate(blocks) if width > 1]  # a cosine alone is no block of features
    parts = {number: features[:, starts[number] : starts[number] + blocks[number]] for number in wide}
    out_of_fold = {
        number: np.mean([accuracy(part, blocks[number : number + 1], targets, *fold) for fold in folds])
        for number, part in parts.items()
    }
    best = max(out_of_fold, key=out_of_fold.__getitem__)
    last = wide[len(wide) // (2 if task.pair else 1) - 2]  # of the last layer's three poolings, the mean
    return {
        "last layer, mean": accuracy(parts[last], blocks[last : last + 1], targets, learned, tested),
        "best single block": accuracy(parts[best], blocks[best : best + 1], targets, learned, tested),
        "all blocks": accuracy(features, blocks, targets, learned, tested),
    }


def main() -> None:
    args = options(__doc__).parse_args()
    encoder = encoder_folder(args.encoder)
    results = {}
    for name in SETS[:1] if args.quick else SETS:
        results[name] = measure_set(load(args.data, name, 200 if args.quick else ROWS), encoder)
        print(name, {rule: round(100 * score, 1) for rule, score in results[name].items()}, flush=True)
    rules = next(iter(results.values())).keys()
    means = {rule: round(float(np.mean([scores[rule] for scores in results.values()])), 4) for rule in rules}
    finish(args, {"rows": ROWS, "test_accuracy": results, "mean": means})


if __name__ == "__main__":
    main()
