"""Replay searches on the table of the testbed in virtual time, with the real study code.

A replayed search chooses among the candidates of the table, and each of them takes the seconds that the table says.
Nothing is trained and nothing is estimated. Random proposals are drawn from the table. TPE and BOHB rank the untried
candidates of the table by their own acquisition function, in place of points that they sample. Where `prior` varies a
recipe, an untried candidate is drawn by its density as a variation. Other strategies can propose only what is not in
the table. With `--nearest` all strategies run, and proposals are replaced by the nearest
untried candidates; such figures are reported separately. `ranking` orders the strategies at every time limit by their
mean test score over all sets, with 95 % intervals over seeds.

At a time limit a candidate is delivered by the rules of a search: the best out-of-fold score, or one with a single
fold that is better on the rows of that fold; the first known recipes unless it is significantly better; the plain head
if that is better. Its test score counts, predicted by the mean of its fold models. As in a search, time for training it
and the plain head on all rows is reserved.

With `--learn`, a search tries early what was best on the other sets, as `--learn-from` does.

    python benchmarks/testbed/replay.py --table benchmarks/testbed/table --out benchmarks/results/testbed_replay.json
"""

from __future__ import annotations

import argparse
import heapq
import math
import operator
import random
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from one_fold import lower_bound
from sets import SETS
from specs import ENCODER, TableSpec, table_space
from table import SetTable, Table

from headhunt.engine.earlier_runs import MAXIMUM, PER_RUN
from headhunt.engine.selection import SIGNIFICANT
from headhunt.run.directory import RunDirectory
from headhunt.run.events import STOPPED
from headhunt.run.ledger import LedgerWriter
from headhunt.run.plan import Plan
from headhunt.run.state import Outcome
from headhunt.spec import MANY_CLASSES, Choice, Spec
from headhunt.study.budget import TimeBudget
from headhunt.study.candidates import Candidates, Params, alternate, position_of
from headhunt.study.ladder import Ladder
from headhunt.study.registry import STRATEGIES
from headhunt.study.requests import EvaluateTrial, Request
from headhunt.study.strategies import Proposal
from headhunt.study.study import Study

HORIZONS = (60.0, 150.0, 300.0, 600.0, 3600.0)
KNOWN_ONLY = "known"
"""In place of a strategy: only the known recipes are tried."""
EXACT = (KNOWN_ONLY, "random", "tpe", "bohb", "prior")
"""Strategies that choose among the candidates of the table alone."""
DENSITIES = ("bohb", "prior")
"""Strategies that compare rows of a kernel density."""
STARTUP_SECONDS = 5.0  # until the workers run
SAMPLES = 2_000
LEAST_CANDIDATES = 6


