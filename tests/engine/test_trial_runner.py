"""One candidate, judged: rungs in parts, resumed anywhere, and every way to fail is an outcome."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences

from headhunt.data import Task
from headhunt.engine.trial_runner import TrialRunner, plan, probe
from headhunt.modeling.architecture import Head, Mlp
from headhunt.predictor import Predictor
from headhunt.run.directory import FOLDS
from headhunt.run.events import STOPPED
from headhunt.study.requests import EvaluateTrial
from headhunt.run.task import save_task
from headhunt.spec import Recipe, Spec


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bench(tmp_path) -> TrialRunner:
    texts, labels = sentences(60)
    save_task(Task.load((texts, labels)), tmp_path / "task")
    return TrialRunner(tmp_path, metric="accuracy", device="cpu", precision="fp32")


def candidate(encoder: str, **recipe) -> Spec:
    recipe = {"epochs": 6, "learning_rate": 2e-3, "batch_size": 8, **recipe}
    return Spec(encoder=encoder, head=Head(pooling="mean"), recipe=Recipe(**recipe))


def ask(spec: Spec, folder, fraction: float = 1.0, rung: int = 2, **fields) -> Request:
    known = {"trial": 1, "seed": 5, "checkpoint": str(folder / f"c-{rung}")}
    known["predictions"] = str(folder / f"p-{rung}.npz")
    return Request(spec=spec.to_dict(), rung=rung, fraction=fraction, **{**known, **fields})


def outputs(folder, rung: int) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"p-{rung}.npz", allow_pickle=False) as found:
        return found["rows"], found["outputs"]


def test_small_data_is_judged_out_of_fold(bench, encoders, tmp_path):
    rows = len(bench.task.splits["train"])
    held = np.concatenate([out for _, out in bench.folds])
    assert len(bench.folds) == FOLDS and sorted(held) == list(range(rows))
    assert all(not set(train) & set(out) for train, out in bench.folds)
    outcome = bench.run(ask(candidate(encoders()), tmp_path))
    assert outcome.outcome == "ok" and outcome.extra["held"] == rows
    judged, found = outputs(tmp_path, 2)
    assert sorted(judged) == list(range(rows))
    assert outcome.score == pytest.approx((found.argmax(1) == bench.targets[judged]).mean())


def test_a_third_of_the_budget_is_one_whole_training(bench, encoders, tmp_path):
    spec = candidate(encoders())
    third = bench.run(ask(spec, tmp_path, 1 / 3, 1))
    ninth = bench.run(ask(spec, tmp_path, 1 / 9, 0))
    assert third.extra["held"] == ninth.extra["held"] == len(bench.folds[0][1])
    assert third.examples == 6 * len(bench.folds[0][0])
    assert ninth.examples == pytest.approx(third.examples / 3, rel=0.2)


def test_climbing_the_rungs_gives_what_going_straight_gives(bench, encoders, tmp_path):
    spec = candidate(encoders(), freeze=1)
    straight = bench.run(ask(spec, tmp_path / "straight"))
    climbed = [
        bench.run(ask(spec, tmp_path, 1 / 9, 0)),
        bench.run(ask(spec, tmp_path, 1 / 3, 1, resume=str(tmp_path / "c-0"))),
        bench.run(ask(spec, tmp_path, 1.0, 2, resume=str(tmp_path / "c-1"))),
    ]
    assert sum(outcome.examples for outcome in climbed) == straight.examples
    assert np.array_equal(outputs(tmp_path / "straight", 2)[1], outputs(tmp_path, 2)[1])


def test_given_validation_rows_are_what_is_judged_on(tmp_path, encoders):
    texts, labels = sentences(60)
    rows = {"text": texts, "label": labels}
    task = Task.load(rows, validation={"text": texts[:20], "label": labels[:20]})
    save_task(task, tmp_path / "task")
    bench = TrialRunner(tmp_path, metric="accuracy", device="cpu", precision="fp32")
    assert len(bench.folds) == 1 and len(bench.folds[0][1]) == 20
    assert bench.run(ask(candidate(encoders()), tmp_path)).extra["held"] == 20


def test_larger_data_is_judged_on_rows_held_out():
    rng = np.random.default_rng(0)
    texts = [" ".join("".join(rng.choice(list("abcdefgh"), 5)) for _ in range(6)) for _ in range(3000)]
    task = Task.load((texts, [i % 2 for i in range(3000)]))
    parts = plan(task)
    assert len(parts) == 1 and len(parts[0][1]) == pytest.approx(len(task.splits["train"]) / 5, rel=0.1)


def test_the_probe_trains_the_head_alone(bench, encoders, tmp_path):
    spec = candidate(encoders(), freeze="none")
    assert probe(spec).recipe.freeze == "all" and probe(spec).head == spec.head
    outcome = bench.run(ask(spec, tmp_path, 0.0, 0, checkpoint=""))
    assert outcome.outcome == "ok" and outcome.extra["from_layer"] == 2


def test_the_deadline_stops_it_and_it_goes_on_from_there(bench, encoders, tmp_path):
    spec = candidate(encoders(), epochs=20)
    whole = bench.run(ask(spec, tmp_path / "whole"))
    steps = iter(range(1000))
    cut = bench.run(ask(spec, tmp_path), stop=lambda: next(steps) >= 30)
    assert cut.outcome == STOPPED and cut.score is None
    rest = bench.run(ask(spec, tmp_path, resume=str(tmp_path / "c-2")))
    assert rest.score == whole.score and rest.examples < whole.examples
    assert np.array_equal(outputs(tmp_path / "whole", 2)[1], outputs(tmp_path, 2)[1])


def test_a_deadline_that_has_passed_ends_it_after_one_step(bench, encoders, tmp_path):
    began = time.perf_counter()
    outcome = bench.run(ask(candidate(encoders(), epochs=1000), tmp_path, deadline=time.time() - 1))
    assert outcome.outcome == STOPPED and time.perf_counter() - began < 10


def test_a_first_model_is_kept_however_little_it_was_trained(bench, encoders, tmp_path):
    """On much data the time may end before it does; a candidate in the same place is stopped."""
    spec, out = candidate(encoders(), epochs=1, freeze="all"), tmp_path / "starter"
    asked = ask(spec, tmp_path, job="refit", checkpoint=str(out), deadline=time.time() - 1)
    assert bench.run(asked).outcome == STOPPED and not out.exists()
    assert bench.run(replace(asked, trial=-1)).outcome == "ok" and Predictor.load(out).predict(["good"])


def test_half_a_state_is_no_state(bench, encoders, tmp_path):
    spec = candidate(encoders())
    whole = bench.run(ask(spec, tmp_path / "whole"))
    place = tmp_path / "c-0" / "part-0"
    place.mkdir(parents=True)
    (place / "training.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{broken")
    assert bench.run(ask(spec, tmp_path, resume=str(tmp_path / "c-0"))).score == whole.score


def test_a_loss_that_is_not_a_number_is_a_collapse(bench, encoders, tmp_path):
    outcome = bench.run(ask(candidate(encoders(), learning_rate=1.0, head_lr_multiplier=1e4, epochs=30), tmp_path))
    assert outcome.outcome == "collapsed" and outcome.score is None


def test_one_answer_to_everything_is_a_collapse(bench, encoders, tmp_path):
    outcome = bench.run(ask(candidate(encoders(), learning_rate=1e-9), tmp_path))
    assert outcome.outcome == "collapsed" and "same answer" in outcome.extra["message"]


def test_too_much_memory_is_an_outcome_and_less_at_a_time_helps(bench, encoders, tmp_path):
    """A head of 8 layers, each 8,192 wide, and every batch in memory: more than this process may take."""
    import resource

    spec = replace(candidate(encoders()), head=Head(pooling="mean", mlp=Mlp(layers=8, width=8192)))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text()
    held = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (held + (600 << 20), hard))
    try:
        outcome = bench.run(ask(spec, tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert outcome.outcome == "memory" and outcome.score is None
    shrunk = bench.run(ask(candidate(encoders()), tmp_path / "a", gradient_accumulation_steps=2))
    whole = bench.run(ask(candidate(encoders()), tmp_path / "b"))
    assert shrunk.outcome == whole.outcome == "ok"


def test_a_candidate_the_encoder_cannot_be_is_an_error(bench, encoders, tmp_path):
    from headhunt.study.executors import guarded

    outcome = guarded(bench.run, ask(candidate(encoders(), freeze=9), tmp_path))
    assert outcome.outcome == "error" and "at most the encoder's 2 layers" in outcome.extra["message"]


def test_refit_trains_on_all_rows_and_saves_a_model(bench, encoders, tmp_path):
    out = tmp_path / "models" / "7"
    outcome = bench.run(ask(candidate(encoders()), tmp_path, job="refit", checkpoint=str(out)))
    assert outcome.outcome == "ok" and outcome.examples == 6 * len(bench.targets)
    loaded = Predictor.load(out)
    assert loaded.predict(["a very good movie", "a bad plot"])[0].label == "good"


def test_deliver_saves_what_the_first_training_gave(bench, encoders, tmp_path):
    spec = candidate(encoders())
    bench.run(ask(spec, tmp_path, 1 / 3, 1))
    out = tmp_path / "models" / "0"
    outcome = bench.run(ask(spec, tmp_path, job="deliver", resume=str(tmp_path / "c-1"), checkpoint=str(out)))
    assert outcome.outcome == "ok"
    held = bench.folds[0][1]
    texts = bench.task.splits["train"].take(held).texts()
    found = Predictor.load(out, precision="fp32").outputs(texts)
    assert np.abs(found - outputs(tmp_path, 1)[1]).max() < 1e-5


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
def test_other_kinds_of_task(problem_type, tmp_path, encoders):
    texts, labels = sentences(48)
    targets = (
        [float(label == "good") * 10 + 100 for label in labels]
        if problem_type == "regression"
        else [[w] for w in labels]
    )
    save_task(Task.load((texts, targets), problem_type=problem_type), tmp_path / "task")
    metric = {"regression": "pearson", "multi_label_classification": "micro_f1"}[problem_type]
    bench = TrialRunner(tmp_path, metric=metric, device="cpu", precision="fp32")
    outcome = bench.run(ask(candidate(encoders(), epochs=20), tmp_path))
    assert outcome.outcome == "ok" and outcome.score > 0.3
    if problem_type == "regression":
        assert 90 < outputs(tmp_path, 2)[1].mean() < 120  # in the units of the data
