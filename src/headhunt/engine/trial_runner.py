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
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headhunt.engine.assembly import Assembly, architecture_key
from headhunt.engine.averaging import average_training_runs
from headhunt.engine.ensemble import save_ensemble
from headhunt.engine.folds import OUTPUTS, baseline_loss, fold_name, link_files, read_outputs
from headhunt.engine.profiling import CostCheck, OverLimitError, measure_cost
from headhunt.engine.students import train_student
from headhunt.engine.worker_data import WorkerData, limit_memory
from headhunt.engine.worker_jobs import evaluate_tfidf, measure_throughput, pretrain_encoder
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
    AverageModels,
    EvaluateTfidf,
    EvaluateTrial,
    FitAllRows,
    JoinModels,
    MeasureCost,
    MeasureThroughput,
    PredictTestRows,
    PredictTestRowsByFold,
    PretrainEncoder,
    RepeatPredictions,
    Request,
    SaveAllFolds,
    SaveFirstFold,
    TrainStudent,
)
from headhunt.training.activations import StoppedError
from headhunt.training.attach import attach
from headhunt.training.device import use_threads
from headhunt.training.solve import Solving, SolvingTasks

CONSTANT_LOSS = 0.95  # a model above this fraction of the loss of predicting class frequencies is untrained
LEAST_FINISHED = 0.6  # fraction of its steps after which an unfinished training run may be saved
REPORTS = 9  # losses recorded per training run