class TableCandidates(Candidates):
    """The candidates of a table, as a search sees them.

    Attributes:
        pool: Parameters of the candidates that a strategy may propose.

    Args:
        table: Results on one set.
        items: Candidates of the table.
        learned: Hashes of candidates that are tried in turn with the known recipes.
    """

    def __init__(self, table: SetTable, items: Sequence[TableSpec], learned: Sequence[str] = ()) -> None:
        info = table.info
        facts: dict[str, Any] = {"pair": info.pair, "problem_type": info.problem_type, "rows": info.rows}
        facts["classes"] = info.outputs
        super().__init__(table_space(), encoder=ENCODER, **facts)
        complete = Candidates(self.space, encoder=ENCODER, **facts)
        self._first = complete.first_recipes()
        known = (spec.hash for spec, _ in complete.known_recipes())
        self._known = list(dict.fromkeys(alternate(known, iter(learned))))
        self.recorded = {item.hash: item.spec for item in items if item.hash in table.entries}
        self._by_params: dict[Any, Spec] = {}
        self._params: dict[str, Params] = {}  # by hash
        self.pool: list[Params] = []
        for spec in self.recorded.values():
            params = complete.express(spec)
            # A solved head is not in the space, and a plain head is there from the start.
            if params is not None and not spec.head.plain:
                self.pool.append(params)
                self._by_params[_key(params)] = spec
                self._params[spec.hash] = params
        self.tried: set[str] = set()
        """Hashes of the candidates that the search has started."""

    def untried(self) -> list[Params]:
        """Return the parameters of candidates that were not started yet; all if there are none."""
        left = [params for spec_hash, params in self._params.items() if spec_hash not in self.tried]
        return left or self.pool

    def spec(self, params: Params) -> Spec:
        """Return the candidate of these parameters. Others count as the plain head, which is always tried already."""
        return self._by_params.get(_key(params)) or self.plain()

    def draw(self, rng: random.Random) -> Params:
        """Draw an untried candidate of the table."""
        return rng.choice(self.untried())

    def first_recipes(self) -> list[Spec]:
        """Return the known recipes that are best on other data."""
        return self._first

    def known_recipes(self) -> Iterator[tuple[Spec, Params]]:
        """Yield the known recipes that are in the table."""
        for spec_hash in self._known:
            if spec_hash in self.recorded and (params := self.express(self.recorded[spec_hash])) is not None:
                yield self.recorded[spec_hash], params

    def express(self, spec: Spec) -> Params | None:
        """Return the parameters of a candidate of the table; None for others."""
        return self._params.get(spec.hash)

    def nearest(self, params: Params) -> Params:
        """Return the untried candidate with the smallest mean distance over all parameters."""
        return min(self.untried(), key=lambda each: self._distance(params, each))

    def variation(self, params: Params, rng: random.Random, change: float, deviation: float) -> Params:
        """Draw an untried candidate, with the probability of being proposed as a variation of the parameters.

        Args:
            params: The parameters that are varied.
            rng: Random numbers.
            change: Probability that a parameter is changed.
            deviation: Standard deviation of a change of a numeric parameter.
        """
        pool, active = self.untried(), self.active(params)
        logs = [self._log_density(params, each, active, change, deviation) for each in pool]
        return rng.choices(pool, [math.exp(each - max(logs)) for each in logs])[0]

    def _log_density(
        self, params: Params, other: Params, active: Iterable[str], change: float, deviation: float
    ) -> float:
        total = 0.0
        for path in active:
            leaf, same = self.leaves[path], _same(params[path], other[path])
            if isinstance(leaf, Choice):
                total += math.log(change / len(leaf.options) + (1 - change) * same)
            elif same:
                total += math.log(1 - change)
            else:
                distance = (position_of(leaf, params[path]) - position_of(leaf, other[path])) / deviation
                total += math.log(change) - distance**2 / 2
        return total

    def _distance(self, first: Params, second: Params) -> float:
        total = 0.0
        for path, leaf in self.leaves.items():
            if isinstance(leaf, Choice):
                total += not _same(first[path], second[path])
            else:
                total += abs(position_of(leaf, first[path]) - position_of(leaf, second[path]))
        return total


def _same(first: object, second: object) -> bool:
    return first == second and type(first) is type(second)


def _key(params: Params) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((path, repr(value)) for path, value in params.items()))


class Replay:
    """An evaluate function that looks results up; training costs the seconds of the table.

    Args:
        table: Results on one set.
    """

    def __init__(self, table: SetTable) -> None:
        self._table = table
        self._trained: dict[int, float] = {}  # fraction by trial

    def __call__(self, request: EvaluateTrial) -> Outcome:
        """Return the outcome of a request; only what the trial has not trained yet takes time."""
        key = request.spec.hash
        entry, seconds = self._table.entries[key], self._table.seconds(key)
        done = self._trained.get(request.trial, 0.0)
        spent, outcome, score = 0.0, entry.outcome, None
        for rung, rung_seconds in zip(entry.rungs, seconds, strict=True):
            if rung.fraction <= request.fraction + 1e-9:
                spent += rung_seconds if rung.fraction > done + 1e-9 else 0.0
                outcome, score = rung.outcome, rung.score
        self._trained[request.trial] = request.fraction
        return Outcome(outcome, score=score, seconds=spent)


