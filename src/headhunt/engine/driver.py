"""Drive one search: open the run, start workers, keep the best model on disk, reserve time for the final evaluation."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from headhunt.engine.best_model import BestModel
from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.engine.final_test import run_final_evaluation
from headhunt.engine.options import default_workers
from headhunt.engine.planning import plan_search
from headhunt.engine.preloading import has_gpu, load_libraries
from headhunt.engine.pretraining import FurtherPretraining
from headhunt.engine.selection import seconds_to_reserve
from headhunt.engine.self_training import reserved_fraction, run_self_training
from headhunt.engine.signals import interruptible, terminated_like_interrupted
from headhunt.engine.verdict import refuse_if_nothing_trained
from headhunt.engine.workers import RunnerSettings, start_workers, starts_ray
from headhunt.report import model_card
from headhunt.report.notebook import live_view
from headhunt.run.directory import Key, RunDirectory
from headhunt.run.events import SearchEnded
from headhunt.run.ledger import LedgerWriter
from headhunt.run.model_info import versions
from headhunt.run.plan import Plan
from headhunt.run.results import TFIDF, SearchResult
from headhunt.run.settings import SearchSettings
from headhunt.run.state import State
from headhunt.spec import NAMED, Space, Spec
from headhunt.study.budget import INTERRUPTED_SECONDS, Limits, TimeBudget
from headhunt.study.candidates import Candidates
from headhunt.study.executors import Executor, InlineExecutor
from headhunt.study.requests import Request
from headhunt.study.study import Study

FINISHING_SECONDS = 12.0  # for the final evaluation in this process, if the workers do not start in time
WAITING_FRACTION = 0.3  # of the time, for workers to start, before a head is solved in this process
DISK = 8 << 30  # bytes for checkpoints

log = logging.getLogger(__name__)


class View(Protocol):
    """Shows the progress of a search."""

    def begin(self, folder: Path, name: str, state: State, deadline: float | None) -> None:
        """Start the view; the search begins or is resumed."""

    def update(self, state: State, deadline: float | None, stage: str) -> None:
        """Show the state of the search."""

    def end(self) -> None:
        """Close the view."""


@dataclass(frozen=True)
class Resources:
    """The cluster a search runs on and its permissions; given with every call, never stored."""

    ray: str | None = None
    """Address of a Ray cluster; "local" starts Ray on this machine."""
    trust_remote_code: bool = False


class SearchDriver:
    """One session of a search, from opening the run to the model.

    Args:
        path: The run directory.
        settings: The settings of the search.
        resources: Where it runs.
        budget: Its time.
        view: Shows progress; a live view in a notebook by default, none if False.
    """

    def __init__(
        self,
        path: Path,
        settings: SearchSettings,
        resources: Resources,
        budget: TimeBudget,
        view: View | Literal[False] | None,
    ) -> None:
        # Workers of a cluster have another working directory, so paths must be absolute.
        self.directory = RunDirectory(path.absolute())
        self.settings, self.resources, self.budget = settings, resources, budget
        self.view: View | None = (live_view(settings.metric) if view is None else view) or None
        self.task = self.directory.read_task_info()
        self._stop = threading.Event()
        self._libraries: Future[None] | None = None  # being loaded, for the final evaluation
        self._study: Study | None = None
        self._stage = "starting"
        self._ended_before: str | None = None  # why the search had ended when this session began
        self.best = BestModel(limited=settings.max_latency is not None or settings.max_size is not None)
        self._local: InlineExecutor | None = None  # runs requests in this process
        self._first = False  # whether the first head is being solved, before anything else
        self._threads: int | None = None  # of torch in this process, before they were limited
        self._reference_requested = False
        self._pretraining = FurtherPretraining(self.directory, settings)
        self._damaged: list[Key] = []  # trial and rung of predictions that could not be read

    def run(self) -> None:
        """Search, then run the final evaluation."""
        with self.open(solved=True) as study:
            self.directory.result.unlink(missing_ok=True)  # of an earlier session
            with interruptible(self._interrupt):
                reason = study.run()
                if self._libraries is not None:
                    self._libraries.result()  # two threads must not load the same libraries
            refuse_if_nothing_trained(study.state)
            if reason == "interrupted":
                self.budget.shorten(INTERRUPTED_SECONDS)
            self._stop.clear()
            result = run_final_evaluation(final := self.final_evaluation(study), reason)
            self._write_model_cards(run_self_training(final, result) if self.settings.unlabelled else result)

    def evaluate_again(self, training_runs: int) -> None:
        """Run the final evaluation again, with more training runs."""
        with self.open() as study:
            reason = self.mark_ended(study)
            self._write_model_cards(run_final_evaluation(self.final_evaluation(study), reason, training_runs))

    @contextmanager
    def open(self, *, solved: bool = False) -> Iterator[Study]:
        """Open the run for writing, start workers, and yield a study that has caught up with the ledger.

        Args:
            solved: Whether to evaluate a solved head in this process while the workers start, if that takes long.
        """
        starter = ThreadPoolExecutor(2)
        with terminated_like_interrupted(), LedgerWriter(self.directory) as ledger:
            self._damaged = self.directory.remove_damaged_predictions()
            self._ended_before = ledger.state.ended
            executor: Executor | None = None
            starting: Future[Executor] | None = None
            try:
                if self.view:
                    self.view.begin(self.directory.path, self.task.name, ledger.state, self.budget.deadline)
                # Ray takes seconds to start here. Forked workers do not, and a cluster may be faster than this machine.
                beside = solved and starts_ray(self.settings, self.resources.ray)
                starting = starter.submit(self._start_executor)
                if not beside:
                    patience = WAITING_FRACTION * self.budget.left() if solved else math.inf
                    executor = _wait_for_workers(starting, patience)
                plan = self.directory.read_plan() or self._make_plan(executor)
                if self.view and solved:
                    self.view.update(ledger.state, self.budget.deadline, plan.sentence)
                self._study = self._create_study(ledger, executor or self._local_executor(), plan)
                if solved:
                    self._stage, self._first = "solving the first head", True
                    if self.view:
                        self.view.update(ledger.state, self.budget.deadline, self._stage)
                    with interruptible(self._interrupt):
                        self._study.evaluate_first()
                self._stage, self._first = "searching", False
                if solved:
                    self._libraries = starter.submit(load_libraries)
                if executor is None:
                    executor = _wait_for_workers(starting, self.budget.left() - FINISHING_SECONDS)
                self._study.executor = executor or self._local_executor()
                if executor is not None and executor is not self._local:
                    self._release_local()
                yield self._study
            finally:
                starter.shutdown(wait=False, cancel_futures=True)
                if executor is not None:
                    executor.close()
                    self.directory.sweep()  # of workers that were killed
                elif starting is not None:
                    starting.add_done_callback(_close)  # it may still be starting
                if self.view:
                    self.view.end()

    def _make_plan(self, executor: Executor | None) -> Plan:
        """Measure the speed of the encoder and store what fits into the time."""
        self._stage = "measuring the speed of the encoder"
        plan = plan_search(
            self.task,
            self.settings,
            executor or self._local_executor(),
            left=self.budget.left(),
            workers=self.settings.workers or (1 if self.settings.workers == 0 else default_workers()),
            trust_remote_code=self.resources.trust_remote_code,
        )
        self.directory.write_plan(plan)
        return plan

    def _local_executor(self) -> InlineExecutor:
        """Return an executor that runs requests in this process; its tokens and features are kept until searching."""
        from headhunt.engine.trial_runner import TrialRunner

        if self._local is None:
            settings = self._runner_settings()
            if self.settings.workers != 0 and not has_gpu():
                # Workers start meanwhile: threads that compete for cores with them would wait for each other.
                import torch

                self._threads = torch.get_num_threads()
                settings = replace(settings, threads=max(1, default_workers() // 2))
            runner = TrialRunner(settings)
            self._local = InlineExecutor(lambda request: runner.run(request, self._stop.is_set))
        return self._local

    def _release_local(self) -> None:
        """Free the memory of this process's executor, and give torch its threads back."""
        if self._local is not None and self._threads is not None:
            import torch

            torch.set_num_threads(self._threads)
        self._local = None

    def final_evaluation(self, study: Study) -> FinalEvaluation:
        """Return the final evaluation of a study."""

        def show_stage(stage: str) -> None:
            self._stage = stage or self._stage
            if self.view:
                self.view.update(study.state, self.budget.deadline, study.pause.problem or self._stage)

        return FinalEvaluation(
            directory=self.directory,
            task=self.task,
            metric=self.settings.metric,
            study=study,
            calibrate=self.settings.calibrate,
            reject=self.settings.rejection,
            trust_remote_code=self.resources.trust_remote_code,
            show_stage=show_stage,
            plan=study.plan,
            deliver=self.settings.deliver,
        )

    def mark_ended(self, study: Study) -> str:
        """Record the end of searching, so that this session does not count as search time; return why it ended."""
        reason = self._ended_before or "cut off"
        study.ledger.append(SearchEnded(reason))
        return reason

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
        if self.settings.workers == 0:
            return self._local_executor()
        return start_workers(self.settings, self._runner_settings(), self.resources.ray)

    def _create_study(self, ledger: LedgerWriter, executor: Executor, plan: Plan) -> Study:
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
            encoders=plan.encoders,
            max_epochs=plan.epochs,
            grows=plan.grows,
            classes=len(self.task.labels) or 1,
            learned=[Spec.from_dict(spec) for spec in settings.learned],
            last_layer=plan.only_solves,
        )
        return Study(
            ledger,
            candidates,
            executor,
            strategy=settings.strategy,
            known=settings.known_recipes,
            rungs=settings.rungs,
            limits=Limits(trials=settings.trials, target=settings.target),
            budget=self.budget,
            seed=settings.seed,
            task=self.task.fingerprint,
            disk=DISK,
            plan=plan,
            solved=True,
            versions=versions(),
            callback=self._after_results,
            notify=self._notify,
        )

    def _interrupt(self) -> None:
        """Stop the search on the first signal: running trials are checkpointed, and a short final evaluation runs."""
        self._stop.set()
        if self._study is not None:
            self._study.stop("interrupted")

    def _notify(self, message: str) -> None:
        """Show a message for the user, or log it if there is no view."""
        if self.view and self._study is not None:
            self.view.update(self._study.state, self.budget.deadline, message)
        else:
            log.warning(message)

    def _after_results(self, study: Study) -> Sequence[Request]:
        """Keep the best model on disk and enough time for the final evaluation."""
        final = self.final_evaluation(study)
        self.best.update(final)
        more = reserved_fraction(self.settings.unlabelled)
        needed = seconds_to_reserve(final, self.best.trial)
        self.budget.reserve(needed + more * self.budget.total, final.largest_reserve + more)
        requests = [*self.best.requests(final), *self._request_reference(study)]
        if not self._first:
            if (message := self._pretraining.add_encoder(study)) is not None:
                self._notify(message)
            requests += self._pretraining.requests(final)
        requests += final.repeat_predictions(self._damaged)
        self._damaged = []
        if self.view:
            self.view.update(study.state, self.budget.deadline, study.pause.problem or self._stage)
        return requests

    def _request_reference(self, study: Study) -> list[Request]:
        """Request TF-IDF with a linear model once, when the workers have started."""
        predictions = self.directory.reference_predictions(TFIDF)
        if self._reference_requested or study.state.model is None or self._first or not study.compares:
            return []
        self._reference_requested = True
        return [] if predictions.exists() else [self.final_evaluation(study).reference_request()]

    def _write_model_cards(self, result: SearchResult) -> None:
        """Write the card of the delivered model, of the ensemble, and of the winner if another model was delivered."""
        space = self.settings.space.get("name")
        names = [self.settings.encoder, *self.settings.encoders]
        encoder, *encoders = [name if model_card.hub_name(name) else "ENCODER" for name in names]
        settings = replace(self.settings, encoder=encoder, encoders=tuple(encoders))
        command = " ".join(settings.command(self.task, str(space) if space in NAMED else "space.json"))
        for folder, saved in ((self.directory.model, result.model), (self.directory.ensemble, result.ensemble)):
            if saved is not None:
                model_card.write(folder, task=self.task, result=result, command=command)
        if result.verdict.delivered in ("plain", "ensemble") and result.winner_model:
            winner = replace(result, verdict=replace(result.verdict, delivered="winner"))
            folder = self.directory.models / result.winner_model
            model_card.write(folder, task=self.task, result=winner, command=command)


def config_of_encoder(encoder: str, trust_remote_code: bool = False) -> Any:
    """Return the configuration of an encoder."""
    from headhunt.modeling.pretrained import load_config  # torch takes a while to load

    return load_config(encoder, trust_remote_code)


def _wait_for_workers(starting: Future[Executor], seconds: float) -> Executor | None:
    """Return the workers, or None if they have not started in time."""
    try:
        return starting.result(None if math.isinf(seconds) else max(1.0, seconds))
    except TimeoutError:
        return None


def _close(starting: Future[Executor]) -> None:
    """Close an executor that started too late. If it failed, there is nothing to close."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
