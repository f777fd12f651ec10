"""Define the search around known recipes and the best results so far, after PriorBand (Mallik et al. 2023)."""

from __future__ import annotations

import random

from headhunt.spec import Choice
from headhunt.study.bohb import Bohb
from headhunt.study.candidates import Candidates, Params
from headhunt.study.strategies import Proposal, nearby

MIN_RESULTS = 4  # of a rung before its best ones are varied
PRIOR_RESULTS = 4.0  # results that weigh as much as the known recipes
MAX_INCUMBENTS = 3


class Prior(Bohb):
    """A mixture of random draws, varied known recipes, varied incumbents and BOHB's model.

    As in PriorBand, the weight of the known recipes decreases and that of the incumbents increases with the number of
    results. Incumbents are the best results of the highest rung that has some. When there are enough results for
    BOHB's model, it proposes half of what the incumbents would have proposed. A known recipe or an incumbent is varied
    by changing some of the parameters that have an effect: to a value nearby if it is numeric, else to a new draw.
    It differs from PriorBand in two points: there are several known recipes in place of one default, and the weights
    follow the number of results, not the likelihood of the best ones.

    Args:
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        random_fraction: Fraction of proposals that are random.
        change: Probability that a parameter is changed.
        deviation: Standard deviation of a change, relative to the range of a numeric parameter.
        model_fraction: Fraction of BOHB's model among proposals that are neither random nor from known recipes.
    """

    def __init__(
        self,
        candidates: Candidates,
        seed: int = 0,
        random_fraction: float = 0.2,
        change: float = 0.3,
        deviation: float = 0.2,
        model_fraction: float = 0.5,
    ) -> None:
        super().__init__(candidates, seed, random_fraction)
        self._change, self._deviation, self._model_fraction = change, deviation, model_fraction

    def ask(self, number: int, attempt: int = 0) -> Proposal:
        """Propose a candidate from one of the four sources."""
        rng = self.rng(number, attempt)
        recipes = [params for _, params in self.candidates.known_recipes()]
        incumbents = self.incumbents()
        if rng.random() < self.random_fraction or not (recipes or incumbents):
            return Proposal(self.candidates.draw(rng), "random")
        if recipes and rng.random() < self.prior_weight():
            return Proposal(self.vary(rng.choice(recipes), rng), "prior")
        rung = self.modelled_rung()
        if rung is not None and rng.random() < self._model_fraction:
            return Proposal(self.propose(rung, number, rng), "model")
        return Proposal(self.vary(rng.choice(incumbents or recipes), rng), "model")

    def prior_weight(self) -> float:
        """Return the weight of the known recipes against the incumbents, from 1 down to 0."""
        rung = self._incumbent_rung()
        return 1.0 if rung is None else PRIOR_RESULTS / (PRIOR_RESULTS + self.results[rung].count)

    def incumbents(self) -> list[Params]:
        """Return the best third of the highest rung that has enough results, at most three."""
        rung = self._incumbent_rung()
        if rung is None:
            return []
        selected = self.results[rung].selected()
        ranked = sorted(selected, key=lambda item: (-item[1], item[0].number))
        best = [result.params for result, _ in ranked if result.score is not None]
        return best[: min(MAX_INCUMBENTS, len(selected) // 3)]

    def vary(self, params: Params, rng: random.Random) -> Params:
        """Return the parameters with some of those changed that have an effect, and new values of the others."""
        active = self.candidates.active(params)
        drawn = self.candidates.draw(rng)
        return {
            path: params[path]
            if path in active and rng.random() >= self._change
            else drawn[path]
            if path not in active or isinstance(leaf, Choice)
            else nearby(leaf, params[path], self._deviation, rng)
            for path, leaf in self.candidates.leaves.items()
        }

    def _incumbent_rung(self) -> int | None:
        enough = (rung for rung, results in self.results.items() if results.count >= MIN_RESULTS)
        return max(enough, default=None)