class ReplayExecutor:
    """An executor in virtual time that is the same on every machine: the study's own time does not count.

    Args:
        workers: Number of workers.
        evaluate: Returns outcomes; their `seconds` move the clock.
        now: Time at the start.
    """

    threads_alone = None

    def __init__(self, workers: int, evaluate: Callable[[EvaluateTrial], Outcome], now: float = 0.0) -> None:
        self.workers, self.now = workers, now
        self._evaluate = evaluate
        self._running: list[tuple[float, int, Request, Outcome]] = []
        self._count = 0

    def submit(self, request: Request) -> None:
        """Start a request on a free worker. One that would end after its deadline is stopped there."""
        assert isinstance(request, EvaluateTrial)
        outcome = self._evaluate(request)
        end = self.now + outcome.seconds
        if request.deadline is not None and end > request.deadline:
            end, outcome = max(self.now, request.deadline), Outcome(STOPPED)
        self._count += 1
        heapq.heappush(self._running, (end, self._count, request, outcome))

    def wait(self, timeout: float | None = None) -> list[tuple[Request, Outcome]]:
        """Move the clock to the next finished request and return it."""
        if not self._running:
            return []
        end, _, request, outcome = heapq.heappop(self._running)
        self.now = max(self.now, end)
        return [(request, outcome)]

    def stop(self) -> None:
        """Forget what is running."""
        self._running.clear()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


@dataclass(frozen=True)
class Search:
    """Settings of a replayed search."""

    strategy: str = "bohb"
    seconds: float = 300.0
    seed: int = 0
    workers: int = 2
    known: bool = True
    """Whether it begins with the known recipes."""
    nearest: bool = False
    """Whether proposals are replaced by the nearest untried candidates of the table."""
    ladder: Ladder | None = None
    """The rungs; None for those of a search."""
    learned: tuple[str, ...] = ()
    """Hashes of candidates of earlier searches, which are tried early."""
    one_fold: bool = True
    """Whether a candidate with one fold wins if it is better on its rows; otherwise, lower bounds are compared."""
    prefers_first: bool = True
    """Whether the first known recipes win unless another candidate is significantly better."""


@dataclass(frozen=True)
class Delivered:
    """The end of a replayed search."""

    spec: str
    """Hash of the candidate that would be delivered."""
    test_score: float
    trials: int
    curve: tuple[tuple[float, float], ...]
    """Time and test score of each candidate that would have been delivered."""


def replay(table: SetTable, items: Sequence[TableSpec], search: Search) -> Delivered:
    """Run one search on a table.

    Args:
        table: Results on a set with cross-validation.
        items: Candidates of the table, for one text or for pairs.
        search: Its settings.
    """
    if table.info.folds == 1:
        raise ValueError(f"Replayed searches need cross-validation; {table.info.name} has one validation split.")
    candidates = TableCandidates(table, items, search.learned)
    baselines = [candidates.solved()[0].hash, candidates.plain().hash]
    if not set(baselines) <= set(table.scored) or not candidates.pool:
        raise ValueError(
            f"A replayed search needs the solved head, the plain head and others of {table.info.name} in the table."
        )
    executor = ReplayExecutor(search.workers, Replay(table), STARTUP_SECONDS)
    budget = TimeBudget(search.seconds, started=0.0, clock=lambda: executor.now)
    curve = _Curve(table, executor, search)

    memory = Path("/dev/shm")  # syncing a real disk for every trial would take most of the time
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        LedgerWriter(RunDirectory(Path(folder))) as ledger,
    ):
        study = Study(
            ledger, candidates, executor, strategy="random" if search.strategy == KNOWN_ONLY else search.strategy,
            budget=budget, seed=search.seed, known=search.known, solved=True, plan=make_plan(table, candidates),
            clock=lambda: executor.now, callback=curve.follow, ladder=search.ladder,
        )  # fmt: skip
        restrict_to_table(study, candidates, search.strategy, search.nearest)
        study.run()
        trials = len(study.state.trials)
    # If not even the solved head was in time, a search delivers it all the same.
    best = curve.best or [(search.seconds, -math.inf, candidates.solved()[0].hash)]
    points = tuple((at, table.test_score(spec)) for at, _, spec in best)
    return Delivered(best[-1][2], points[-1][1], trials, points)


