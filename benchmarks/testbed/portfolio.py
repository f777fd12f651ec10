"""Choose a portfolio of candidates on the testbed, and compare it with the known recipes on sets it has not seen.

A portfolio is a list of candidates to try in this order. It is chosen greedily: the next candidate is the one that
lowers the regret of what would be delivered most per second, on average over sets. The regret is the distance between
the best test score of all candidates of a set and that of the candidate with the best out-of-fold score among those
tried. The solved head and the plain head are always among them. To be fair, the portfolio that is tested on a set is
chosen on the others. The known recipes are tried in the order of a search, and all candidates in random order.

    python benchmarks/testbed/portfolio.py --out benchmarks/results/testbed_portfolio.json
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sets import SETS
from specs import TableSpec
from table import SetTable, Table

BUDGETS = (60.0, 150.0, 300.0, 600.0, 1200.0)
"""Seconds of all workers together."""
LEAST_CANDIDATES = 12
SIZE = 8
ORDERS = 200  # random orders


class Regrets:
    """Looks up the regret of what is delivered after trying some candidates of a set."""

    def __init__(self, table: SetTable, items: Sequence[TableSpec]) -> None:
        listed = [item for item in items if item.hash in table.scored]
        self.always = [item.hash for item in listed if item.origin in ("solved", "plain")][:2]
        self.known = [item.hash for item in listed if item.origin == "known"]
        self.others = [item.hash for item in listed if item.hash not in self.always]
        self.seconds = {item.hash: sum(table.seconds(item.hash)) for item in listed}
        self._score = {item.hash: table.score(item.hash) for item in listed}
        self._test = {item.hash: table.test_score(item.hash) for item in listed}

    def after(self, tried: Sequence[str]) -> float:
        """Return the regret in points after trying these candidates and those that are always tried."""
        delivered = max([*self.always, *tried], key=lambda spec: self._score[spec])
        return 100 * (max(self._test.values()) - self._test[delivered])

    def at(self, order: Sequence[str], budget: float) -> float:
        """Return the regret after trying candidates in this order for so many seconds."""
        ends = np.cumsum([self.seconds[spec] for spec in order])
        return self.after(order[: int(np.searchsorted(ends, budget, side="right"))])


def choose(sets: Sequence[Regrets], size: int = SIZE) -> list[str]:
    """Return a portfolio, chosen greedily by the regret that a candidate saves per second, on average over sets."""
    common = [spec for spec in sets[0].others if all(spec in each.others for each in sets)]
    chosen: list[str] = []
    for _ in range(min(size, len(common))):

        def saved_per_second(spec: str) -> tuple[float, float]:
            saved = [each.after(chosen) - each.after([*chosen, spec]) for each in sets]
            seconds = float(np.mean([each.seconds[spec] for each in sets]))
            gain = float(np.mean(saved))
            return (gain / seconds if gain > 0 else gain), -seconds

        chosen.append(max((spec for spec in common if spec not in chosen), key=saved_per_second))
    return chosen


def compare(sets: dict[str, Regrets], seed: int = 0) -> dict[str, Any]:
    """Return the regret of each order on each set at each budget; portfolios have not seen the set."""
    rng = np.random.default_rng(seed)
    rows: dict[str, Any] = {}
    for name, held_out in sets.items():
        others = [each for other, each in sets.items() if other != name]
        orders: dict[str, list[list[str]]] = {"known recipes": [held_out.known]}
        if others:
            orders["portfolio"] = [[spec for spec in choose(others) if spec in held_out.others]]
        orders["random order"] = [list(rng.permutation(held_out.others)) for _ in range(ORDERS)]
        rows[name] = {
            kind: {f"{budget:g}": round(float(np.mean([held_out.at(order, budget) for order in each])), 2)
                   for budget in BUDGETS}
            for kind, each in orders.items()
        }  # fmt: skip
    return rows


def main() -> None:
    from measure import finish, options

    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "table", help="directory of the table")
    args = parser.parse_args()
    table = Table(args.table)
    result: dict[str, Any] = {}
    for pair in (False, True):
        items = table.specs(pair)
        names = [name for name, each in table.sets.items() if name in SETS and each.info.pair == pair]
        names = [name for name in names if table.sets[name].info.folds > 1]
        names = [name for name in names if len(table.sets[name].scored) >= LEAST_CANDIDATES]
        sets = {name: Regrets(table.sets[name], items) for name in names}
        if not sets:
            continue
        by_hash = {item.hash: item.spec for item in items}
        portfolio = [by_hash[spec].to_dict() for spec in choose(list(sets.values()))]
        regrets = compare(sets)
        kinds = list(next(iter(regrets.values())))
        mean = {
            kind: {f"{budget:g}": round(float(np.mean([row[kind][f"{budget:g}"] for row in regrets.values()])), 2)
                   for budget in BUDGETS}
            for kind in kinds
        }  # fmt: skip
        result["pair" if pair else "one_text"] = {"mean": mean, "sets": regrets, "portfolio": portfolio}
    finish(args, result)


if __name__ == "__main__":
    main()