Stop = Callable[[], bool]
_OfCheckpoint = SaveFirstFold | SaveAllFolds | PredictTestRowsByFold | TrainStudent


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
            RepeatPredictions: self._repeat_predictions,
            FitAllRows: self._fit_all_rows,
            AverageModels: self._average_models,
            SaveFirstFold: self._save_first_fold,
            SaveAllFolds: self._save_all_folds,
            PredictTestRows: self._predict_test_rows,
            PredictTestRowsByFold: self._predict_test_rows_by_fold,
            MeasureCost: self._measure_cost,
            JoinModels: self._join_models,
            TrainStudent: self._train_student,
            MeasureThroughput: partial(measure_throughput, self),
            EvaluateTfidf: partial(evaluate_tfidf, self),
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
        except (_StoppedError, StoppedError):
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
        outputs: list[np.ndarray] = []
        rows: list[np.ndarray] = []
        examples, seconds, losses, first_layer = 0, 0.0, [], None
        for number in range(math.ceil(training_runs - 1e-9)):
            fold = self._train_fold(request, spec, number, min(1.0, training_runs - number), stop)
            outputs.append(fold.outputs)
            rows.append(self.folds[number][1])
            examples += fold.examples
            seconds += fold.seconds
            losses += fold.losses
            first_layer = fold.first_layer
        evaluated, predictions = np.concatenate(rows), np.concatenate(outputs)
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
        extra = {"loss": losses[-1] if losses else None, "losses": [round(loss, 4) for loss in losses]}
        extra |= {"first_layer": first_layer, "rows": len(evaluated), **cost}
        extra["training_seconds"] = round(seconds, 3)
        extra["std_error"] = standard_error(self.task.problem_type, metric, decisions, truth)
        return Outcome("ok", score=score, examples=examples, extra=extra)

    def _train_fold(self, request: EvaluateTrial, spec: Spec, number: int, until: float, stop: Stop) -> _FoldResult:
        """Train on one fold up to a fraction of its steps and predict the rows left out of it."""
        train, evaluated = self._train_rows(request, number), self.folds[number][1]
        if request.left_out is not None:
            train = train[self.targets["task"][train] != request.left_out]
        place = request.checkpoint / fold_name(number) if request.checkpoint else None
        earlier = request.resume_from / fold_name(number) if request.resume_from else None
        if earlier is not None and until == 1 and (stored := read_outputs(earlier, len(evaluated))) is not None:
            if place is not None and place != earlier:
                link_files(earlier, place)
            return _FoldResult(stored, 0, 0.0, [], None)
        ready = self._open_checkpoint(request, train, earlier)
        training = ready.training
        before, seconds, losses = training.examples, training.seconds, []
        with FromCachedActivations(self, ready, spec, stop) as cached:
            for report in training.reports(REPORTS, until=until, stop=stop):
                if not math.isfinite(report.loss):
                    raise _CollapsedError("its loss is not a number")
                losses.append(report.loss)
            if training.step < training.steps_until(until):
                if place is not None:
                    training.save(place)
                raise _StoppedError
            training.model.eval()
            tasks = ready.tokens.tasks_of(evaluated)
            if isinstance(training, Solving | SolvingTasks):
                logits = torch.from_numpy(training.predict(evaluated, stop))
                raw = ready.predictor.activate(logits, tasks).numpy()
            else:
                raw = ready.predictor.tokens_to_outputs(ready.tokens.take(evaluated))
        outputs = training.objective.rescale(raw, tasks)
        if place is not None:
            training.save(place)
            if until == 1:
                with atomic_file(place / OUTPUTS) as file:
                    np.save(file, outputs)
        seconds = training.seconds - seconds
        return _FoldResult(outputs, training.examples - before, seconds, losses, cached.layer)

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

    def _trained_fold(self, request: _OfCheckpoint, fold: int, stop: Stop) -> Assembly:
        """Return the training of a fold at its end: from its checkpoint, or trained again if that cannot be read."""
        place = request.checkpoint / fold_name(fold) if request.checkpoint else None
        ready = self._open_checkpoint(request, self._train_rows(request, fold), place)
        training = ready.training
        if training.step < training.steps:
            with FromCachedActivations(self, ready, request.spec, stop):
                for _ in training.reports(REPORTS, stop=stop):
                    pass
            if training.step < training.steps:
                raise _StoppedError
        return ready

    def _train_rows(self, request: Request, fold: int) -> np.ndarray:
        """Return the training rows of a fold, or the sample of them that a request asks for."""
        return self.rows.sample(self.folds[fold][0], request.rows)

    def _repeat_predictions(self, request: RepeatPredictions, stop: Stop) -> Outcome:
        fields = {field.name: getattr(request, field.name) for field in dataclass_fields(Request)}
        place, rung = request.checkpoint, request.rung
        evaluation = EvaluateTrial(
            **fields, rung=rung, fraction=request.fraction, resume_from=place, predictions=request.predictions
        )
        return self._evaluate(evaluation, stop)

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
        cost = measure_cost(self._untrained(request.spec, request.seed), *self.sample_texts(), repeats=30)
        return Outcome("ok", extra={"cost": asdict(cost)})

    def _fit_all_rows(self, request: FitAllRows, stop: Stop) -> Outcome:
        """Train on all rows and save the model."""
        spec = request.spec
        if request.keep_unfinished:  # the first model; trials were checked when they were evaluated
            self._check_cost(spec, always=False)
        validated = request.validation_predictions
        rows = np.arange(len(self.targets)) if validated is None else self.folds[0][0]
        rows = self.rows.sample(rows, request.rows)
        ready = self.open(spec, rows, request)
        training = ready.training
        # A model that sees every row once at most would wait for all of them to be cached, and gain nothing.
        once = request.keep_unfinished and spec.recipe.epochs <= 1
        with nullcontext() if once else FromCachedActivations(self, ready, spec, stop):
            for report in training.reports(REPORTS, stop=stop):
                if not math.isfinite(report.loss):
                    raise _CollapsedError("its loss is not a number")
        if training.step < training.steps and not (
            request.keep_unfinished and training.step >= LEAST_FINISHED * training.steps
        ):
            raise _StoppedError
        thresholds = self.thresholds_of(request.trial, ready)
        if validated is not None:
            training.model.eval()
            evaluated = self.folds[0][1]
            outputs = ready.predictor.tokens_to_outputs(ready.tokens.take(evaluated))
            outputs = training.objective.rescale(outputs, ready.tokens.tasks_of(evaluated))
            write_arrays(validated, rows=self.rows.positions[evaluated], outputs=outputs.astype(np.float32))
            # This very model has not seen these rows; the trial's models have learned from fewer.
            thresholds = self.fit_thresholds(outputs, self.targets[evaluated])
        trained_on = "all training rows" if request.rows is None else f"{len(rows):,} training rows"
        self._save(ready, request, request.out, trained_on, thresholds)
        return Outcome("ok", examples=training.examples)

    def _average_models(self, request: AverageModels, stop: Stop) -> Outcome:
        texts, texts_b, tasks = self.texts()
        checked = request.checked_rows
        accepted = average_training_runs(request.models, request.out, texts, texts_b, self._load, checked, tasks)
        return Outcome("ok", extra={"accepted": accepted})

    def _save_first_fold(self, request: SaveFirstFold, stop: Stop) -> Outcome:
        ready = self._trained_fold(request, 0, stop)
        self._save_fold(ready, request, request.out)
        return Outcome("ok")

    def _save_all_folds(self, request: SaveAllFolds, stop: Stop) -> Outcome:
        for number in range(len(self.folds)):
            if stop():
                raise _StoppedError
            ready = self._trained_fold(request, number, stop)
            place = request.out / f"{request.trial:06d}-{number}"
            self._save_fold(ready, request, place)
        return Outcome("ok")

    def _train_student(self, request: TrainStudent, stop: Stop) -> Outcome:
        if request.fold is None or request.predictions is None:
            assert request.model is not None and request.out is not None
            teacher, rows = self._load(request.model), self.rows.sample(np.arange(len(self.targets)), request.rows)
            ready = train_student(self, request, rows, teacher, stop)
            thresholds = self.thresholds_of(request.trial)
            self._save(ready, request, request.out, "all training rows and unlabelled texts", thresholds)
            return Outcome("ok", examples=ready.training.examples)
        fold = self._trained_fold(request, request.fold, stop)
        fold.training.finish()
        rows, evaluated = self._train_rows(request, request.fold), self.folds[request.fold][1]
        ready = train_student(self, request, rows, fold.predictor, stop)
        ready.training.finish()
        outputs = ready.predictor.tokens_to_outputs(ready.tokens.take(evaluated))
        write_arrays(request.predictions, rows=self.rows.positions[evaluated], outputs=outputs.astype(np.float32))
        return Outcome("ok", examples=ready.training.examples)

    def _join_models(self, request: JoinModels, stop: Stop) -> Outcome:
        def check(ensemble: Predictor) -> None:
            if self._cost_check.limited:
                self._cost_check(request.folder, lambda: ensemble, *self.sample_texts())

        save_ensemble(request.folder, request.facts, request.decisions, load=self._load, check=check)
        return Outcome("ok")

    def _predict_test_rows(self, request: PredictTestRows, stop: Stop) -> Outcome:
        self._write_test_predictions(request.predictions, [self._load(request.model).outputs(*self.test_texts())])
        return Outcome("ok")

    def _load(self, folder: Path) -> Predictor:
        settings = self.settings
        return Predictor.load(
            folder, device=self.device, precision=settings.precision, trust_remote_code=settings.trust_remote_code
        )

    def _predict_test_rows_by_fold(self, request: PredictTestRowsByFold, stop: Stop) -> Outcome:
        outputs = []
        for number in range(len(self.folds)):
            ready = self._trained_fold(request, number, stop)
            ready.training.finish()
            outputs.append(ready.predictor.outputs(*self.test_texts()))
            if stop():
                raise _StoppedError
        self._write_test_predictions(request.predictions, outputs)
        return Outcome("ok")

    def _write_test_predictions(self, path: Path, outputs: list[np.ndarray]) -> None:
        write_arrays(path, outputs=np.stack(outputs).astype(np.float32))

    def _save_fold(self, ready: Assembly, request: Request, out: Path) -> None:
        rows = getattr(request, "rows", None)  # of a sample
        sample = None if rows is None else min(rows, len(self.folds[0][0]))
        trained_on = "one fold of the training rows" if sample is None else f"{sample:,} training rows"
        self._save(ready, request, out, trained_on, self.thresholds_of(request.trial, ready))

    def _save(
        self, ready: Assembly, request: Request, out: Path, trained_on: str, thresholds: Sequence[float] | None
    ) -> None:
        ready.training.finish()
        ready.predictor.thresholds = thresholds
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


class FromCachedActivations:
    """A context in which a training starts from cached activations, as high as its recipe allows."""

    def __init__(self, runner: TrialRunner, ready: Assembly, spec: Spec, stop: Stop = lambda: False) -> None:
        spec = ready.predictor.spec or spec  # with the length that the encoder can read
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


class _StoppedError(Exception):
    """The deadline has passed, or a stop was requested."""


class _CollapsedError(Exception):
    """The candidate has learned nothing."""
