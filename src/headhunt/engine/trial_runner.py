"""Run requests about candidates in one worker process: train, evaluate, save, predict, measure.

Small data is evaluated by cross-validation: the training rows are split into three folds, and a candidate is trained
once for each on the other two. A fraction of its budget is a fraction of these training runs, one after the other. The
first third of the budget is one complete training run, evaluated on a third of the rows. The full budget has
predicted every row with a model that has not seen it.

Large data has one split. A fraction of the budget is then a fraction of the rows: a complete training run on a sample,
always evaluated on the same rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headhunt.engine.assembly import Assembly, architecture_key, spec_of
from headhunt.engine.ensemble import join
from headhunt.engine.folds import OUTPUTS, baseline_loss, fold_name, link_files, read_outputs
from headhunt.engine.profiling import CostCheck, OverLimitError, measure_cost
from headhunt.engine.worker_data import WorkerData, limit_memory
from headhunt.engine.worker_jobs import measure_throughput, pretrain_encoder
from headhunt.engine.workers import RunnerSettings
from headhunt.errors import out_of_memory
from headhunt.evaluation import decide, decision_scores, measure, parts_of, standard_error
from headhunt.predictor import Predictor
from headhunt.run.clock import steady_time
from headhunt.run.directory import write_arrays
from headhunt.run.events import STOPPED
from headhunt.run.model_info import versions
from headhunt.run.state import Outcome
from headhunt.spec import Spec
from headhunt.storage import atomic_directory, atomic_file, disk_failed, remove
from headhunt.study.requests import (
    EvaluateTrial,
    FitAllRows,
    JoinModels,
    MeasureCost,
    MeasureThroughput,
    PredictTestRows,
    PretrainEncoder,
    Request,
)
from headhunt.training.activations import StoppedError
from headhunt.training.attach import attach
from headhunt.training.device import use_threads
from headhunt.training.loop import Training
from headhunt.training.solve import Solving, SolvingTasks

CONSTANT_LOSS = 0.95  # a model above this fraction of the loss of predicting class frequencies is untrained
LEAST_FINISHED = 0.6  # progress after which an elastic training run that is cut off may be used
REPORTS = 9  # losses recorded per training run

Stop = Callable[[], bool]


class TrialRunner(WorkerData):
    """Runs requests about candidates.

    Args:
        settings: See `RunnerSettings`.
    """

    def __init__(self, settings: RunnerSettings) -> None:
        super().__init__(settings)
        self._cost_check = CostCheck(settings.max_latency, settings.max_size)
        self._jobs: dict[type[Request], Callable[[Any, Stop], Outcome]] = {
            EvaluateTrial: self._evaluate,
            FitAllRows: self._fit_all_rows,
            JoinModels: self._join_models,
            PredictTestRows: self._predict_test_rows,
            MeasureCost: self._measure_cost,
            MeasureThroughput: partial(measure_throughput, self),
            PretrainEncoder: partial(pretrain_encoder, self),
        }
        if settings.memory:
            limit_memory(settings.memory)

    def run(self, request: Request, stop: Stop = lambda: False) -> Outcome:
        """Run a request.

        Running out of memory, collapsing, exceeding a limit and stopping are outcomes. Any other error is raised; the
        executor records it as `error`.

        Args:
            request: The job.
            stop: Asked after every step; True ends the work as the deadline does.
        """
        began = time.perf_counter()
        deadline = request.deadline or math.inf

        def should_stop() -> bool:
            return steady_time() >= deadline or stop()

        try:
            with use_threads(request.threads):
                outcome = self._jobs[type(request)](request, should_stop)
        except StoppedError:
            outcome = Outcome(STOPPED)
        except _CollapsedError as error:
            outcome = Outcome("collapsed", extra={"message": str(error)})
        except OverLimitError as error:
            outcome = Outcome("limit", extra={"message": str(error)})
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            outcome = Outcome("memory", extra={"message": str(error).splitlines()[0]})
        return replace(outcome, seconds=time.perf_counter() - began)

    def _evaluate(self, request: EvaluateTrial, stop: Stop) -> Outcome:
        """Train a candidate for a fraction of its budget and score its predictions of rows it has not seen."""
        spec = request.spec
        cost = self._check_cost(spec, always=request.fraction == 1)
        training_runs = request.fraction * len(self.folds) if request.rows is None else 1.0
        folds = [
            self._train_fold(request, spec, number, min(1.0, training_runs - number), stop)
            for number in range(math.ceil(training_runs - 1e-9))
        ]
        losses = [loss for fold in folds for loss in fold.losses]
        evaluated = np.concatenate([self.folds[number][1] for number in range(len(folds))])
        predictions = np.concatenate([fold.outputs for fold in folds])
        truth, metric = self.targets[evaluated], self.settings.metric
        decisions = decision_scores(self.task.problem_type, metric, predictions, truth)
        if training_runs >= 1 and not spec.head.plain:  # the plain head's score counts, however low it is
            self._refuse_collapse(decisions, truth, losses)
        score = measure(self.task.problem_type, metric, decisions, truth)
        if not math.isfinite(score):
            raise _CollapsedError(f"its {metric} is not a number")
        if request.predictions is not None:
            positions = self.rows.positions[evaluated]
            write_arrays(request.predictions, rows=positions, outputs=predictions.astype(np.float32))
        extra: dict[str, Any] = {"loss": losses[-1] if losses else None, "losses": [round(loss, 4) for loss in losses]}
        extra |= {"first_layer": folds[-1].first_layer, "rows": len(evaluated), **cost}
        extra["training_seconds"] = round(sum(fold.seconds for fold in folds), 3)
        extra["std_error"] = standard_error(self.task.problem_type, metric, decisions, truth)
        extra |= {"training": folds[-1].facts} if folds[-1].facts else {}
        return Outcome("ok", score=score, examples=sum(fold.examples for fold in folds), extra=extra)

    def _train_fold(self, request: EvaluateTrial, spec: Spec, number: int, until: float, stop: Stop) -> _FoldResult:
        """Train on one fold up to a fraction of its steps and predict the rows left out of it."""
        train, evaluated = self.folds[number]
        train = self.rows.sample(train, request.rows)
        if request.left_out is not None:
            train = train[self.targets["task"][train] != request.left_out]
        place = request.checkpoint / fold_name(number) if request.checkpoint else None
        earlier = request.resume_from / fold_name(number) if request.resume_from else None
        if earlier is not None and until == 1 and (stored := read_outputs(earlier, len(evaluated))) is not None:
            if place is not None and place != earlier:
                link_files(earlier, place)
            return _FoldResult(stored, 0, 0.0, [], None, {})
        ready = self._open_checkpoint(request, train, earlier)
        training = ready.training
        before, seconds = training.examples, training.seconds
        with FromCachedActivations(self, ready, stop) as cached:
            losses = self._train(training, request, stop, until)
            if not self._is_finished(training, request, until):
                if place is not None:
                    training.save(place)
                raise StoppedError
            outputs = self._predict(ready, evaluated, stop)
        if place is not None:
            training.save(place)
            if until == 1:
                with atomic_file(place / OUTPUTS) as file:
                    np.save(file, outputs)
        facts = _training_facts(training, len(train))
        fold = _FoldResult(outputs, training.examples - before, training.seconds - seconds, losses, cached.layer, facts)
        if request.out is not None:
            self._save(ready, request, request.out, len(train), (outputs, self.targets[evaluated]))
        return fold

    def _open_checkpoint(self, request: Request, rows: np.ndarray, place: Path | None) -> Assembly:
        """Return a training as a checkpoint has it, or from the start if that is missing, damaged or outdated."""
        ready = self.open(request.spec, rows, request)
        if place is not None and place.exists():
            try:
                ready.training.restore(place)
            except Exception as error:
                if disk_failed(error):
                    raise
                remove(place)  # the seed gives the same state again
                ready = self.open(request.spec, rows, request)
        return ready

    def _refuse_collapse(self, decisions: np.ndarray, targets: np.ndarray, losses: list[float]) -> None:
        """Refuse a candidate that predicts the same for every text and has not learned."""
        if self.task.tasks:
            parts = parts_of(self.settings.metric, decisions, targets)
            if all(_predicts_the_same(part.problem_type, part.outputs, part.targets) for part in parts):
                raise _CollapsedError("it predicts the same for every text, in every task")
            return
        same = _predicts_the_same(self.task.problem_type, decisions, targets)
        if same and (not losses or losses[-1] > CONSTANT_LOSS * baseline_loss(self.task.problem_type, targets)):
            raise _CollapsedError("it predicts the same for every text")

    def _check_cost(self, spec: Spec, always: bool) -> dict[str, float]:
        """Refuse a candidate that is too slow or too large; return its cost if it was measured.

        An untrained model costs the same as a trained one.
        """
        if not always and not self._cost_check.limited:
            return {}
        copied = (spec.recipe.task_layers, spec.recipe.freeze) if self.task.tasks else ()
        key = (*architecture_key(spec), *copied)
        return self._cost_check(key, lambda: self._untrained(spec), *self.sample_texts())

    def _untrained(self, spec: Spec, seed: int = 0) -> Predictor:
        return self.open(spec, np.arange(2), Request(trial=0, spec=spec, seed=seed)).predictor

    def _measure_cost(self, request: MeasureCost, stop: Stop) -> Outcome:
        cost = measure_cost(self._load(request.model), *self.sample_texts(), repeats=30)
        return Outcome("ok", extra={"cost": asdict(cost)})

    def _fit_all_rows(self, request: FitAllRows, stop: Stop) -> Outcome:
        """Train on all rows, or all but the held-out ones, and save the model."""
        self._check_cost(request.spec, always=False)
        held_out = request.predictions
        rows = self.rows.sample(np.arange(len(self.targets)) if held_out is None else self.folds[0][0], request.rows)
        ready = self.open(request.spec, rows, request)
        training = ready.training
        with FromCachedActivations(self, ready, stop):
            self._train(training, request, stop)
        if not self._is_finished(training, request):
            raise StoppedError
        if held_out is None:
            validation = self.validation_of(request.trial)
        else:
            evaluated = self.folds[0][1]
            outputs = self._predict(ready, evaluated, stop)
            write_arrays(held_out, rows=self.rows.positions[evaluated], outputs=outputs.astype(np.float32))
            validation = outputs, self.targets[evaluated]
        self._save(ready, request, request.out, len(rows), validation)
        return Outcome("ok", examples=training.examples, extra=_training_facts(training, len(rows)))

    def _train(
        self, training: Training | Solving | SolvingTasks, request: Request, stop: Stop, until: float = 1.0
    ) -> list[float]:
        """Train to a fraction of the steps, or until the time is over; return the losses."""
        elastic: dict[str, float] = {}
        if request.elastic and request.deadline is not None and isinstance(training, Training):
            elastic = {"deadline": request.deadline - request.finishing}
        losses = []
        for report in training.reports(REPORTS, until=until, stop=stop, **elastic):
            if not math.isfinite(report.loss):
                raise _CollapsedError("its loss is not a number")
            losses.append(report.loss)
        return losses

    @staticmethod
    def _is_finished(training: Training | Solving | SolvingTasks, request: Request, until: float = 1.0) -> bool:
        """Return whether a training run has come so far; an elastic one may lack some steps."""
        least = LEAST_FINISHED * training.steps if request.elastic else training.steps_until(until)
        return 0 < training.step >= least

    def _predict(self, ready: Assembly, rows: np.ndarray, stop: Stop) -> np.ndarray:
        """Return the outputs of a trained model for working rows that it was not trained on."""
        training, tasks = ready.training, ready.tokens.tasks_of(rows)
        training.model.eval()
        if isinstance(training, Solving | SolvingTasks):
            raw = ready.predictor.activate(torch.from_numpy(training.predict(rows, stop)), tasks).numpy()
        else:
            raw = ready.predictor.tokens_to_outputs(ready.tokens.take(rows))
        return training.objective.rescale(raw, tasks)

    def _join_models(self, request: JoinModels, stop: Stop) -> Outcome:
        ensemble = join(map(self._load, request.members), dict(request.facts))
        ensemble.decide_by(request.decisions)
        if self._cost_check.limited:
            self._cost_check(request.out, lambda: ensemble, *self.sample_texts())
        with atomic_directory(request.out) as partial:
            ensemble.save(partial)
        return Outcome("ok")

    def _predict_test_rows(self, request: PredictTestRows, stop: Stop) -> Outcome:
        outputs = self._load(request.model).outputs(*self.test_texts())
        write_arrays(request.predictions, outputs=outputs.astype(np.float32)[None])
        return Outcome("ok")

    def _load(self, folder: Path) -> Predictor:
        settings = self.settings
        return Predictor.load(
            folder, device=self.device, precision=settings.precision, trust_remote_code=settings.trust_remote_code
        )

    def _save(
        self, ready: Assembly, request: Request, out: Path, rows: int, validation: tuple[np.ndarray, np.ndarray] | None
    ) -> None:
        ready.predictor.thresholds = self.thresholds_of(ready, validation)
        ready.training.finish()
        trained_on = "all training rows" if rows >= len(self.splits[0]) else f"{rows:,} training rows"
        ready.predictor.facts |= {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "task": {"name": self.task.name, "trained_on": trained_on},
            "trial": request.trial,
            "seed": request.seed,
            "examples": ready.training.examples,
            "versions": versions(),
        }
        with atomic_directory(out) as partial:
            ready.predictor.save(partial, card=False)


def _training_facts(training: Training | Solving | SolvingTasks, rows: int) -> dict[str, Any]:
    """Return what a record says about a training run: its rows, and every change of the number of its steps."""
    cuts = training.pace.cuts if isinstance(training, Training) else []
    return {"rows": rows, "steps": training.step, **({"cuts": [list(cut) for cut in cuts]} if cuts else {})}


class FromCachedActivations:
    """A context in which a training starts from cached activations, as high as its recipe allows."""

    def __init__(self, runner: TrialRunner, ready: Assembly, stop: Stop = lambda: False) -> None:
        spec = spec_of(ready.predictor)  # with the length that the encoder can read
        caches = runner.activation_caches(spec, ready.tokens)
        for cache in caches:
            cache.stop = stop
        self._attached = attach(ready.training.model, caches, spec.recipe) if caches else None
        self.layer = self._attached.layer if self._attached else None

    def __enter__(self) -> FromCachedActivations:
        return self

    def __exit__(self, *reason: object) -> None:
        if self._attached is not None:
            self._attached.remove()


def _predicts_the_same(problem_type: str, outputs: np.ndarray, targets: np.ndarray) -> bool:
    """Return True if all predictions are equal although the targets are not."""
    predictions = decide(problem_type, outputs)
    if problem_type == "regression":
        return float(np.std(predictions)) < 1e-6 * max(float(np.std(targets)), 1e-12)
    return bool((predictions == predictions[0]).all()) and not bool((targets == targets[0]).all())


@dataclass(frozen=True)
class _FoldResult:
    outputs: np.ndarray
    examples: int
    seconds: float
    """Time of the training steps alone."""
    losses: list[float]
    first_layer: int | None
    """The first layer that was computed; those below came from the cache."""
    facts: dict[str, Any]
    """Rows and steps of the training run."""


class _CollapsedError(Exception):
    """The candidate has learned nothing."""
