"""Run directories without training: real events and results, written through the run package."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headhunt.data import Task
from headhunt.evaluation import DEFAULT_METRIC, Mistake, ReliabilityBin, Score, metric_names
from headhunt.report.callbacks import RunningSearch
from headhunt.run import schema
from headhunt.run.directory import RunDirectory, write_arrays
from headhunt.run.events import Event, FinalTestRun, RunStarted, SearchEnded, TrialAdded, TrialFinished, TrialStarted
from headhunt.run.ledger import LedgerWriter, read_state
from headhunt.run.results import (
    AblationItem,
    AblationResult,
    CandidateCost,
    Finalist,
    Importance,
    Importances,
    Latency,
    ModelCost,
    RungSummary,
    SearchResult,
    TestResult,
    TrialSummary,
    Verdict,
)
from headhunt.run.settings import SearchSettings
from headhunt.run.state import State, Trial
from headhunt.run.task import INFO, TaskInfo, open_task, save_task
from headhunt.spec import Space, Spec, plain

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
HOSTILE = '</script><script>document.title="owned"</script><img src="http://example.org/x.png" onerror="alert(1)">'
LABELS = ("praise", "complaint", "<b>question</b>")
VERSIONS = {"python": "3.12.1", "headhunt": "0.1.0", "torch": "2.6.0", "transformers": "5.1.0", "numpy": "2.1.0"}
FRACTIONS = (1 / 9, 1 / 3, 1.0)
WORDS = ["the", "a", "film", "plot", "was", "very", "slow", "bright", "dull", "dog", "ran", "over", "seven", "hills"]
SENTENCE = (
    "A reliable gain: the winner reaches 90.2 % where the plain head reaches 86.6 %, on 1,000 test rows: +3.6 points "
    "(95 % interval +1.4 points to +5.8 points, p = 0.0014)."
)


def make_run(
    folder: Path,
    trials: int,
    *,
    problem_type: str = "single_label_classification",
    pair: bool = False,
    ended: bool = True,
    metric: str | None = None,
) -> Path:
    """Write the run directory of a search; unless it has ended, one trial is running and there is no result."""
    directory = RunDirectory(folder)
    task = _make_task(problem_type, pair)
    save_task(task, directory.task)
    space = Space.load("default", 6)
    metric = metric or DEFAULT_METRIC[problem_type]
    directory.write(SearchSettings(encoder=ENCODER, space=space.to_dict(), metric=metric, time=None, trials=trials))
    rows = open_task(directory.task).splits["train"].targets
    script = _Script(directory, space, rows, len(task.labels), pair)
    script.play(trials, ended)
    if ended:
        _add_outcome(directory)
    return folder


def running_search(folder: Path) -> RunningSearch:
    """Return a run as callbacks see it."""
    directory = RunDirectory(folder)
    name, settings = directory.read_task_info().name, directory.read_settings()
    return RunningSearch(directory, name, settings, read_state(directory), None, "searching")


def _make_task(problem_type: str, pair: bool) -> Task:
    rng = random.Random(0)
    texts = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 30))) + f" {i}" for i in range(240)]
    texts[7] = HOSTILE
    labels = [
        LABELS[rng.choice((0, 0, 0, 1, 1, 2))] if problem_type == "single_label_classification" else rng.gauss(3, 1)
        for _ in texts
    ]
    columns = {"review": texts, "label": labels} | ({"other": [*texts[1:], "end"]} if pair else {})
    names = {"text": "review", "label": "label"} | ({"text_b": "other"} if pair else {})
    return Task.load(pa.table(columns), seed=0, **names)


@dataclass
class _Script:
    """A search by successive halving over three rungs, with scores from a formula and a virtual clock."""

    directory: RunDirectory
    space: Space
    targets: np.ndarray
    classes: int
    pair: bool
    now: float = 1_750_000_000.0

    def play(self, trials: int, ended: bool) -> None:
        """Write the events."""
        specs = self._specs(trials)
        started = RunStarted(self.space.to_dict(), "fingerprint", {"ladder": {"fractions": FRACTIONS}}, 0, VERSIONS)
        steps = [(number, 0) for number in range(trials)]
        scores = {
            (number, rung): self._score(specs[number], number, rung) for number in range(trials) for rung in range(3)
        }
        best = sorted(range(trials), key=lambda number: -(scores[number, 0] or -1))
        for rung, share in ((1, 3), (2, 9)):
            promoted = {0, *best[: max(1, trials // share)]}
            steps += [(number, rung) for number in sorted(promoted) if scores[number, rung - 1] is not None]
        if not ended:
            steps.pop()
        with pytest.MonkeyPatch.context() as patch, LedgerWriter(self.directory, now=lambda: self.now) as ledger:
            patch.setattr("os.fsync", lambda handle: None)
            ledger.begin(started)
            for number, rung in steps:
                self._run_trial(ledger, specs, number, rung, scores[number, rung])
            if ended:
                ledger.append(FinalTestRun(["winner", "plain"]), SearchEnded("trials"))
            else:
                ledger.append(*_running_trial(trials, specs))

    def _specs(self, trials: int) -> list[Spec]:
        specs = {(first := plain(ENCODER, len(self.targets))).hash: first}
        for seed in range(10 * trials):
            spec = self.space.draw(seed, encoder=ENCODER, pair=self.pair)
            if len(specs) < trials:
                specs.setdefault(spec.hash, spec)
        assert len(specs) == trials
        return list(specs.values())

    def _score(self, spec: Spec, number: int, rung: int) -> float | None:
        rng = random.Random(f"{number}/{rung}")
        head, recipe = spec.head, spec.recipe
        if number and rng.random() < 0.04:
            return None
        pooling = {"attention": 0.03, "mean": 0.025, "mean_max": 0.02, "cls": 0.0, "pooler": -0.01}
        score = 0.86 + pooling.get(head.pooling, 0.005) - 0.02 * abs(math.log(recipe.learning_rate / 1.2e-4))
        score -= 0.05 * (recipe.freeze == "all") + 0.02 * (head.blocks is not None)
        score += 0.012 * (head.mlp is not None) + 0.01 * (recipe.smart is not None)
        score += rng.gauss(0, 0.008) - 0.06 * (1 - FRACTIONS[rung])
        outlier = number and rng.random() < 0.03
        return min(score, 0.99) - (0.3 if outlier else 0.0)

    def _run_trial(self, ledger: LedgerWriter, specs: list[Spec], number: int, rung: int, score: float | None) -> None:
        rng = random.Random(f"{number}/{rung}/time")
        events: list[Event] = []
        if rung == 0:
            origin = "random" if number else "plain"
            events.append(TrialAdded(number, specs[number].to_dict(), specs[number].hash, None, origin, 0))
        ledger.append(*events, TrialStarted(number, rung, 0))
        seconds = (4 + 9 * rng.random()) * FRACTIONS[rung] * 3
        self.now += seconds
        if score is None:
            message = f"it predicts one class {HOSTILE}"
            ledger.append(TrialFinished(number, rung, "collapsed", None, seconds, 0, {"message": message}))
            return
        if rung == 2:
            arrays = {"rows": np.arange(len(self.targets)), "outputs": self._outputs(score, number)}
            write_arrays(self.directory.predictions(number, rung), **arrays)
        losses = [round(0.7 * math.exp(-0.5 * step) + 0.02 * rng.random(), 4) for step in range(9)]
        examples = int(3000 * FRACTIONS[rung])
        ledger.append(TrialFinished(number, rung, "ok", score, seconds, examples, {"losses": losses}))

    def _outputs(self, score: float, number: int) -> np.ndarray:
        rng = np.random.default_rng(number)
        rows = len(self.targets)
        if not self.classes:
            return self.targets + rng.normal(0, 1 - score, rows).astype(np.float32)
        predicted = np.where(rng.random(rows) < score, self.targets, rng.integers(0, self.classes, rows))
        confidence = rng.uniform(0.6, 0.99, rows).astype(np.float32)
        outputs = np.repeat(((1 - confidence) / (self.classes - 1))[:, None], self.classes, axis=1)
        outputs[np.arange(rows), predicted] = confidence
        return outputs


def _running_trial(number: int, specs: list[Spec]) -> list[Event]:
    """Return the events of a trial that is running; its spec is new."""
    spec = Space.load("default", 6).draw(10_000, encoder=ENCODER, pair=False)
    assert spec.hash not in {known.hash for known in specs}
    return [TrialAdded(number, spec.to_dict(), spec.hash, None, "random", 0), TrialStarted(number, 0, 0)]


def _add_outcome(directory: RunDirectory) -> None:
    """Write the model, the result, the ablation and the importances of a finished search."""
    directory.model.mkdir()
    info = {"spec": {"encoder": ENCODER}}
    for name, data in (("headhunt.json", info), ("config.json", {"encoder": {"num_hidden_layers": 6}})):
        (directory.model / name).write_text(json.dumps(data))
    state, task = read_state(directory), directory.read_task_info()
    result = make_result(state, task)
    directory.write(result)
    directory.write(replace(ABLATION, trial=result.winner.trial if result.winner else 0))
    directory.write(IMPORTANCES)


def make_result(state: State, task: TaskInfo) -> SearchResult:
    """Return the result of a search that ended with a reliable gain."""
    board = [trial for trial in state.leaderboard() if trial.number]
    best = board[0]
    return SearchResult(
        reason="trials",
        metric=DEFAULT_METRIC[task.problem_type],
        trials=len(state.trials),
        results=len(state.settled),
        seconds=state.elapsed,
        examples=1_234_567,
        evaluated_on=task.evaluated_on,
        verdict=Verdict("winner", "gain", SENTENCE, 0.036, 0.014, 0.058, 0.0014, 0.004, 4),
        model="model",
        model_from=f"{best.number:06d}-all",
        winner=_summary(best),
        plain=_summary(state.trials[0]),
        ensemble_members=tuple(trial.number for trial in board[:4]),
        finalists=tuple(_finalist(place, trial) for place, trial in enumerate([state.trials[0], *board[3::-1]])),
        costs=tuple(
            CandidateCost(trial.number, trial.best[1], 4.0 + 0.7 * place, 91.2 - 0.8 * place, place % 3 == 0)
            for place, trial in enumerate(board[:12])
            if trial.best
        ),
        rungs=tuple(RungSummary(rung, share, 40, 12, 1, 321.5, 0.9) for rung, share in enumerate(FRACTIONS)),
        test=make_test_result(task),
        test_evaluations=1,
        versions=VERSIONS,
    )


def _summary(trial: Trial) -> TrialSummary:
    rung, score = trial.best or (None, None)
    return TrialSummary(trial.number, trial.spec, rung, score)


def _finalist(place: int, trial: Trial) -> Finalist:
    assert trial.best is not None
    latency = {"1": Latency(4.0 + 0.7 * place, 6.1 + place), "32": Latency(60.0 + 9 * place, 80.5)}
    cost = ModelCost(latency, 22_700_000 + 1000 * place, 91.2 - 0.8 * place, 1.4, "cpu")
    return Finalist(trial.number, tuple(trial.best[1] + 0.002 * i for i in range(3)), cost)


def make_test_result(task: TaskInfo) -> TestResult:
    """Return scores on test rows; with three classes also confusions, calibration and mistakes."""

    def scores(value: float) -> dict[str, Score]:
        names = metric_names(task.problem_type)
        return {name: Score(value - 0.01 * i, value - 0.022, value + 0.019) for i, name in enumerate(names)}

    every = {"winner": scores(0.902), "plain": scores(0.866), "ensemble": scores(0.909)}
    if task.problem_type != "single_label_classification":
        return TestResult(1000, every)
    bins = ((0.55, 0.5, 40), (0.66, 0.6, 90), (0.78, 0.71, 150), (0.9, 0.87, 300), (0.98, 0.97, 420))
    return TestResult(
        1000,
        every,
        confusion={
            "winner": [[470, 20, 10], [31, 300, 9], [11, 17, 132]],
            "plain": [[455, 33, 12], [41, 280, 19], [14, 15, 131]],
        },
        calibration=tuple(ReliabilityBin(*group) for group in bins),
        temperature=1.21,
        mistakes=(
            Mistake(f"It was {HOSTILE}", "praise", LABELS[2], 0.987, None, "praise"),
            Mistake("Not the worst evening I have had. " * 30, "praise", "complaint", 0.95, None, "complaint"),
            Mistake("Why?", LABELS[2], "complaint", 0.81, "Because.", LABELS[2]),
        ),
    )


ABLATION = AblationResult(
    trial=1,
    metric="accuracy",
    rows=200,
    base=Score(0.901, 0.88, 0.92),
    items=(
        AblationItem("freezing: 3 → none", 0.905, 0.004, -0.009, 0.017, 3),
        AblationItem("pooling: attention → cls", 0.87, -0.031, -0.049, -0.012, 3, True),
        AblationItem("faster head: 5 → 1", 0.884, -0.017, -0.03, -0.004, 3, True),
        AblationItem("MLP: on → none", 0.893, -0.008, -0.02, 0.004, 3),
    ),
)
IMPORTANCES = Importances(
    (
        Importance("recipe.learning_rate", 0.41),
        Importance("head.pooling", 0.22),
        Importance("recipe.freeze", 0.17),
        Importance("head.mlp", 0.06),
    )
)


def keep_events(folder: Path, count: int) -> None:
    """Cut the ledger of a run after so many events."""
    ledger = RunDirectory(folder).ledger
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:count]))


def rename_task(folder: Path, name: str) -> None:
    """Give the data of a run another name."""
    directory = RunDirectory(folder)
    schema.write(directory.task / INFO, replace(directory.read_task_info(), name=name))
