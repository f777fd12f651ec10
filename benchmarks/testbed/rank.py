"""Measure how well cheap criteria rank the candidates of the testbed for their test score.

The criteria are the out-of-fold score and log loss after all folds, after one fold, and at the first rung (a third of
the first fold's training). For numbers the loss is the mean squared error. The test score is that of the mean of the
fold models. Kendall's tau compares the two rankings on each set; its interval is a bootstrap over candidates. The mean
over sets has an interval over sets and candidates. The regret is the test score that is lost by choosing the best
candidate of a criterion, on average over random choices of 16 candidates. The best one in hindsight is partly luck of
the test rows, so that even a perfect criterion would have a small regret.

    python benchmarks/testbed/rank.py --table benchmarks/testbed/table --out benchmarks/results/testbed_rank.json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sets import SETS
from table import SetTable, Table, mean_loss

SAMPLES = 2_000
POOL = 16  # candidates that a choice is made from
LEAST_CANDIDATES = 6
CRITERIA = {
    "score": "out-of-fold score",
    "loss": "out-of-fold loss",
    "score_one_fold": "score of one fold",
    "loss_one_fold": "loss of one fold",
    "score_early": "score at the first rung",
    "loss_early": "loss at the first rung",
}


def criteria_of(table: SetTable, spec: str) -> dict[str, float]:
    """Return the value of every criterion for a candidate; higher is better."""
    first = table.outputs(spec, 1)[1]
    early = table.arrays[f"{spec}.early"].astype(np.float32)
    values = {"score": table.score(spec), "loss": -table.log_loss(spec)}
    if table.info.folds > 1:
        values |= {"score_one_fold": table.score(spec, 1), "loss_one_fold": -table.log_loss(spec, 1)}
    values |= {
        "score_early": table.entries[spec].rungs[0].score or 0.0,
        "loss_early": -mean_loss(table.info.problem_type, early, first),
    }
    return values


def signs(values: np.ndarray) -> np.ndarray:
    """Return the sign of the difference of every pair of values."""
    return np.sign(values[:, None] - values[None, :])


def weighted_tau(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> float:
    """Return Kendall's tau-b of two matrices of signs, with a weight for each item.

    A bootstrap draw gives an item its number of copies as weight, so that copies do not count as tied pairs.
    """
    pairs = np.outer(weights, weights)
    np.fill_diagonal(pairs, 0.0)
    spread = np.sqrt((pairs * np.abs(first)).sum() * (pairs * np.abs(second)).sum())
    return float((pairs * first * second).sum() / spread) if spread else 0.0


def draw_weights(count: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Return bootstrap weights (samples, items)."""
    return rng.multinomial(count, np.full(count, 1 / count), size=samples).astype(float)


def mean_regret(criterion: np.ndarray, test: np.ndarray, pool: int, samples: int, seed: int = 0) -> np.ndarray:
    """Return the loss of test score by choosing the best of a criterion, for random choices of candidates.

    Candidates that share the best value are equally likely to be chosen.
    """
    rng = np.random.default_rng(seed)
    losses = []
    for _ in range(samples):
        chosen = rng.permutation(len(test))[:pool]
        tied = chosen[criterion[chosen] == criterion[chosen].max()]
        losses.append(test[chosen].max() - test[tied].mean())
    return np.asarray(losses)


def interval(values: Sequence[float] | np.ndarray) -> list[float]:
    """Return the 95 % interval of bootstrap values."""
    low, high = np.quantile(np.asarray(values), [0.025, 0.975])
    return [round(float(low), 3), round(float(high), 3)]


def rank_set(criteria: Mapping[str, np.ndarray], test: np.ndarray, samples: int = SAMPLES) -> dict[str, Any]:
    """Return tau and regret of every criterion on one set.

    Args:
        criteria: Values of the candidates by criterion; higher is better.
        test: Test scores of the candidates.
        samples: Number of bootstrap draws.
    """
    weights = draw_weights(len(test), samples, np.random.default_rng(0))
    test_signs = signs(test)
    rows: dict[str, Any] = {}
    for name, values in criteria.items():
        own = signs(values)
        drawn = [weighted_tau(own, test_signs, each) for each in weights]
        losses = mean_regret(values, test, min(POOL, len(test)), samples)
        tied = values == values.max()
        rows[name] = {
            "tau": round(weighted_tau(own, test_signs, np.ones(len(test))), 3),
            "tau_interval": interval(drawn),
            "regret": round(float(losses.mean()), 4),
            "regret_of_all": round(float(test.max() - test[tied].mean()), 4),
            "draws": drawn,
            "losses": losses,
        }
    return rows


