"""Measure how far the thresholds of rare labels should be moved towards the common one.

A solved head of GoEmotions and of Reuters is cross-validated on 2,000 training rows: in each of three folds it is
solved on the others, its thresholds are fitted on held-out predictions of some of these rows, and the fold is scored.
`draws.py` describes the rows; no test row is used.

    python benchmarks/thresholds.py --data DIR --encoder DIR --out benchmarks/results/thresholds.json
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from draws import draw
from measure import encoder_folder, finish, options
from scipy.special import expit

from headhunt import Task
from headhunt.engine.assembly import prepare
from headhunt.evaluation import apply_thresholds, fit_thresholds, measure, thresholds
from headhunt.spec import solved
from headhunt.training.features import feature_blocks
from headhunt.training.linear import fit_linear
from headhunt.training.solve import Solving

SETS = ("goemotions", "reuters90")
LABELS = "multi_label_classification"
SHRINKAGES = (40, 20, 10, 5, 2, 1)
ROWS = (200, 400, 800, None)
"""Rows that thresholds are fitted on; None is all of them."""
METRICS = ("micro_f1", "macro_f1")
FOLDS, DRAWS = 3, 3


def score_shrinkages(task: Task, encoder: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean score out of fold by metric, rows and shrinkage."""
    train = task.splits["train"]
    training, _ = prepare(task, train, solved(encoder))
    assert isinstance(training, Solving)
    features, blocks, targets = training.features.get(training.rows), feature_blocks(training.model), train.targets
    scores: dict[tuple[str, int | None, int], list[float]] = defaultdict(list)
    fold_of = np.random.default_rng(0).permutation(len(features)) % FOLDS
    for fold in range(FOLDS):
        learned, scored = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        model = fit_linear(features[learned], blocks, targets[learned], LABELS, targets.shape[1])
        outputs, held_out = expit(model.logits(features[scored])), model.held_out
        assert held_out is not None
        probabilities, truth = expit(held_out.logits), targets[learned][held_out.rows]
        for rows in ROWS:
            for draw_number in range(DRAWS if rows else 1):
                chosen = np.random.default_rng(draw_number).permutation(len(truth))[:rows]
                for metric in METRICS:
                    for shrinkage in SHRINKAGES:
                        thresholds.SHRINKAGE = shrinkage
                        fitted = fit_thresholds(probabilities[chosen], truth[chosen], metric)
                        score = measure(LABELS, metric, apply_thresholds(outputs, fitted), targets[scored])
                        scores[metric, rows, shrinkage].append(score)
    return {
        metric: {
            f"{rows} rows" if rows else "all rows": {
                str(each): round(100 * float(np.mean(scores[metric, rows, each])), 1) for each in SHRINKAGES
            }
            for rows in ROWS
        }
        for metric in METRICS
    }


def main() -> None:
    args = options(__doc__).parse_args()
    encoder, found = encoder_folder(args.encoder), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="headhunt-") as folder:
        for name in SETS[:1] if args.quick else SETS:
            drawn = draw(name, args.data, Path(folder), 300 if args.quick else 2_000, 10)
            task = Task.load(drawn.train, test=drawn.test, problem_type=drawn.problem_type)
            found[name] = score_shrinkages(task, encoder)
            print(name, found[name], flush=True)
    finish(args, {"shrinkage": found})


if __name__ == "__main__":
    main()
