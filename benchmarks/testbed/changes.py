"""Measure what each rule of a search brings, one at a time, with replayed searches on the testbed.

Every variant is the search of today with one rule taken back. A search delivers a candidate at every time limit, and
its test score counts. The interval of a difference is a paired bootstrap over the seeds. It says nothing about other
data, so the difference on every set is given too.

    python benchmarks/testbed/changes.py --out benchmarks/results/testbed_changes.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from replay import HORIZONS, LEAST_CANDIDATES, Search, replay, summarize
from sets import SETS
from table import SetTable, Table

from headhunt.study.ladder import Ladder

VARIANTS: dict[str, dict[str, Any]] = {
    "today": {},
    "no known recipes first": {"known": False},
    "a first rung at a ninth": {"ladder": Ladder((1 / 9, 1 / 3, 1.0))},
    "no rungs": {"ladder": Ladder((1.0,))},
    "`bohb`": {"strategy": "bohb"},
    "lower bounds decide about a candidate with one fold": {"one_fold": False},
    "the best score wins": {"prefers_first": False},
}
"""What a search does differently from today's, which has the default strategy and rungs."""
STRATEGY = "prior"


def measure(stored: SetTable, items: Sequence[Any], seconds: Sequence[float], seeds: int) -> dict[str, Any]:
    """Return the test scores of what each variant delivers on a set, in percent, by time limit and seed."""
    scores: dict[str, dict[str, list[float]]] = {}
    for name, settings in VARIANTS.items():
        for limit in seconds:
            searches = [
                Search(**{"strategy": STRATEGY, "seconds": limit, "seed": seed, **settings}) for seed in range(seeds)
            ]
            ends = [100 * replay(stored, items, search).test_score for search in searches]
            scores.setdefault(name, {})[f"{limit:g}"] = ends
        means = ", ".join(f"{limit} s {np.mean(each):.1f}" for limit, each in scores[name].items())
        print(f"{stored.info.name}, {name}: {means}", flush=True)
    return scores


def compare(sets: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> dict[str, Any]:
    """Return the mean score of each variant over all sets, and how far it is below the first one."""
    first = next(iter(VARIANTS))
    result: dict[str, Any] = {}
    for name in VARIANTS:
        for limit in next(iter(sets.values()))[first]:
            by_set = {each: np.array(scores[name][limit]) for each, scores in sets.items()}
            losses = {each: np.array(scores[first][limit]) - by_set[each] for each, scores in sets.items()}
            facts: dict[str, Any] = {"score": round(float(np.mean(list(by_set.values()))), 2)}
            if name != first:
                loss = summarize(np.mean(list(losses.values()), 0))
                facts["loss"] = {key: round(value, 2) for key, value in loss.items()}
                facts["sets"] = {each: round(float(loss.mean()), 2) for each, loss in losses.items()}
            result.setdefault(name, {})[limit] = facts
    return result


def format_table(result: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table of the mean scores."""
    limits = list(next(iter(result.values())))
    lines = [f"| seconds | {' | '.join(limits)} |", "|---" * (len(limits) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(str(cell['score']) for cell in cells.values())} |" for name, cells in result.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    from measure import finish, options

    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "table", help="directory of the table")
    parser.add_argument("--seconds", nargs="*", type=float, default=list(HORIZONS), help="time limits")
    parser.add_argument("--seeds", type=int, default=30)
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.seconds = 1, [60.0]
    table = Table(args.table)
    names = [
        name for name, chosen in SETS.items()
        if name in table.sets and chosen.specs is None and len(table.sets[name].scored) >= LEAST_CANDIDATES
    ]  # fmt: skip
    sets = {
        name: measure(table.sets[name], table.specs(table.sets[name].info.pair), args.seconds, args.seeds)
        for name in names
    }
    result = compare(sets)
    print(format_table(result))
    finish(args, {"seeds": args.seeds, "sets": names, "variants": result})


if __name__ == "__main__":
    main()