def summarize(by_set: Mapping[str, Mapping[str, Any]], samples: int = SAMPLES) -> dict[str, Any]:
    """Return the mean of every criterion over sets, with intervals over sets and candidates."""
    rng = np.random.default_rng(1)
    summary: dict[str, Any] = {}
    for name in CRITERIA:
        present = [rows[name] for rows in by_set.values() if name in rows]
        if not present:
            continue
        taus, regrets = [], []
        for _ in range(samples):
            chosen = rng.integers(0, len(present), len(present))
            draw = rng.integers(0, len(present[0]["draws"]))
            taus.append(np.mean([present[index]["draws"][draw] for index in chosen]))
            regrets.append(np.mean([present[index]["losses"].mean() for index in chosen]))
        summary[name] = {
            "tau": round(float(np.mean([row["tau"] for row in present])), 3),
            "tau_interval": interval(taus),
            "regret": round(float(np.mean([row["regret"] for row in present])), 4),
            "regret_interval": [round(float(value), 4) for value in np.quantile(regrets, [0.025, 0.975])],
            "sets": len(present),
        }
    return summary


def rank(table: Table, least: int = LEAST_CANDIDATES, samples: int = SAMPLES) -> dict[str, Any]:
    """Return the ranking quality of every criterion on every set with enough candidates, and over the main sets."""
    by_set: dict[str, Any] = {}
    sizes: dict[str, dict[str, Any]] = {}
    for name, stored in table.sets.items():
        entries = stored.entries.values()
        seconds = sum(rung.cpu_seconds for entry in entries for rung in entry.rungs)
        kept = stored.scored
        sizes[name] = {
            "rows": stored.info.rows,
            "test_rows": stored.info.test_rows,
            "candidates": len(stored.entries),
            "scored": len(kept),
            "training_runs": sum(len(rung_folds(entry.rungs, stored.info.folds)) for entry in entries),
            "cpu_seconds": round(seconds),
        }
        if len(kept) < least:
            continue
        test = np.array([stored.test_score(spec) for spec in kept])
        values = [criteria_of(stored, spec) for spec in kept]
        by_set[name] = rank_set({key: np.array([row[key] for row in values]) for key in values[0]}, test, samples)
        sizes[name] |= {"test_best": round(float(test.max()), 4), "test_median": round(float(np.median(test)), 4)}
    main = {name: rows for name, rows in by_set.items() if name in SETS and SETS[name].specs is None}
    other = {name: rows for name, rows in by_set.items() if name not in main}
    result = {"sets": sizes, "main": summarize(main, samples), "other": summarize(other, samples), "each": {}}
    for name, rows in by_set.items():
        shown = ("tau", "tau_interval", "regret", "regret_of_all")
        result["each"][name] = {key: {field: row[field] for field in shown} for key, row in rows.items()}
    return result


def rung_folds(rungs: Sequence[Any], folds: int) -> list[Any]:
    """Return the rungs that end a training run."""
    if folds == 1:
        return list(rungs)
    return [rung for rung in rungs if abs(rung.fraction * folds - round(rung.fraction * folds)) < 1e-6]


def markdown(result: Mapping[str, Any]) -> str:
    """Return the result as two tables."""
    lines = [
        "# The testbed: how well criteria rank candidates for their test score",
        "",
        f"Kendall's tau (95 % interval), and the test score lost by choosing the best of {POOL} random candidates by a"
        " criterion, in points. Means over the main sets, and over the others.",
        "",
        "| criterion | tau, main sets | points lost | tau, other sets | points lost |",
        "|---|---|---|---|---|",
    ]
    for name, words in CRITERIA.items():
        cells = []
        for group in ("main", "other"):
            row = result[group].get(name)
            cells += [_cell(row["tau"], row["tau_interval"]), f"{100 * row['regret']:.1f}"] if row else ["–", "–"]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| set | rows | test rows | candidates | scored | training runs | CPU seconds | tau, score | tau, loss |"
        " tau, one fold |",
        "|---" * 10 + "|",
    ]
    for name, facts in result["sets"].items():
        rows = result["each"].get(name, {})
        keys = ("rows", "test_rows", "candidates", "scored", "training_runs", "cpu_seconds")
        cells = [str(facts[key]) for key in keys]
        for key in ("score", "loss", "score_one_fold"):
            cells.append(_cell(rows[key]["tau"], rows[key]["tau_interval"]) if key in rows else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: float, ends: Sequence[float]) -> str:
    return f"{value:.2f} ({ends[0]:.2f} to {ends[1]:.2f})"


def parse_arguments(description: str | None) -> argparse.Namespace:
    from measure import options

    parser = options(description, data=False, encoder=False)
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "table", help="directory of the table")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments(__doc__)
    from measure import finish

    result = rank(Table(args.table), samples=200 if args.quick else SAMPLES)
    text = markdown(result)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    finish(args, result)


if __name__ == "__main__":
    main()
