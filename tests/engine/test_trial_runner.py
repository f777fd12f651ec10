"""TrialRunner: rungs by fold, resumed anywhere, and every failure of a candidate is an outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import sentences

from headhunt.data import Task
from headhunt.engine.folds import make_folds
from headhunt.engine.trial_runner import LEAST_FINISHED, TrialRunner
from headhunt.engine.workers import RunnerSettings
from headhunt.evaluation import fit_thresholds
from headhunt.modeling.architecture import Head, Mlp
from headhunt.predictor import Predictor
from headhunt.run.clock import steady_time
from headhunt.run.events import STOPPED
from headhunt.run.task import FOLDS, save_task
from headhunt.spec import Recipe, Spec, solved
from headhunt.study.executors import evaluate_safely
from headhunt.study.requests import (
    EvaluateTrial,
    FitAllRows,
    JoinModels,
    MeasureCost,
    MeasureThroughput,
    PredictTestRows,
)
from headhunt.training.features import Features
from headhunt.training.tokens import Tokens

pytestmark = pytest.mark.usefixtures("own_cache")


def make_runner(folder: Path, **settings) -> TrialRunner:
    return TrialRunner(
        RunnerSettings(str(folder), **{"metric": "accuracy", "device": "cpu", "precision": "fp32", **settings})
    )


@pytest.fixture
def runner(tmp_path) -> TrialRunner:
    save_task(Task.load(sentences(60)), tmp_path / "task")
    return make_runner(tmp_path)


def candidate(encoder: str, **recipe) -> Spec:
    recipe = {"epochs": 6, "learning_rate": 2e-3, "batch_size": 8, **recipe}
    return Spec(encoder=encoder, head=Head(pooling="mean"), recipe=Recipe(**recipe))


def request(spec: Spec, folder: Path, fraction: float = 1.0, rung: int = 2, **fields) -> EvaluateTrial:
    defaults = {"trial": 1, "seed": 5, "checkpoint": folder / f"c-{rung}", "predictions": folder / f"p-{rung}.npz"}
    return EvaluateTrial(spec=spec, rung=rung, fraction=fraction, **{**defaults, **fields})


def outputs(folder: Path, rung: int) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"p-{rung}.npz", allow_pickle=False) as arrays:
        return arrays["rows"], arrays["outputs"]


def test_small_data_is_evaluated_out_of_fold(runner, encoders, tmp_path):
    rows = len(runner.task.splits["train"])
    evaluated = np.concatenate([out for _, out in runner.folds])
    assert len(runner.folds) == FOLDS and sorted(evaluated) == list(range(rows))
    assert all(not set(train) & set(out) for train, out in runner.folds)
    outcome = runner.run(request(candidate(encoders()), tmp_path))
    assert outcome.outcome == "ok" and outcome.extra["rows"] == rows
    positions, predictions = outputs(tmp_path, 2)
    assert sorted(positions) == list(range(rows))
    assert outcome.score == pytest.approx((predictions.argmax(1) == runner.targets[positions]).mean())


def test_request_that_runs_alone_has_more_threads(runner, encoders, tmp_path, monkeypatch):
    threads, train = [], TrialRunner._train_fold
    monkeypatch.setattr(
        TrialRunner, "_train_fold", lambda *given: threads.append(torch.get_num_threads()) or train(*given)
    )
    before = torch.get_num_threads()
    for number in (before + 1, None):
        runner.run(request(candidate(encoders()), tmp_path, threads=number))
        assert torch.get_num_threads() == before
    assert set(threads[:FOLDS]) == {before + 1} and set(threads[FOLDS:]) == {before}


@pytest.mark.parametrize("recipe", [{}, {"freeze": 1}])
def test_initial_features_are_computed_once_for_all_folds_and_candidates(encoders, tmp_path, monkeypatch, recipe):
    save_task(Task.load(sentences(90)), tmp_path / "task")
    passes: list[int] = []
    compute = Features._compute
    monkeypatch.setattr(
        Features, "_compute", lambda self, rows, stop: passes.append(len(rows)) or compute(self, rows, stop)
    )
    spec = candidate(encoders(), epochs=1, head_init="solved", standardize=True, **recipe)
    other = replace(spec, recipe=replace(spec.recipe, learning_rate=1e-4), head=replace(spec.head, dropout=0.3))
    runner = make_runner(tmp_path)
    for number, asked in enumerate((spec, spec, other)):
        assert runner.run(request(asked, tmp_path / str(number), seed=number % 2)).outcome == "ok"
    assert passes == [len(runner.targets)]
    # Whichever candidate came first, the result is the same.
    assert make_runner(tmp_path).run(request(other, tmp_path / "alone", seed=0)).outcome == "ok"
    np.testing.assert_array_equal(outputs(tmp_path / "2", 2)[1], outputs(tmp_path / "alone", 2)[1])
    passes.clear()
    mixed = replace(spec, head=Head(pooling="attention"))
    assert runner.run(request(mixed, tmp_path / "mixed")).outcome == "ok"
    assert len(passes) == FOLDS and max(passes) < len(runner.targets)  # random layers: every fold has its own


def test_third_of_the_budget_is_one_complete_training_run(runner, encoders, tmp_path):
    spec = candidate(encoders())
    third = runner.run(request(spec, tmp_path, 1 / 3, 1))
    ninth = runner.run(request(spec, tmp_path, 1 / 9, 0))
    assert third.extra["rows"] == ninth.extra["rows"] == len(runner.folds[0][1])
    assert third.examples == 6 * len(runner.folds[0][0])
    assert ninth.examples == pytest.approx(third.examples / 3, rel=0.2)


@pytest.mark.parametrize("recipe", [{"freeze": 1}, {"freeze": 1, "unfreeze": "gradual"}])
def test_promotion_rung_by_rung_equals_training_in_one_go(runner, encoders, tmp_path, recipe):
    spec = candidate(encoders(), **recipe)
    straight = runner.run(request(spec, tmp_path / "straight"))
    promoted = [
        runner.run(request(spec, tmp_path, 1 / 9, 0)),
        runner.run(request(spec, tmp_path, 1 / 3, 1, resume_from=tmp_path / "c-0")),
        runner.run(request(spec, tmp_path, 1.0, 2, resume_from=tmp_path / "c-1")),
    ]
    assert sum(outcome.examples for outcome in promoted) == straight.examples
    assert np.array_equal(outputs(tmp_path / "straight", 2)[1], outputs(tmp_path, 2)[1])


def test_join_models_saves_the_ensemble_within_the_limits_only(runner, encoders, tmp_path):
    spec = candidate(encoders(), epochs=1)
    fitting = {"trial": 1, "spec": spec}
    models = tuple(tmp_path / f"model-{seed}" for seed in (5, 6))
    for seed, out in enumerate(models, 5):
        assert runner.run(FitAllRows(**fitting, seed=seed, out=out)).outcome == "ok"
    size = sum(path.stat().st_size for folder in models for path in folder.glob("model.safetensors")) / 1e6
    join = JoinModels(**fitting, seed=5, members=models, out=tmp_path / "ensemble", facts={"trials": [1]})
    refused = make_runner(tmp_path, max_size=size / 2).run(join)
    assert refused.outcome == "limit" and "MB of weights" in refused.extra["message"]
    slow = make_runner(tmp_path, max_latency=1e-6).run(join)
    assert slow.outcome == "limit" and "ms for a text" in slow.extra["message"]
    assert not join.out.exists()
    assert make_runner(tmp_path, max_size=size * 2, max_latency=1e6).run(join).outcome == "ok"
    joined, texts = Predictor.load(join.out, precision="fp32"), ["a good film", "a bad plot"]
    assert len(joined.facts["members"]) == 2
    mean = np.mean([Predictor.load(folder, precision="fp32").outputs(texts) for folder in models], 0)
    assert np.abs(joined.outputs(texts) - mean).max() < 1e-5


def test_given_validation_rows_are_evaluated_on(tmp_path, encoders):
    texts, labels = sentences(60)
    rows = {"text": texts, "label": labels}
    task = Task.load(rows, validation={"text": texts[:20], "label": labels[:20]})
    save_task(task, tmp_path / "task")
    runner = make_runner(tmp_path)
    assert len(runner.folds) == 1 and len(runner.folds[0][1]) == 20
    assert runner.run(request(candidate(encoders()), tmp_path)).extra["rows"] == 20


def test_larger_data_is_evaluated_on_a_tenth_of_its_rows():
    rng = np.random.default_rng(0)
    texts = [" ".join("".join(rng.choice(list("abcdefgh"), 5)) for _ in range(6)) for _ in range(3000)]
    task = Task.load((texts, [i % 2 for i in range(3000)]))
    folds = make_folds(task)
    assert len(folds) == 1 and len(folds[0][1]) == pytest.approx(len(task.splits["train"]) / 10, rel=0.1)


def test_stopped_trial_continues_from_its_checkpoint(runner, encoders, tmp_path):
    spec = candidate(encoders(), epochs=20)
    complete = runner.run(request(spec, tmp_path / "complete"))
    steps = iter(range(1000))
    stopped = runner.run(request(spec, tmp_path), stop=lambda: next(steps) >= 30)
    assert stopped.outcome == STOPPED and stopped.score is None
    rest = runner.run(request(spec, tmp_path, resume_from=tmp_path / "c-2"))
    assert rest.score == complete.score and rest.examples < complete.examples
    assert np.array_equal(outputs(tmp_path / "complete", 2)[1], outputs(tmp_path, 2)[1])


def test_deadline_in_the_past_stops_after_one_step(runner, encoders, tmp_path):
    outcome = runner.run(request(candidate(encoders(), epochs=1000), tmp_path, deadline=steady_time() - 1))
    assert outcome.outcome == STOPPED
    fold = tmp_path / "c-2" / "fold-0"
    assert (fold / "training.safetensors").exists() and not (fold / "outputs.npy").exists()


def test_elastic_training_that_is_cut_off_is_kept_if_most_of_it_is_done(runner, encoders, tmp_path):
    spec, out = candidate(encoders(), epochs=10), tmp_path / "last"
    steps = 10 * math.ceil(len(runner.targets) / 8)
    fit = FitAllRows(trial=1, spec=spec, seed=5, out=out, elastic=True)

    def stop_after(fraction: float) -> Callable[[], bool]:
        counter = iter(range(1, 1000))
        return lambda: next(counter) >= fraction * steps

    assert runner.run(replace(fit, elastic=False), stop_after(0.9)).outcome == STOPPED and not out.exists()
    assert runner.run(fit, stop_after(LEAST_FINISHED - 0.1)).outcome == STOPPED and not out.exists()
    outcome = runner.run(fit, stop_after(LEAST_FINISHED + 0.1))
    assert outcome.outcome == "ok" and outcome.examples < 0.8 * 10 * len(runner.targets)
    assert Predictor.load(out).predict(["good"])


def test_elastic_training_ends_with_its_learning_rate_at_zero_before_its_deadline(runner, encoders, tmp_path):
    """Issue: a training run that was slower than expected was thrown away."""
    spec, out = candidate(encoders(), epochs=1000), tmp_path / "last"
    fit = FitAllRows(trial=1, spec=spec, seed=5, out=out, elastic=True, deadline=steady_time() + 4, finishing=1.0)
    outcome = runner.run(fit)
    assert outcome.outcome == "ok" and steady_time() < fit.deadline + 0.5
    (_, total) = outcome.extra["cuts"][-1]
    assert outcome.extra["steps"] == total < 1000 * math.ceil(len(runner.targets) / 8)
    assert Predictor.load(out).predict(["good"])


def test_evaluation_on_held_out_rows_leaves_the_model_that_was_evaluated(tmp_path, encoders):
    texts, labels = sentences(60)
    rows = {"text": texts, "label": labels}
    save_task(Task.load(rows, validation={"text": texts[:20], "label": labels[:20]}), tmp_path / "task")
    runner, out = make_runner(tmp_path), tmp_path / "models" / "000001-all"
    outcome = runner.run(request(candidate(encoders()), tmp_path, out=out))
    assert outcome.extra["training"]["rows"] == len(runner.folds[0][0])
    predicted = Predictor.load(out, precision="fp32").outputs(texts[:20])
    assert np.abs(predicted - outputs(tmp_path, 2)[1]).max() < 1e-5


def test_first_model_respects_the_size_limit(runner, encoders, tmp_path):
    """Issue: the first model bypassed max_latency and max_size and could be delivered."""
    limited = make_runner(tmp_path, max_size=0.001)
    spec, out = candidate(encoders(), epochs=1, freeze="all"), tmp_path / "first"
    outcome = limited.run(FitAllRows(trial=1, spec=spec, seed=5, out=out))
    assert outcome.outcome == "limit" and "MB of weights; 0.001 MB are allowed" in outcome.extra["message"]
    assert not out.exists()


def test_damaged_checkpoint_is_ignored(runner, encoders, tmp_path):
    spec = candidate(encoders())
    complete = runner.run(request(spec, tmp_path / "complete"))
    place = tmp_path / "c-0" / "fold-0"
    place.mkdir(parents=True)
    (place / "training.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{broken")
    assert runner.run(request(spec, tmp_path, resume_from=tmp_path / "c-0")).score == complete.score


def test_loss_that_is_not_a_number_is_a_collapse(runner, encoders, tmp_path):
    spec = candidate(encoders(), learning_rate=1.0, head_lr_multiplier=1e4, epochs=30)
    outcome = runner.run(request(spec, tmp_path))
    assert outcome.outcome == "collapsed" and outcome.score is None


def test_same_prediction_for_every_text_is_a_collapse(runner, encoders, tmp_path):
    outcome = runner.run(request(candidate(encoders(), learning_rate=1e-9), tmp_path))
    assert outcome.outcome == "collapsed" and "same for every text" in outcome.extra["message"]


def test_out_of_memory_is_an_outcome_and_micro_batches_help(runner, encoders, tmp_path):
    """A head of 8 layers, each 8,192 wide, needs more memory than this process may take."""
    import resource

    spec = replace(candidate(encoders()), head=Head(pooling="mean", mlp=Mlp(layers=8, width=8192)))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text()
    used = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + (600 << 20), hard))
    try:
        outcome = runner.run(request(spec, tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert outcome.outcome == "memory" and outcome.score is None
    accumulated = runner.run(request(candidate(encoders()), tmp_path / "a", gradient_accumulation_steps=2))
    complete = runner.run(request(candidate(encoders()), tmp_path / "b"))
    assert accumulated.outcome == complete.outcome == "ok"


def test_candidate_that_does_not_fit_the_encoder_is_an_error(runner, encoders, tmp_path):
    outcome = evaluate_safely(runner.run, request(candidate(encoders(), freeze=9), tmp_path))
    assert outcome.outcome == "error" and "2 layers" in outcome.extra["message"]


def test_fit_all_rows_trains_on_all_rows_and_saves_a_model(runner, encoders, tmp_path):
    out = tmp_path / "models" / "7"
    outcome = runner.run(FitAllRows(trial=7, spec=candidate(encoders()), seed=5, out=out))
    assert outcome.outcome == "ok" and outcome.examples == 6 * len(runner.targets)
    assert Predictor.load(out).predict(["a very good movie", "a bad plot"])[0].label == "good"


@pytest.mark.parametrize("saved", ["evaluated", "all"])
def test_solved_head_with_few_validation_rows_has_thresholds_of_its_held_out_training_rows(encoders, tmp_path, saved):
    """Issue: thresholds of 90 labels were fitted on 200 validation rows, which have none of most labels."""
    texts, labels = sentences(80)
    rows = {"text": texts, "label": [f"any|{label}" if i % 3 else label for i, label in enumerate(labels)]}
    parts = {
        "train": {name: values[:60] for name, values in rows.items()},
        "validation": {name: values[60:] for name, values in rows.items()},
    }
    save_task(Task.load(parts, problem_type="multi_label_classification"), tmp_path / "task")
    runner, spec, out = make_runner(tmp_path, metric="macro_f1"), solved(encoders(), words="beside"), tmp_path / "model"
    assert len(runner.folds) == 1
    predictions = runner.directory.predictions(1, 2)
    predictions.parent.mkdir(parents=True)
    fit = FitAllRows(trial=1, spec=spec, seed=5, out=out)
    job = request(spec, tmp_path, predictions=predictions, out=out) if saved == "evaluated" else fit
    assert runner.run(job).outcome == "ok"
    learned = runner.folds[0][0] if saved == "evaluated" else np.arange(len(runner.targets))
    ready = runner.open(spec, learned, job)
    for _ in ready.training.reports():
        pass
    found, logits = ready.training.held_out
    assert sorted(found) == sorted(learned)
    expected = fit_thresholds(1 / (1 + np.exp(-logits.astype(np.float64))), runner.targets[found], "macro_f1")
    np.testing.assert_allclose(Predictor.load(out).thresholds, expected, atol=1e-6)


def test_test_rows_are_predicted_by_a_saved_model(runner, encoders, tmp_path):
    spec, out = candidate(encoders()), tmp_path / "model"
    runner.run(FitAllRows(trial=1, spec=spec, seed=5, out=out))
    predicting = PredictTestRows(trial=1, spec=spec, seed=5, model=out, predictions=tmp_path / "a.npz")
    assert runner.run(predicting).outcome == "ok"
    with np.load(tmp_path / "a.npz") as one:
        assert one["outputs"].shape == (1, len(runner.test_texts()[0]), 2)
    cost = runner.run(MeasureCost(trial=1, spec=spec, seed=5, model=out)).extra["cost"]
    assert cost["latency"]["1"]["p50_ms"] > 0 and cost["parameters"] > 1000 and cost["gflops"] > 0


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
def test_other_problem_types_are_evaluated(problem_type, tmp_path, encoders):
    texts, labels = sentences(48)
    numbers = [float(label == "good") * 10 + 100 for label in labels]
    targets = numbers if problem_type == "regression" else [[label] for label in labels]
    save_task(Task.load((texts, targets), problem_type=problem_type), tmp_path / "task")
    metric = {"regression": "pearson", "multi_label_classification": "micro_f1"}[problem_type]
    outcome = make_runner(tmp_path, metric=metric).run(request(candidate(encoders(), epochs=20), tmp_path))
    assert outcome.outcome == "ok" and outcome.score > 0.3
    if problem_type == "regression":
        assert 90 < outputs(tmp_path, 2)[1].mean() < 120  # in the units of the data


@pytest.mark.parametrize("rows", [1, 33, 128])
def test_throughput_is_measured_on_batches_without_padding(encoders, tmp_path, monkeypatch, rows):
    """One long text in a batch of short ones would make the encoder look several times slower than it trains."""
    texts, labels = sentences(150)
    texts = [f"{text} " * (1 + 6 * (row % 4)) for row, text in enumerate(texts)]
    save_task(Task.load({"train": {"text": texts, "label": labels}}), tmp_path / "task")
    padded, real = [], []
    batch = Tokens.batch

    def count(self, rows, *args):
        inputs = batch(self, rows, *args)
        padded.append(inputs["input_ids"].numel())
        real.append(int(self.lengths[rows].sum()))
        return inputs

    monkeypatch.setattr(Tokens, "batch", count)
    measuring = MeasureThroughput(trial=0, spec=solved(encoders()), seed=0, rows=rows, seconds=60.0)
    outcome = make_runner(tmp_path).run(measuring)
    assert outcome.outcome == "ok" and outcome.extra["rows_per_second"] > 0
    assert sum(padded) < 1.3 * sum(real)