class _Curve:
    """Follows a search: the best candidate over time, and the time to reserve for training it on all rows."""

    def __init__(self, table: SetTable, executor: ReplayExecutor, search: Search) -> None:
        self._table, self._executor, self._search = table, executor, search
        self.best: list[tuple[float, float, str]] = []
        """Time, out-of-fold score and spec of each candidate that would have been delivered."""

    def follow(self, study: Study) -> Sequence[Request]:
        """Look at the results so far; called by the study after every round."""
        spec = self._choose(study)
        if spec is None:
            return ()
        if not self.best or spec != self.best[-1][2]:
            self.best.append((self._executor.now, self._table.score(spec), spec))
        plain = study.state.plain
        refitted = {spec} | ({plain.hash} if plain is not None else set())
        study.budget.reserve(sum(refit_seconds(self._table, each) for each in refitted) / self._search.workers)
        return ()

    def _choose(self, study: Study) -> str | None:
        """Return the candidate that would be delivered now; None without a complete one."""
        top, trials = study.ladder.top, [trial for trial in study.state.trials if trial.best is not None]
        complete = {trial.hash for trial in trials if trial.best and trial.best[0] == top}
        plain = study.state.plain

        def score_both(first: str, second: str) -> tuple[float, float]:
            folds = None if {first, second} <= complete else 1
            return self._table.score(first, folds), self._table.score(second, folds)

        others = [trial.hash for trial in trials if not trial.is_plain]
        winner = max(complete.intersection(others), key=self._table.score, default=None)
        if winner is None:
            return None
        begun = [spec for spec in others if spec not in complete]
        ahead = max(begun, key=lambda spec: self._table.score(spec, 1), default=winner)
        one_fold = score_both if self._search.one_fold else self._lower_bounds(complete)
        winner = ahead if operator.gt(*one_fold(ahead, winner)) else winner
        first = {spec.hash for spec in study.candidates.first_recipes()}
        known = [spec for spec in others if spec in first]
        if known and self._search.prefers_first and prefers_first(self._table):
            preferred = known[0]
            for spec in known[1:]:
                preferred = spec if operator.gt(*score_both(spec, preferred)) else preferred
            outputs, targets = self._table.outputs(winner, folds := None if {winner, preferred} <= complete else 1)
            right = [each.argmax(1) == targets for each in (outputs, self._table.outputs(preferred, folds)[0])]
            difference = right[0].astype(float) - right[1]
            significant = difference.mean() > SIGNIFICANT * difference.std() / np.sqrt(len(difference))
            winner = winner if significant else preferred
        if plain is not None and plain.best and operator.gt(*score_both(plain.hash, winner)):
            return plain.hash
        return winner

    def _lower_bounds(self, complete: Collection[str]) -> Callable[[str, str], tuple[float, float]]:
        """Return a function that returns the lower bounds of two accuracies, each on all rows of the candidate."""

        def bound(spec: str) -> float:
            outputs, targets = self._table.outputs(spec, None if spec in complete else 1)
            return lower_bound(outputs.argmax(1) == targets)

        return lambda first, second: (bound(first), bound(second))


def prefers_first(table: SetTable) -> bool:
    """Return whether a search on this set prefers the first known recipes."""
    info = table.info
    return info.problem_type == "single_label_classification" and not info.pair and info.outputs <= MANY_CLASSES


def restrict_to_table(study: Study, candidates: TableCandidates, name: str, nearest: bool) -> None:
    """Let a strategy propose only candidates of the table."""
    strategy: Any = study.strategy
    original = strategy.ask
    if name == KNOWN_ONLY:
        strategy.ask = lambda number, attempt=0: None
        return
    if name == "tpe":
        strategy._sampler = lambda seed: sampler_of_pool(candidates, seed)
    elif name in DENSITIES:
        strategy._candidate_rows = lambda good, rng: rows_of_pool(candidates, rng)
    if name == "prior" and not nearest:
        strategy.vary = lambda params, rng: candidates.variation(params, rng, strategy._change, strategy._deviation)

    def ask(number: int, attempt: int = 0) -> Proposal | None:
        candidates.tried = set(study.state.hashes)
        proposal = original(number, attempt)
        if proposal is None or not (nearest or (name in DENSITIES and proposal.origin == "model")):
            return proposal  # a row of a density is a candidate of the table, but for rounding
        return replace(proposal, params=candidates.nearest(proposal.params))

    strategy.ask = ask


