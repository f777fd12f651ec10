"""Metrics, paired comparisons and calibration; needs no torch."""

from headhunt.evaluation.metrics import (
    DEFAULT_METRIC,
    METRICS,
    ClassRow,
    Comparison,
    Evaluation,
    Score,
    check_metric,
    compare,
    decide,
    evaluate,
    fit_temperature,
    greedy_mean,
    measure,
    reliability,
)

__all__ = [
    "DEFAULT_METRIC",
    "METRICS",
    "ClassRow",
    "Comparison",
    "Evaluation",
    "Score",
    "check_metric",
    "compare",
    "decide",
    "evaluate",
    "fit_temperature",
    "greedy_mean",
    "measure",
    "reliability",
]
