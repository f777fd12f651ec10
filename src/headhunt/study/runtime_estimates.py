"""What a candidate will cost: seconds until it is judged in full, so that nobody is begun who cannot get there.

Hides a guess: how much more one kind of candidate trains than another is written down here, how many seconds that is on
this machine and these texts is learned from what the others took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from headhunt.run.state import Trial

LATEST = 101  # results the guess rests on
EMBEDDINGS = 0.4  # of what the layers cost: the optimiser goes through the whole vocabulary
SMART = 2.8  # times a training without
TOKENS = 1.3  # times a training whose head is neither convolutions nor blocks
HEAD = 0.03  # of what the layers cost


class RuntimeEstimates:
    """Seconds by candidate.

    Args:
        layers: Of the encoder.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        # Heads alone are apart: loading and judging is most of what they take.
        self._ratios: dict[bool, deque[float]] = {kind: deque(maxlen=LATEST) for kind in (False, True)}
        self._usual: deque[float] = deque(maxlen=LATEST)

    def add(self, spec: Mapping[str, Any], seconds: float) -> None:
        """Takes in what a candidate takes, or would take if it went on as it began, for its whole budget."""
        alone = spec["recipe"]["freeze"] == "all"
        self._ratios[alone].append(seconds / self._effort(spec))
        if not alone:
            self._usual.append(seconds)

    def of(self, spec: Mapping[str, Any]) -> float | None:
        """Seconds a candidate will take for its whole budget; None where nothing like it was seen."""
        ratios = self._ratios[spec["recipe"]["freeze"] == "all"]
        return median(ratios) * self._effort(spec) if ratios else None

    @property
    def usual(self) -> float | None:
        """Seconds that a candidate that trains some of the encoder takes in the median."""
        return median(self._usual) if self._usual else None

    def _effort(self, spec: Mapping[str, Any]) -> float:
        """Relative to an epoch of all layers."""
        head, recipe = spec["head"], spec["recipe"]
        freeze = recipe["freeze"]
        frozen = min(1.0, freeze / self._layers) if isinstance(freeze, int) else 0.0
        layers = {"none": 1 + EMBEDDINGS, "all": 0.0}.get(freeze, 1 - frozen)
        times = (SMART if recipe["smart"] else 1.0) * (TOKENS if head["convolutions"] or head["blocks"] else 1.0)
        return float(recipe["epochs"] * (layers + HEAD) * times)


def whole(trial: Trial, fractions: tuple[float, ...], rung: int) -> float | None:
    """Seconds a trial takes for its whole budget, by what it took up to a rung; None where that says nothing."""
    if rung not in trial.results or fractions[rung] == 0:
        return None
    spent = sum(result.seconds for one, result in trial.results.items() if one <= rung and fractions[one] > 0)
    return spent / fractions[rung]