def rows_of_pool(candidates: TableCandidates, rng: np.random.Generator) -> np.ndarray:
    """Return the untried candidates of the table as rows of a density; equal ratios are decided at random."""
    from headhunt.study.kernel_density import Encoding

    encoding, pool = Encoding(candidates), candidates.untried()
    rows = np.stack([encoding.row(params, candidates.leaves) for params in pool])
    return rows[rng.permutation(len(rows))]


def sampler_of_pool(candidates: TableCandidates, seed: int) -> Any:
    """Return a TPE sampler that compares the untried candidates of the table instead of sampled points."""
    import optuna
    from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator

    from headhunt.study.optuna_strategies import make_tpe_sampler, to_optuna_value

    pool = candidates.untried()
    random.Random(seed).shuffle(pool)  # equal values are decided at random
    columns = {
        path: np.array([to_optuna_value(leaf, params[path]) for params in pool])
        for path, leaf in candidates.leaves.items()
    }
    active = [candidates.active(params) for params in pool]

    class PoolEstimator(_ParzenEstimator):
        def sample(self, rng: Any, size: int) -> dict[str, np.ndarray]:
            return {path: columns[path] for path in self._search_space}

    class PoolSampler(optuna.samplers.TPESampler):
        total = np.zeros(len(pool))

        def _compute_acquisition_func(self, samples: Any, below: Any, above: Any) -> np.ndarray:
            values = super()._compute_acquisition_func(samples, below, above)
            # A candidate without these parameters is compared by the others alone.
            self.total = self.total + np.where([samples.keys() <= paths for paths in active], values, 0.0)
            return values

        def sample_relative(self, *arguments: Any) -> dict[str, Any]:
            super().sample_relative(*arguments)
            best = int(self.total.argmax())
            return {path: column[best].item() for path, column in columns.items()}

    sampler = make_tpe_sampler(PoolSampler, seed)
    sampler._parzen_estimator_cls = PoolEstimator
    return sampler


def make_plan(table: SetTable, candidates: TableCandidates) -> Plan:
    """Return the plan of a search on this set; its rate is that of the plain head in the table."""
    info, plain = table.info, candidates.plain()
    seconds = sum(table.seconds(plain.hash)) if plain.hash in table.entries else 0.0
    examples = info.rows * (info.folds - 1) * plain.recipe.epochs
    rows = dict.fromkeys(("compared_rows", "validation_rows", "final_rows", "first_rows", "solved_rows"), info.rows)
    return Plan(
        rows=info.rows, test_rows=info.test_rows, epochs=plain.recipe.epochs, folds=info.folds,
        plain_recipes=2 if candidates.plain(1).hash in table.entries else 1,
        examples_per_second=examples / seconds if seconds else 0.0, **rows,
    )  # fmt: skip


def refit_seconds(table: SetTable, spec: str) -> float:
    """Estimate the seconds of training on all rows from those of the folds."""
    folds = table.info.folds
    return sum(table.seconds(spec)) / (folds - 1)


def learn_from_others(table: Table, name: str) -> tuple[str, ...]:
    """Return the best candidates of the other sets, as `--learn-from` chooses them from earlier searches."""
    new, found = table.sets[name].info, dict[str, tuple[int, float]]()
    for stored in table:
        info = stored.info
        if info.name == name or (info.pair, info.problem_type) != (new.pair, new.problem_type) or info.folds == 1:
            continue
        specs = {item.hash: item.spec for item in table.specs(info.pair)}
        heads = {spec: specs[spec] for spec in stored.scored if not specs[spec].recipe.is_solved}
        plain = max((stored.score(spec) for spec, each in heads.items() if each.head.plain), default=math.inf)
        better = [spec for spec, each in heads.items() if not each.head.plain and stored.score(spec) > plain]
        for place, spec in enumerate(sorted(better, key=stored.score, reverse=True)[:PER_RUN]):
            gain = (stored.score(spec) - plain) / sum(stored.seconds(spec))
            found.setdefault(spec, (place, -gain))
    return tuple(sorted(found, key=found.__getitem__)[:MAXIMUM])


