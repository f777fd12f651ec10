"""Paired comparison of two models on the same rows, and selection of the models of an ensemble.

All gains are signed so that above 0 is better. For a metric that is an error (mse), a gain of 0.1 means that the error
is lower by 0.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headhunt.evaluation.bootstrap import BOOTSTRAP_SAMPLES, bootstrap_weights
from headhunt.evaluation.metrics import MULTI_TASK, decide, measure, parts_of, scorer

MEAN = "mean"  # of several sets
LARGE = 20_000  # rows from which a fifth of the bootstrap samples is enough


@dataclass(frozen=True)
class Comparison:
    """Gain of one model over another on the same rows, with its uncertainty."""

    gain: float
    """Difference of the metric, signed so that above 0 is better."""
    low: float
    """Lower end of the 95 % interval of the gain."""
    high: float
    """Upper end of the 95 % interval of the gain."""
    p_value: float
    """Two-sided p-value."""
    training_std_error: float
    """Part of the standard error that is due to randomness in training."""
    training_runs: int = 1
    """Number of training runs of each model."""

    @property
    def significant(self) -> bool:
        """True if the interval is above 0 and several training runs of each model were compared."""
        return self.low > 0 and self.training_runs > 1


def compare(
    problem_type: str,
    metric: str,
    outputs: Sequence[np.ndarray],
    baseline: Sequence[np.ndarray],
    targets: np.ndarray,
    *,
    groups: np.ndarray | None = None,
    seed: int = 0,
) -> Comparison:
    """Return the gain of a model over a baseline, paired by rows and by training runs.

    The interval has two sources. One is the choice of test rows: a bootstrap over rows, the same ones for both models.
    The other is randomness in training: the variance of the gain between pairs of training runs. Without the second,
    two training runs of the same model would often seem to differ significantly. One pair has no such variance.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        metric: Name of the metric. The gain of an error (mse) is negated, so that above 0 is better.
        outputs: Outputs of one or more training runs of the model.
        baseline: Outputs of as many training runs of the baseline; the i-th of both learned from the same rows.
        targets: True values.
        groups: Group of each row. Rows of a group, such as those of one user, are not independent: groups are drawn
            instead of rows. Several tasks have none.
        seed: Random seed of the bootstrap.
    """
    scores = [[measure(problem_type, metric, run, targets) for run in runs] for runs in (outputs, baseline)]
    gains = [run - baseline_run for run, baseline_run in zip(*scores, strict=True)]
    row_error = _row_error(problem_type, metric, outputs, baseline, targets, groups, seed)
    draws = len(targets if groups is None else np.unique(groups))
    return _from_variances(float(np.mean(scores[0]) - np.mean(scores[1])), row_error**2, draws, gains)


def _row_error(
    problem_type: str,
    metric: str,
    outputs: Sequence[np.ndarray],
    baseline: Sequence[np.ndarray],
    targets: np.ndarray,
    groups: np.ndarray | None,
    seed: int,
) -> float:
    """Return the standard error of the gain that is due to the choice of rows."""
    if problem_type == MULTI_TASK:  # rows of different tasks are independent
        models = [[parts_of(metric, run, targets) for run in runs] for runs in (outputs, baseline)]
        errors = []
        for number, part in enumerate(models[0][0]):
            runs = [[run[number].outputs for run in model] for model in models]
            errors.append(_row_error(part.problem_type, part.metric, runs[0], runs[1], part.targets, None, seed))
        return float(np.sqrt(np.sum(np.square(errors)))) / len(errors)
    if metric == "accuracy":
        # Accuracy is a mean over rows, so the standard error of the bootstrap is known without drawing samples.
        correct = [
            np.mean([_correct(problem_type, run, targets) for run in runs], axis=0) for runs in (outputs, baseline)
        ]
        # One row more that only one of the two predicts, for each: a small sample is never certain.
        differences = np.append(correct[0] - correct[1], [1.0, -1.0])
        deviations = differences - differences.mean()
        if groups is not None:
            members = np.unique(groups, return_inverse=True)[1]
            members = np.append(members, members.max() + np.array([1, 2]))
            deviations = np.bincount(members, deviations)
        # Sums of groups, as in cluster-robust standard errors; without groups, the standard error of a mean.
        count = len(deviations)
        return float(np.sqrt(np.square(deviations).sum() * count / (count - 1) / len(differences) / len(targets)))
    scorers = [[scorer(problem_type, metric, run, targets) for run in runs] for runs in (outputs, baseline)]
    samples = BOOTSTRAP_SAMPLES if len(targets) <= LARGE else BOOTSTRAP_SAMPLES // 5
    draws = []
    for weights in bootstrap_weights(np.random.default_rng(seed), len(targets), samples, groups):
        scores, others = (np.array([score(weights) for score in each]) for each in scorers)
        draws.append((scores - others).mean(0))
    return float(np.std(np.concatenate(draws)))


def standard_error(
    problem_type: str, metric: str, outputs: np.ndarray, targets: np.ndarray, *, samples: int = 100
) -> float:
    """Return the standard error of a model's score, due to the choice of the rows it is evaluated on.

    Args:
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        metric: Name of the metric.
        outputs: Outputs of the model.
        targets: True values.
        samples: Number of bootstrap samples, for metrics that are no means over rows.
    """
    if problem_type == MULTI_TASK:
        errors = [
            standard_error(part.problem_type, part.metric, part.outputs, part.targets, samples=samples)
            for part in parts_of(metric, outputs, targets)
        ]
        return float(np.sqrt(np.sum(np.square(errors)))) / len(errors)
    if metric == "accuracy":
        # With all rows right or all wrong, one row more of the other kind: a small sample is never certain.
        right = float(_correct(problem_type, outputs, targets).sum())
        accuracy = (right + 1) / (len(targets) + 2)
        return float(np.sqrt(accuracy * (1 - accuracy) / len(targets)))
    score = scorer(problem_type, metric, outputs, targets)
    draws = bootstrap_weights(np.random.default_rng(0), len(targets), samples)
    scores = np.concatenate([score(weights) for weights in draws])
    finite = scores[np.isfinite(scores)]
    return float(np.std(finite)) if len(finite) else 0.0


def draw_scores(
    problem_type: str, metric: str, models: Sequence[Sequence[np.ndarray]], targets: np.ndarray
) -> np.ndarray:
    """Return mean scores of each model's training runs on all rows, and on bootstrap samples (models, 1 + samples).

    The samples of as many rows are always the same, so that models of several searches can be paired.

    Args:
        problem_type: As for `compare`.
        metric: As for `compare`.
        models: Outputs of the training runs of each model.
        targets: True values.
    """
    weights = bootstrap_weights(np.random.default_rng(0), len(targets), BOOTSTRAP_SAMPLES)
    batches = [np.ones((1, len(targets))), *weights]
    scorers = [[scorer(problem_type, metric, run, targets) for run in runs] for runs in models]
    return np.array([np.concatenate([np.mean([run(w) for run in runs], 0) for w in batches]) for runs in scorers])


def resample(gains: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the mean gain of resampled seeds (1 + samples,), the first one of all seeds.

    Args:
        gains: Gains by seed, on all rows and on bootstrap samples of them (seeds, 1 + samples).
        seed: Random seed.
    """
    seeds, count = gains.shape
    chosen = np.random.default_rng(seed).integers(0, seeds, (seeds, count))
    chosen[:, 0] = np.arange(seeds)
    mean = gains.mean(0)
    # Samples of few seeds vary less around their mean than the seeds vary around the true one.
    drawn: np.ndarray = np.take_along_axis(gains, chosen, 0).mean(0) - mean
    return mean + np.sqrt(seeds / max(1, seeds - 1)) * drawn


