"""Metrics, paired comparisons and calibration; needs no torch."""

from headhunt.evaluation.calibration import (
    ReliabilityBin,
    expected_calibration_error,
    fit_temperature,
    reliability_bins,
)
from headhunt.evaluation.comparison import Comparison, compare, select_ensemble, standard_error
from headhunt.evaluation.metrics import (
    DEFAULT_METRIC,
    METRICS,
    ClassScores,
    Evaluation,
    Metric,
    Score,
    check_metric,
    class_scores,
    decide,
    evaluate,
    format_difference,
    format_score,
    measure,
    metric_names,
)
from headhunt.evaluation.mistakes import Mistake, find_mistakes

__all__ = [
    "DEFAULT_METRIC",
    "METRICS",
    "ClassScores",
    "Comparison",
    "Evaluation",
    "Metric",
    "Mistake",
    "ReliabilityBin",
    "Score",
    "check_metric",
    "class_scores",
    "compare",
    "decide",
    "evaluate",
    "expected_calibration_error",
    "find_mistakes",
    "fit_temperature",
    "format_difference",
    "format_score",
    "measure",
    "metric_names",
    "reliability_bins",
    "select_ensemble",
    "standard_error",
]