def summarize(scores: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Return the mean of test scores and its 95 % bootstrap interval over seeds."""
    draws = np.random.default_rng(seed).choice(scores, (SAMPLES, len(scores))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"score": round(float(scores.mean()), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def compare(table: Table, names: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Return the mean test score of every strategy on every set at every time limit."""
    result: dict[str, Any] = {}
    common = {"workers": args.workers, "nearest": args.nearest, "ladder": args.ladder}
    for name in names:
        stored = table.sets[name]
        items = table.specs(stored.info.pair)
        best = max(stored.test_score(spec) for spec in stored.scored)
        learned = learn_from_others(table, name) if args.learn else ()
        result[name] = {"best": round(best, 4), "candidates": len(stored.scored), "learned": learned, "strategies": {}}
        for strategy in args.strategies:
            cells = {}
            for seconds in args.seconds:
                searches = [
                    Search(strategy, seconds, seed, known=not args.without_known, learned=learned, **common)
                    for seed in range(args.seeds)
                ]
                ends = [replay(stored, items, search) for search in searches]
                trials = round(float(np.mean([end.trials for end in ends])), 1)
                scores = [round(end.test_score, 4) for end in ends]
                cells[f"{seconds:g}"] = {**summarize(np.array(scores)), "trials": trials, "scores": scores}
            result[name]["strategies"][strategy] = cells
            print(
                f"{name} {strategy}: " + ", ".join(f"{at} s {cell['score']}" for at, cell in cells.items()), flush=True
            )
    return result


def rank(sets: dict[str, Any]) -> dict[str, Any]:
    """Return the strategies at every time limit, best first, by the mean over sets of the test score of each seed."""
    scores: dict[str, dict[str, list[list[float]]]] = {}
    for result in sets.values():
        for strategy, cells in result["strategies"].items():
            for seconds, cell in cells.items():
                scores.setdefault(seconds, {}).setdefault(strategy, []).append(cell["scores"])
    ranking = {}
    for seconds, by_strategy in scores.items():
        means = {strategy: summarize(np.mean(values, 0)) for strategy, values in by_strategy.items()}
        ranking[seconds] = dict(sorted(means.items(), key=lambda item: -item[1]["score"]))
    return ranking


def parse_arguments() -> argparse.Namespace:
    from measure import options

    parser = options(__doc__, data=False, encoder=False)
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "table", help="directory of the table")
    parser.add_argument("--strategies", nargs="*", default=None, help="strategies to run")
    parser.add_argument("--seconds", nargs="*", type=float, default=list(HORIZONS), help="time limits")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2, help="workers of a search")
    parser.add_argument("--without-known", action="store_true", help="do not begin with known recipes")
    parser.add_argument("--nearest", action="store_true", help="evaluate the nearest candidate of the table")
    parser.add_argument("--learn", action="store_true", help="try early what was best on the other sets")
    parser.add_argument("--rungs", nargs="*", type=Fraction, help="rungs as fractions, such as 1/3 1")
    parser.add_argument("--eta", type=int, default=3, help="reduction factor, with --rungs")
    parser.add_argument("--brackets", type=int, default=1, help="rungs at which trials may start, with --rungs")
    args = parser.parse_args()
    args.ladder = Ladder(tuple(map(float, args.rungs)), args.eta, args.brackets) if args.rungs else None
    args.strategies = args.strategies or list((KNOWN_ONLY, *STRATEGIES) if args.nearest else EXACT)
    if not args.nearest and (other := sorted(set(args.strategies) - set(EXACT))):
        parser.error(
            f"{', '.join(other)}: needs --nearest; only {', '.join(EXACT)} choose among candidates of the table."
        )
    return args


def main() -> None:
    args = parse_arguments()
    from measure import finish

    if args.quick:
        args.seeds, args.seconds = 2, [60.0]
    table = Table(args.table)
    names = [name for name, stored in table.sets.items() if name in SETS and stored.info.folds > 1]
    names = [name for name in names if SETS[name].specs is None and len(table.sets[name].scored) >= LEAST_CANDIDATES]
    sets = compare(table, names, args)
    ladder = asdict(args.ladder or Ladder())
    finish(
        args,
        {"nearest": args.nearest, "seeds": args.seeds, "ladder": ladder, "ranking": rank(sets), "sets": sets},
    )


if __name__ == "__main__":
    main()
