"""Compare rules for combining layers and poolings in a solved head: one block, all of them in one model, or both.

Every rule sees 500 rows of each data set. A single block, one layer with one pooling, is chosen by its out-of-fold
score; test rows play no part in the choice. Nothing is trained.

Heads of many classes are solved by logistic regression. Its rules see random draws of the intents of clinc150 and of
their rows: the mean of the last layer, all blocks, and the weighted mean of these two models.

    python benchmarks/solved_rules.py --data DIR --encoder DIR
"""

from __future__ import annotations

import numpy as np
import pandas
from measure import encoder_folder, finish, options

from headhunt.data import Task
from headhunt.engine.assembly import prepare
from headhunt.spec import solved
from headhunt.training.logistic import fit_logistic
from headhunt.training.ridge import fit_ridge

SETS = ("cr", "subj", "mr", "mpqa", "ag_news", "trec6", "clinc150", "banking77", "umsab_sentiment", "rte", "mrpc")
ROWS, TEST_ROWS, FOLDS = 500, 1000, 3
MANY_CLASSES = ((77, 200), (77, 400), (77, 1000), (150, 1500))  # classes and rows
DRAWS = 3


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


def compute_features(task: Task, encoder: str):
    """Return the features and targets of the training rows, then of the test rows, and the head that reads them."""
    features, targets = [], []
    for split in (task.splits["train"], task.splits["test"]):
        training, _ = prepare(task, split, solved(encoder, pair=task.pair))
        features.append(training.features.get(np.arange(len(split))))
        targets.append(split.targets)
    return np.concatenate(features), np.concatenate(targets), training.model.head


def measure_set(task: Task, encoder: str) -> dict[str, float]:
    """Return the test accuracy of every rule on one data set."""
    features, targets, head = compute_features(task, encoder)
    blocks, rows = head.feature_blocks, len(task.splits["train"])
    learned, tested = np.arange(rows), np.arange(rows, len(targets))
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


def load_intents(data, rows: int) -> Task:
    """Return rows of each intent of clinc150, without the class of other texts, and half as many test rows."""
    splits = [
        pandas.read_parquet(data / "clinc150" / f"{name}.parquet")[["text", "label"]] for name in ("train", "test")
    ]
    train, test = (split[split["label"] != "oos"].drop_duplicates("text") for split in splits)
    test = test[~test["text"].isin(train["text"])]
    train, test = (
        split.groupby("label").sample(count, random_state=0) for split, count in ((train, rows), (test, rows // 2))
    )
    return Task.load(train, test=test, problem_type="single_label_classification", name="clinc150")


def measure_many_classes(task: Task, encoder: str) -> dict[str, dict[str, float]]:
    """Return the mean test accuracy of every rule over draws of classes and rows."""
    features, targets, head = compute_features(task, encoder)
    blocks, mean, train_rows = head.feature_blocks, head.last_mean, len(task.splits["train"])
    results = {}
    for classes, rows in MANY_CLASSES:
        found: dict[str, list[float]] = {}
        for draw in range(DRAWS):
            rng = np.random.default_rng(draw)
            chosen = np.flatnonzero(np.isin(targets, rng.permutation(len(task.labels))[:classes]))
            learned, tested = rng.permutation(chosen[chosen < train_rows])[:rows], chosen[chosen >= train_rows]
            numbers = np.unique(targets[chosen], return_inverse=True)[1]
            numbers = dict(zip(chosen.tolist(), numbers.tolist(), strict=True))
            classes_of = [np.array([numbers[row] for row in part.tolist()]) for part in (learned, tested)]
            rules = {
                "last layer, mean": (mean, [mean.stop - mean.start], None),
                "all blocks": (slice(None), blocks, None),
                "mean of both models": (slice(None), blocks, mean),
            }
            for rule, (used, widths, last_mean) in rules.items():
                model = fit_logistic(features[learned, used], widths, classes_of[0], classes, last_mean=last_mean)
                correct = model.logits(features[tested, used]).argmax(1) == classes_of[1]
                found.setdefault(rule, []).append(float(correct.mean()))
        name = f"{classes} classes, {rows} rows"
        results[name] = {rule: round(float(np.mean(scores)), 4) for rule, scores in found.items()}
        print(name, results[name], flush=True)
    return results


def main() -> None:
    args = options(__doc__).parse_args()
    encoder = encoder_folder(args.encoder)
    results = {}
    for name in SETS[:1] if args.quick else SETS:
        results[name] = measure_set(load(args.data, name, 200 if args.quick else ROWS), encoder)
        print(name, {rule: round(100 * score, 1) for rule, score in results[name].items()}, flush=True)
    rules = next(iter(results.values())).keys()
    means = {rule: round(float(np.mean([scores[rule] for scores in results.values()])), 4) for rule in rules}
    found = {"rows": ROWS, "test_accuracy": results, "mean": means}
    if not args.quick:
        found["many_classes"] = measure_many_classes(load_intents(args.data, 40), encoder)
    finish(args, found)


if __name__ == "__main__":
    main()
