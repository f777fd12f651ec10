"""List the search strategies and create one by name."""

from __future__ import annotations

from typing import Any

from headhunt.errors import HeadhuntError
from headhunt.run.settings import STRATEGIES
from headhunt.study.bohb import Bohb
from headhunt.study.candidates import Candidates
from headhunt.study.prior import Prior
from headhunt.study.strategies import Evolution, Grid, Random, Reinforce, Strategy


def create_strategy(name: str, candidates: Candidates, seed: int = 0, **options: Any) -> Strategy:
    """Create a strategy by name.

    Args:
        name: A key of STRATEGIES.
        candidates: The candidates that may be proposed.
        seed: Random seed of the run.
        options: Arguments of the strategy's own class.

    Raises:
        HeadhuntError: If there is no such strategy.
    """
    if name not in STRATEGIES:
        raise HeadhuntError(f"The strategy must be one of {', '.join(STRATEGIES)}; found {name!r}.")
    classes: dict[str, type[Strategy]] = {
        "prior": Prior,
        "bohb": Bohb,
        "random": Random,
        "grid": Grid,
        "evolution": Evolution,
        "reinforce": Reinforce,
    }
    if name not in classes:
        from headhunt.study.optuna_strategies import Gp, Tpe  # Optuna takes long to import

        classes |= {"tpe": Tpe, "gp": Gp}
    return classes[name](candidates, seed, **options)
