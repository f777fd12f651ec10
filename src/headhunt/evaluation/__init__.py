"""Metrics, paired comparisons, calibration and thresholds; needs no torch."""

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
    scorer,
)
from headhunt.evaluation.mistakes import Mistake, find_mistakes
from headhunt.evaluation.thresholds import (
    apply_thresholds,
    check_thresholds,
    cross_fit_thresholds,
    decision_scores,
    fit_thresholds,
)

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
    "apply_thresholds",
    "check_metric",
    "check_thresholds",
    "class_scores",
    "compare",
    "cross_fit_thresholds",
    "decide",
    "decision_scores",
    "evaluate",
    "expected_calibration_error",
    "find_mistakes",
    "fit_temperature",
    "fit_thresholds",
    "format_difference",
    "format_score",
    "measure",
    "metric_names",
    "reliability_bins",
    "scorer",
    "select_ensemble",
    "standard_error",
]
