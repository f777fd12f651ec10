"""Bootstrap samples as weights of rows, or of groups of rows, and metrics of numbers under such weights."""

from collections.abc import Callable, Iterator

import numpy as np

BOOTSTRAP_SAMPLES = 1000
BATCH = 50  # samples at a time: weights of all of them would fill the memory


def bootstrap_weights(
    rng: np.random.Generator, rows: int, samples: int, groups: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Draw bootstrap samples; yield how often each row was drawn, in batches (samples, rows) that fit into the memory.

    Args:
        rng: Source of random numbers.
        rows: Number of rows.
        samples: Number of samples in all.
        groups: Group of each row. Groups are drawn instead of rows, as a cluster bootstrap does.
    """
    members = np.arange(rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    drawn = int(members.max()) + 1
    for start in range(0, samples, BATCH):
        draws = [rng.integers(0, drawn, drawn) for _ in range(min(BATCH, samples - start))]
        yield np.array([np.bincount(draw, minlength=drawn)[members] for draw in draws], np.float64)


def regression_metrics(predictions: np.ndarray, targets: np.ndarray) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Return a function from weights of rows (samples, rows) to metrics (samples,)."""
    x, y = predictions.astype(np.float64), targets.astype(np.float64)
    squares, rank_x, rank_y = (x - y) ** 2, _ranker(x), _ranker(y)
    x, y = _standardise(x), _standardise(y)  # no correlation changes, and sums of squares lose less precision
    products = np.stack([x, y, x * x, y * y, x * y], axis=1)

    def pearson(weights: np.ndarray, total: np.ndarray) -> np.ndarray:
        mean_x, mean_y, xx, yy, xy = (weights @ products / total[:, None]).T
        return _correlation(xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y)

    def spearman(weights: np.ndarray, total: np.ndarray) -> np.ndarray:
        middle = (total[:, None] + 1) / 2  # the mean of all ranks
        x, y = rank_x(weights) - middle, rank_y(weights) - middle
        weighted_x, weighted_y = weights * x, weights * y
        sums = [np.einsum("sr,sr->s", a, b) for a, b in ((weighted_x, x), (weighted_y, y), (weighted_x, y))]
        return _correlation(*sums)

    def metrics(weights: np.ndarray) -> dict[str, np.ndarray]:
        total = weights.sum(1)
        found = {"mse": weights @ squares / total, "pearson": pearson(weights, total)}
        return {**found, "spearman": spearman(weights, total)}

    return metrics


def _standardise(values: np.ndarray) -> np.ndarray:
    if len(values) < 2 or np.ptp(values) == 0:
        return np.zeros(len(values))
    return (values - values.mean()) / values.std()


def _correlation(variance_x: np.ndarray, variance_y: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the correlation; 0 if one of the two is constant, up to rounding."""
    product = variance_x * variance_y
    return ratio(covariance, np.sqrt(np.where(product > 1e-24, product, 0.0)))


def _ranker(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from weights of rows (samples, rows) to the ranks of the values in each sample.

    Equal values share the mean of their ranks. Values are sorted once: the ranks of a sample are sums of weights.
    """
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(distinct)))

    def ranks(weights: np.ndarray) -> np.ndarray:
        equal = np.add.reduceat(weights[:, order], starts, axis=1)
        found: np.ndarray = (equal.cumsum(1) - (equal - 1) / 2)[:, place]
        return found

    return ranks


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return `numerator / denominator`, with 0 where the denominator is 0."""
    denominator = np.asarray(denominator, np.float64)
    return np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator > 0)
