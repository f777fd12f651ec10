"""Own the time of a search: one deadline, of which a part is reserved for the end, and what fits before it.

The relative cost of candidates is a fixed formula. The seconds per unit of cost are learned from finished trials, for
each encoder on its own.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from headhunt.modeling.architecture import EncoderShape
from headhunt.run.clock import steady_time
from headhunt.run.plan import Plan
from headhunt.study.candidates import Candidates

INTERRUPTED_SECONDS = 60.0  # for the final evaluation after Ctrl-C; `headhunt verdict` takes as long as it needs
LARGEST_RESERVE = 0.7  # fraction of the total time that may be reserved
MARGIN = 1.1  # estimates are multiplied by this to be sure that something fits
TUNED, FROZEN, SOLVED, BUILT = "tuned", "frozen", "solved", "built"
WINDOW = 101  # number of latest results that an estimate uses
EMBEDDINGS_COST = 0.4  # relative to all layers, with the complete vocabulary; less if few of its tokens occur
HEAD_COST = 0.03  # relative to all layers
SMART_FACTOR = 2.8  # relative to training without SMART
WINDOWS_FACTOR = 4.0  # windows, of which a text has at most eight, relative to cutting texts
TOKEN_HEAD_FACTOR = 1.3  # convolutions or blocks, relative to a head without them
WORKER_TIMEOUT, LEAST_WORKER_TIMEOUT = 10.0, 120.0  # times the expected seconds, and seconds


class TimeBudget:
    """The time of a search.

    Args:
        seconds: Seconds from now until everything is done; None is no limit.
        total: Seconds the search was given in all, if `seconds` is what is left of them after a resume.
        started: Seconds since 1970 from which the time counts; now by default.
        clock: Returns seconds since 1970 that never jump.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        total: float | None = None,
        started: float | None = None,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        self._clock = clock
        self.deadline = None if seconds is None else (clock() if started is None else started) + seconds
        self.total = total or seconds or 0.0
        self._reserved = 0.0

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._clock()

    def left(self) -> float:
        """Return the seconds until the deadline."""
        return math.inf if self.deadline is None else self.deadline - self._clock()

    def shorten(self, seconds: float) -> None:
        """Move the deadline to so many seconds from now, unless it is earlier."""
        self.deadline = self._clock() + min(seconds, self.left())

    def reserve(self, seconds: float) -> None:
        """Reserve time for the final evaluation, up to a fraction of the total."""
        self._reserved = min(LARGEST_RESERVE * self.total, seconds)

    @property
    def search_deadline(self) -> float | None:
        """Seconds since 1970 at which searching ends and the final evaluation begins."""
        return None if self.deadline is None else self.deadline - self._reserved

    def search_is_over(self) -> bool:
        """Return whether the time for searching is used up."""
        return self.search_deadline is not None and self._clock() >= self.search_deadline

    def fits(self, seconds: float | None) -> bool:
        """Return whether work of this length ends before the search does; True if its length is unknown."""
        if seconds is None or self.search_deadline is None:
            return True
        return self._clock() + MARGIN * seconds <= self.search_deadline


class RuntimeEstimates:
    """Estimated seconds of full training by candidate.

    Args:
        candidates: Layers and width of their encoder decide about the cost.
        plan: Its rates are used until there are results; None if they are not known.
    """

    def __init__(self, candidates: Candidates, plan: Plan | None = None) -> None:
        self._candidates, self._plan = candidates, plan
        # Trials with a frozen encoder have their own ratios: loading and evaluation take most of their time.
        self._seconds_per_cost: defaultdict[tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._tuning_seconds: deque[float] = deque(maxlen=WINDOW)

    def add(self, spec: Mapping[str, Any], seconds: float) -> None:
        """Add the measured or extrapolated seconds of a candidate's full training."""
        group = _group(spec)
        self._seconds_per_cost[group].append(seconds / self._cost(spec))
        if group[1] in (TUNED, BUILT):
            self._tuning_seconds.append(seconds)

    def estimate(self, spec: Mapping[str, Any], fraction: float = 1.0) -> float | None:
        """Return the estimated seconds of this fraction of a candidate's training; None without similar results."""
        if ratios := self._seconds_per_cost.get(_group(spec)):
            return statistics.median(ratios) * self._cost(spec) * fraction
        if self._plan is None or (seconds := self._plan.epoch_seconds()) is None:
            return None
        return seconds * self._cost(spec) * self._plan.cost_of(spec["encoder"]) * fraction

    @property
    def median(self) -> float | None:
        """Median seconds of the latest trials that train an encoder: the time of a typical new trial."""
        return statistics.median(self._tuning_seconds) if self._tuning_seconds else None

    def _cost(self, spec: Mapping[str, Any]) -> float:
        """Return the training cost relative to one epoch of all layers."""
        head, recipe = spec["head"], spec["recipe"]
        freeze = recipe["freeze"]
        frozen = min(1.0, freeze / self._candidates.layers) if isinstance(freeze, int) else 0.0
        layers = {"none": 1 + EMBEDDINGS_COST, "all": 0.0}.get(freeze, 1 - frozen)
        factor = WINDOWS_FACTOR if head.get("windows") else 1.0
        if recipe.get("solver", "adamw") != "adamw":
            return HEAD_COST * factor
        factor *= SMART_FACTOR if recipe["smart"] else 1.0
        factor *= TOKEN_HEAD_FACTOR if head["convolutions"] or head["blocks"] else 1.0
        if shape := spec.get("shape"):
            factor *= EncoderShape(**shape).cost(self._candidates.layers, self._candidates.width)
        return float(recipe["epochs"] * (layers + HEAD_COST) * factor)


def worker_timeout(seconds: float | None) -> float | None:
    """Return when to give up on a worker, given how long its request should take; None if that is not known."""
    return None if seconds is None else max(LEAST_WORKER_TIMEOUT, WORKER_TIMEOUT * seconds)


def _group(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Return the encoder and how it is used: seconds are comparable only within such a group."""
    recipe = spec["recipe"]
    if recipe.get("solver", "adamw") != "adamw":
        return spec["encoder"], SOLVED
    tuned = TUNED if spec.get("shape") is None else BUILT
    return spec["encoder"], FROZEN if recipe["freeze"] == "all" else tuned