def compare_sets(pairs: Mapping[str, Sequence[np.ndarray]]) -> list[dict[str, Any]]:
    """Return the gain of a model over another on each data set with its interval, and the mean of several sets.

    Args:
        pairs: Scores of both by set, for each seed, as `draw_scores` returns them. A set without any is left out.
    """
    found: dict[str, tuple[int, np.ndarray, np.ndarray]] = {
        name: (len(both), np.mean(both, 0)[:, 0], resample(np.array([one - other for one, other in both])))
        for name, both in pairs.items()
        if both
    }
    if len(found) > 1:
        counts, points, gains = zip(*found.values(), strict=True)
        found[MEAN] = (min(counts), np.mean(points, 0), np.mean(gains, 0))
    rows = []
    for name, (draws, (score, reference), drawn) in found.items():
        low, high = np.quantile(drawn[1:], [0.025, 0.975])
        rows.append(
            {
                "set": name,
                "draws": draws,
                "score": float(score),
                "reference": float(reference),
                "gain": float(drawn[0]),
                "low": float(low),
                "high": float(high),
                "p": min(1.0, 2 * float(min((drawn <= 0).mean(), (drawn >= 0).mean()))),
            }
        )
    return rows


def adjust_p_values(p_values: Sequence[float]) -> np.ndarray:
    """Return p-values of several comparisons, adjusted by Holm's method."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.asarray(p_values)[order] * np.arange(len(order), 0, -1))
    return adjusted.clip(max=1.0)


def _from_variances(gain: float, row_variance: float, draws: int, gains: Sequence[float]) -> Comparison:
    """Return the interval and the p-value from the variance over rows and the gains of pairs of training runs."""
    from scipy.stats import t

    freedom = len(gains) - 1
    training_variance = float(np.var(gains, ddof=1)) / len(gains) if freedom else 0.0
    variance = row_variance + training_variance
    # Welch–Satterthwaite: a variance that was estimated from few rows or training runs is itself uncertain.
    uncertainty = row_variance**2 / max(1, draws - 1) + (training_variance**2 / freedom if freedom else 0.0)
    distribution = t(variance**2 / uncertainty if uncertainty > 0 else max(1, draws - 1))
    error = float(np.sqrt(variance))
    half_width = float(distribution.ppf(0.975)) * error
    p_value = float(2 * distribution.sf(abs(gain) / error)) if error > 0 else float(gain == 0)
    return Comparison(
        gain, gain - half_width, gain + half_width, p_value, float(np.sqrt(training_variance)), len(gains)
    )


def _correct(problem_type: str, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return 1 for each row whose prediction is entirely correct (rows,)."""
    equal = decide(problem_type, outputs) == targets
    return (equal if equal.ndim == 1 else equal.all(1)).astype(np.float64)
