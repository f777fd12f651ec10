"""Run a search from opening its directory to the delivered model: a list of stages, each in a few lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headhunt.engine.choice import choose, unlike
from headhunt.engine.deliver import deliver, join_unlike, refuse_if_nothing_trained, write_model_cards
from headhunt.engine.encoders import relative_cost
from headhunt.engine.pretraining import Pretraining
from headhunt.engine.signals import interruptible, terminated_like_interrupted
from headhunt.engine.view import View
from headhunt.engine.workers import RunnerSettings, start_workers
from headhunt.errors import HeadhuntError
from headhunt.report.callbacks import Callback, Callbacks, RunningSearch, create_callbacks
from headhunt.report.notebook import LiveView, in_notebook
from headhunt.report.terminal import SearchLog
from headhunt.run.directory import RunDirectory, is_model
from headhunt.run.events import ModelSaved, SearchEnded
from headhunt.run.ledger import LedgerWriter
from headhunt.run.model_info import versions
from headhunt.run.plan import CLOSING_SECONDS, MEASURED_ROWS, MEASURED_SECONDS, Plan, make_plan, with_encoders
from headhunt.run.settings import Resources, SearchSettings
from headhunt.run.state import KNOWN, PLAIN, SOLVED, WORDS, Trial
from headhunt.spec import Space, Spec, plain
from headhunt.storage import remove
from headhunt.study.budget import INTERRUPTED_SECONDS, TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import Executor, InlineExecutor
from headhunt.study.loop import Batch, Loop
from headhunt.study.requests import (
    FitAllRows,
    MeasureCost,
    MeasureThroughput,
    PredictTestRows,
    Request,
)
from headhunt.study.study import Study

DISK = 8 << 30  # bytes for checkpoints
OPTIMISM = 3.0  # more epochs than are expected to fit are planned first: an elastic training can only lower the number
SHORTEST = 0.7  # of the seconds of the first training run: a further one is not begun with less
LONGER = 1.5  # times the seconds of a training run that was cut short, from which on it is repeated after a resume
FINISHING_SECONDS = 1.0  # for saving a model that was trained until its deadline
COST_SECONDS = 12.0  # that must be left for measuring the cost of a model
COMPARED = 12  # best trials among which the winner is chosen, beside those with a model
TRAINING_RUNS = 3  # of the winner and the plain head, as far as the time goes
INTERRUPTED = "finishing within a minute; Ctrl-C again stops at once"


class Session:
    """One session of a search.

    Args:
        path: The run directory.
        settings: The settings of the search.
        resources: Where it runs.
        budget: Its time.
        callbacks: Follow the search; a live view in a notebook if None.
    """

    def __init__(
        self,
        path: Path,
        settings: SearchSettings,
        resources: Resources,
        budget: TimeBudget,
        callbacks: Sequence[Callback | str] | None = None,
    ) -> None:
        # Workers of a cluster have another working directory, so paths must be absolute.
        self.directory = RunDirectory(path.absolute())
        self.settings, self.resources, self.budget = settings, resources, budget
        self.task = self.directory.read_task_info()
        shown = [LiveView()] if callbacks is None and in_notebook() else create_callbacks(callbacks or ())
        self._callbacks = Callbacks([*shown, SearchLog()])
        self._title = "starting"
        self._ended_before: str | None = None  # why the search had ended when this session began
        self.loop: Loop
        self.study: Study
        self.view: View
        self._running: RunningSearch

    def run(self) -> None:
        """Search, and deliver a model."""
        with self.open():
            self.directory.result.unlink(missing_ok=True)  # of an earlier session
            with interruptible(self._interrupt):
                self._first_models()
                self._train_and_compare()
                reason = self.study.end()
                self._refit(TRAINING_RUNS if self.settings.time is not None else 1)
            refuse_if_nothing_trained(self.view.state)
            if reason == "interrupted":
                self.loop.interrupted = False
                self.budget.shorten(INTERRUPTED_SECONDS)
            self._finish(reason)

    def evaluate_again(self, runs: int) -> None:
        """Train the winner and the plain head so many times each, and compare them again."""
        with self.open():
            reason = self.mark_ended()
            self._refit(runs)
            self._finish(reason)

    def mark_ended(self) -> str:
        """Record the end of comparing, so that this session does not count as search time; return why it ended."""
        reason = self._ended_before or "cut off"
        self.study.ledger.append(SearchEnded(reason))
        return reason

    @contextmanager
    def open(self) -> Iterator[Loop]:
        """Open the run for writing, start workers, and yield the loop, with a study that has caught up."""
        with terminated_like_interrupted(), LedgerWriter(self.directory) as ledger:
            lost = self.directory.remove_damaged_predictions()
            self._ended_before = ledger.state.ended
            executor: Executor | None = None
            try:
                facts = (self.directory, self.task.name, self.settings, ledger.state, self.budget.deadline)
                self._running = RunningSearch(*facts)
                self._callbacks.start(self._running)
                executor = self._start_executor()
                self.study = self._create_study(ledger)
                self.loop = Loop(ledger, executor, self.budget, self._show, self.study, self._after)
                plan = self.directory.read_plan() or self._measure()
                self.view = View(self.directory, self.task, self.settings, self.study, plan)
                self.study.follow(plan)
                self.study.repeat(lost)
                yield self.loop
            finally:
                if executor is not None:
                    executor.close()
                    self.directory.sweep()  # of workers that were killed
                self._callbacks.end(self._running)

    def _measure(self) -> Plan:
        """Measure the speed of the encoder, and store what fits into the time."""
        self._title = "measuring the speed of the encoder"
        spec = self.study.candidates.solved(words=False)[0]
        request = MeasureThroughput(
            trial=0, spec=spec, seed=self.settings.seed, rows=MEASURED_ROWS, seconds=MEASURED_SECONDS
        )
        self.loop.run(Batch([request]))
        measured = self.study.state.jobs[request.key]
        if measured.outcome != "ok":
            raise HeadhuntError(f"The encoder cannot be used: {measured.extra.get('message', measured.outcome)}")
        workers, alone = self.loop.executor.workers, self.loop.executor.threads_alone or 1
        times: dict[str, Any] = {"seconds": self.settings.time, "left": self.budget.left()}
        plan = make_plan(self.task, measured.extra, **times, workers=workers, alone=alone)
        if len(self.settings.encoders) > 1:
            trust = self.resources.trust_remote_code
            plan = with_encoders(plan, {each: relative_cost(each, trust) for each in self.settings.encoders})
        self.directory.write(plan)
        return plan

    def _first_models(self) -> None:
        """Solve heads on word counts and on the frozen encoder: the floor that nothing delivered is below."""
        self._title = "training the first models, in seconds"
        self.study.begin()
        self.loop.run(Batch(self._solvings()))
        if not self._is_stopped():
            solved = [trial for trial in self.view.fitted() if trial.is_solved]
            self.loop.run(Batch(self._tests(solved, alone=True)))

    def _solvings(self) -> Iterator[Request]:
        """Yield requests for models that need no training. The first one may be late."""
        view, unsolved = self.view, self.study.baselines.unsolved()
        if not self.study.resampling.leaves_model and view.state.model is None:
            for trial in unsolved:
                if trial.spec.encoder == self.settings.encoder and not (self._is_stopped() and view.fitted()):
                    out = self.directory.final_model(trial.number, 0)
                    yield view.request(FitAllRows, trial, out=out, alone=True)
        for trial in unsolved:
            if not (self._is_stopped() and view.fitted()):
                deadline = self._deadline(self._closing_seconds()) if view.fitted() else None
                yield self._evaluate_at_once(trial, alone=True, deadline=deadline)

    def _train_and_compare(self) -> None:
        """Train the recommended recipe and the plain head on all rows; idle workers compare candidates meanwhile."""
        if self._is_stopped():
            return
        self._title = "training on all rows"
        trials = [trial for trial in (self.study.recommended(), self.view.state.plain) if trial is not None]
        if repeats := self._were_short(trials):
            self._forget_comparison(trials)
        pretraining = Pretraining(self.view) if self.settings.pretrain else None
        stages = [pretraining] if pretraining else []
        self.loop.run(Batch(self._fits(trials, repeats=repeats)), *stages, self.study)

    def _were_short(self, trials: Sequence[Trial]) -> bool:
        """Return whether models of an earlier session were cut short, and this one has far more time for them."""
        view, left = self.view, self.budget.left() - self._closing_seconds()
        cuts = [view.training_facts(trial)[1].get("cuts") for trial in trials]
        return all(cuts) and left > LONGER * view.fit_seconds()

    def _forget_comparison(self, trials: Sequence[Trial]) -> None:
        """Remove what the test rows said of models that are trained again, and their other training runs."""
        for number, model in (each for trial in trials for each in enumerate(self.view.models_of(trial))):
            self.directory.test_predictions(model.name).unlink(missing_ok=True)
            if number:
                remove(model)

    def _refit(self, runs: int) -> None:
        """Train what wins and has no model yet, and the plain head; then both again, as often as there is time.

        Args:
            runs: Training runs of each.
        """
        view = self.view
        numbers = {trial.number for trial in (*view.fitted(), *view.state.leaderboard()[:COMPARED])}
        scored = [view.state.trials[number] for number in numbers]
        for seed in range(runs):
            if self._is_stopped():
                return
            self._title = "training the winner and the plain head on all rows"
            winner, plain = choose(view, scored), view.state.plain
            pair = {trial.number: trial for trial in (winner, plain) if trial is not None}
            missing = [t for t in pair.values() if not is_model(self.directory.final_model(t.number, seed))]
            if seed:
                missing = [trial for trial in missing if not trial.is_solved]  # another seed changes nothing
                needed = SHORTEST * view.fit_seconds() * math.ceil(len(missing) / self._workers)
                if needed > self.budget.left() - self._closing_seconds():
                    return
            self.loop.run(Batch(self._fits(missing, seed)))

    def _finish(self, reason: str) -> None:
        """Test every model, deliver one of them and write the result."""
        view = self.view
        self._title = INTERRUPTED if reason == "interrupted" else "predicting the test rows"
        chosen = choose(view, view.fitted())
        remove(self.directory.ensemble)  # of an earlier session, perhaps with other members
        if self.settings.deliver == "ensemble":
            self.loop.run(Batch(join_unlike(view, unlike(view, chosen), self._deadline(COST_SECONDS))))
        if "test" in self.task.rows:
            trials = dict.fromkeys(trial.number for trial in (chosen, view.state.plain) if trial is not None)
            others = dict.fromkeys([*trials, *(trial.number for trial in view.fitted())])
            self.loop.run(Batch(self._tests([view.state.trials[number] for number in others])))
        costs = [*view.models_of(chosen)[:1], *view.models_of(view.state.plain)[:1]]
        if costs and chosen is not None and self.budget.left() > COST_SECONDS:
            self._title = "measuring the cost of the models"
            fields: dict[str, Any] = {"deadline": self._deadline(1.0), "alone": True}
            self.loop.run(Batch(view.request(MeasureCost, chosen, model=model, **fields) for model in costs))
        self._after(False)
        result = deliver(view, reason, self.resources.trust_remote_code, self.budget.left())
        write_model_cards(view, result)

    def _evaluate_at_once(self, trial: Trial, **fields: Any) -> Request:
        """Return the request for a complete evaluation."""
        return self.study.request(trial.number, self.study.ladder.top, checkpoint=None, **{"deadline": None, **fields})

    def _fits(self, trials: Sequence[Trial], seed: int = 0, *, repeats: bool = False) -> Iterator[Request]:
        """Yield requests for training runs on all rows, whose number of steps is fitted to the time that is left.

        Args:
            trials: The trials to train.
            seed: Number of the training run.
            repeats: Whether models that are there are trained again; until then, they are kept.
        """
        plan, rounds = self.view.plan, math.ceil(len(trials) / self._workers)
        start, left = self.budget.now(), self.budget.left() - self._closing_seconds()
        for number, trial in enumerate(trials):
            share = (number // self._workers + 1) / rounds
            fields: dict[str, Any] = {
                "spec": self._longer(trial),
                "elastic": True,
                "repeats": repeats,
                "finishing": FINISHING_SECONDS,
                "deadline": None if self.budget.deadline is None else start + share * left,
                "worker_timeout": None,
            }
            if not self.study.resampling.leaves_model:
                out = self.directory.final_model(trial.number, seed)
                yield self.view.request(FitAllRows, trial, seed, out=out, **fields)
                continue
            fields["finishing"] += plan.prediction_seconds(plan.held_out, trial.spec.encoder)
            if not seed and self.study.ladder.top not in trial.results:
                yield self._evaluate_at_once(trial, **fields)
            else:
                paths = {"out": self.directory.final_model(trial.number, seed)}
                paths["predictions"] = self.directory.last_predictions(trial.number, seed)
                rows = self.study.rows_of(trial, self.study.ladder.top)
                yield self.view.request(FitAllRows, trial, seed, rows=rows, **paths, **fields)

    def _longer(self, trial: Trial) -> Spec:
        """Return the spec of a trial whose epochs were cut to the time, with as many as might fit after all."""
        spec, plan = trial.spec, self.view.plan
        fitting = (
            None if plan.epochs is None else plan.epochs * max(1.0, self.budget.total / (plan.seconds or math.inf))
        )
        if fitting is None or self.settings.epochs or spec.recipe.epochs < 0.98 * (plan.epochs or 0.0):
            return spec
        usual = plain(spec.encoder, plan.rows).recipe.epochs
        epochs = max(spec.recipe.epochs, min(usual, round(OPTIMISM * fitting, 2)))
        return replace(spec, recipe=replace(spec.recipe, epochs=epochs))

    def _tests(self, trials: Sequence[Trial], *, alone: bool = False) -> Iterator[Request]:
        """Yield requests for predictions of the test rows by the models of trials, seed by seed."""
        if "test" not in self.task.rows:
            return
        models = [[(trial, model) for model in self.view.models_of(trial)] for trial in trials]
        for run in range(max(map(len, models), default=0)):
            for trial, model in (each[run] for each in models if run < len(each)):
                path = self.directory.test_predictions(model.name)
                fields: dict[str, Any] = {"deadline": self._deadline(1.0), "alone": alone, "worker_timeout": None}
                yield self.view.request(PredictTestRows, trial, model=model, predictions=path, **fields)

    @property
    def _workers(self) -> int:
        return max(1, self.loop.executor.workers)

    def _closing_seconds(self) -> float:
        """Estimate the seconds for what follows training: two models predict the test rows, and one is delivered."""
        predicting = math.ceil(2 / self._workers) * self.view.plan.prediction_seconds(self.view.plan.test_rows)
        return CLOSING_SECONDS + 1.1 * predicting

    def _deadline(self, before: float) -> float | None:
        return None if self.budget.deadline is None else self.budget.deadline - before

    def _is_stopped(self) -> bool:
        """Return whether nothing more is trained: a signal came, or the target was reached."""
        return self.study.stop_reason in ("interrupted", "target")

    def _interrupt(self) -> None:
        """End the search on the first signal; a first model is finished all the same."""
        self._title = self._running.stage = INTERRUPTED
        self.study.stop("interrupted")
        if self.study.state.model is not None:
            self.loop.interrupt()

    def _after(self, results: bool) -> None:
        """Keep the best model on disk and enough time for the end, and show the state."""
        if results and hasattr(self, "view"):
            view, reserve = self.view, self._closing_seconds()
            if not self.study.resampling.leaves_model:
                reserve += 1.1 * view.fit_seconds()
            self.budget.reserve(reserve)
            self._keep_best()
        self._show(self.loop.problem or self._title)

    def _keep_best(self) -> None:
        """Point `RUN/best` to the model that would be delivered now."""
        best = choose(self.view, self.view.fitted())
        saved = self.view.state.model
        if best is not None and (saved is None or saved.trial != best.number):
            folder = self.directory.final_model(best.number, 0).name
            self.study.ledger.stage(ModelSaved(best.number, folder))
            self.directory.link_best(folder)
        for trial in self.view.fitted():  # where an evaluation leaves its model, the disk would fill up
            if trial.origin not in (PLAIN, SOLVED, WORDS, KNOWN) and trial is not best:
                remove(self.directory.final_model(trial.number, 0))

    def _show(self, stage: str) -> None:
        """Tell the callbacks what happened since the last call."""
        self._running.deadline, self._running.stage = self.budget.deadline, stage
        self._callbacks.update(self._running)

    def _runner_settings(self) -> RunnerSettings:
        settings = self.settings
        return RunnerSettings(
            directory=str(self.directory.path),
            metric=settings.metric,
            seed=settings.seed,
            device=settings.device,
            precision=settings.precision,
            trust_remote_code=self.resources.trust_remote_code,
            max_latency=settings.max_latency,
            max_size=settings.max_size,
        )

    def _start_executor(self) -> Executor:
        """Start the workers; without any, run requests in this process."""
        if self.settings.workers != 0:
            return start_workers(self.settings, self._runner_settings(), self.resources.ray)
        from headhunt.engine.trial_runner import TrialRunner

        runner = TrialRunner(self._runner_settings())
        return InlineExecutor(lambda request: runner.run(request, lambda: self.loop.interrupted))

    def _create_study(self, ledger: LedgerWriter) -> Study:
        settings = self.settings
        config = config_of_encoder(settings.encoder, self.resources.trust_remote_code)
        candidates = Candidates(
            Space.from_dict(settings.space),
            encoder=settings.encoder,
            pair=self.task.pair,
            problem_type=self.task.problem_type,
            rows=self.task.rows["train"],
            layers=int(config.num_hidden_layers),
            width=int(config.hidden_size),
            max_length=settings.max_length,
            classes=len(self.task.labels) or 1,
            learned=[Spec.from_dict(spec) for spec in settings.learned],
            epochs=settings.epochs,
            balanced=settings.metric == "macro_f1",
        )
        return Study(
            ledger,
            candidates,
            settings,
            self.budget,
            task=self.task.fingerprint,
            disk=DISK,
            versions=versions(),
        )


def config_of_encoder(encoder: str, trust_remote_code: bool = False) -> Any:
    """Return the configuration of an encoder."""
    from headhunt.modeling.pretrained import load_config  # torch takes a while to load

    return load_config(encoder, trust_remote_code)
