"""The verdict: intervals that hold, words that fit, and the plain head delivered where nothing better was shown."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import sentences
from test_hunt import QUICK, hunt

import headhunt
from headhunt.engine.ablation import NAMES, variants
from headhunt.engine.final_test import FinalEvaluation, _judge_again, judged_targets, sentence
from headhunt.engine.search import Search, ablate, amount
from headhunt.errors import HeadhuntError
from headhunt.evaluation import Comparison, compare, fit_temperature, greedy_mean, reliability
from headhunt.modeling.architecture import Blocks, Head, Mlp
from headhunt.predictor import Predictor
from headhunt.run.state import Outcome
from headhunt.spec import Recipe, Smart, Spec, plain
from headhunt.study.ladder import Ladder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))


def answers(targets: np.ndarray, right: float, rng: np.random.Generator) -> np.ndarray:
    """Outputs of a model that is right on each row with this probability."""
    hit = rng.random(len(targets)) < right
    return np.eye(2)[np.where(hit, targets, 1 - targets)] * 0.8 + 0.1


def test_two_models_that_do_not_differ_are_seldom_told_apart():
    rng = np.random.default_rng(0)
    claims = 0
    for turn in range(200):
        targets = rng.integers(0, 2, 400)
        found = compare(
            "single_label_classification",
            "accuracy",
            [answers(targets, 0.8, rng)],
            [answers(targets, 0.8, rng)],
            targets,
            seed=turn,
        )
        claims += found.low > 0
        assert not found.sure  # one training of each is never enough
    assert claims <= 200 * 0.05  # 2.5 % are to be expected


def test_chance_in_training_counts():
    """Trainings of one candidate differ by 3 points: without regard to that, equals would often seem to differ."""
    rng = np.random.default_rng(1)
    claims = {"with": 0, "without": 0}
    for turn in range(150):
        targets = rng.integers(0, 2, 2000)
        ours, theirs = ([answers(targets, 0.8 + rng.normal(0, 0.03), rng) for _ in range(4)] for _ in range(2))
        claims["without"] += (
            compare("single_label_classification", "accuracy", ours[:1], theirs[:1], targets, seed=turn).low > 0
        )
        found = compare("single_label_classification", "accuracy", ours, theirs, targets, seed=turn)
        claims["with"] += found.sure and found.spread > 0 and found.trainings == 4
    assert claims["without"] > 150 * 0.15 and claims["with"] <= 150 * 0.08


def test_a_gain_of_four_points_is_seen():
    rng = np.random.default_rng(2)
    seen = 0
    for turn in range(60):
        targets = rng.integers(0, 2, 1000)
        base = answers(targets, 0.8, rng)
        wrong = np.flatnonzero(base.argmax(1) != targets)
        better = base.copy()
        better[rng.choice(wrong, 60, replace=False)] = 0
        fixed = (better.sum(1) == 0).nonzero()[0]
        better[fixed] = np.eye(2)[targets[fixed]]
        spoilt = rng.choice(np.flatnonzero(base.argmax(1) == targets), 20, replace=False)
        better[spoilt] = np.eye(2)[1 - targets[spoilt]]
        found = compare("single_label_classification", "accuracy", [better] * 2, [base] * 2, targets, seed=turn)
        assert found.gain == pytest.approx(0.04)
        seen += found.sure
    assert seen >= 55


def test_numbers_and_labels_are_compared_too():
    rng = np.random.default_rng(3)
    truth = rng.normal(size=300)
    near, far = truth + rng.normal(0, 0.1, 300), truth + rng.normal(0, 2, 300)
    for metric in ("pearson", "spearman", "mse"):
        assert compare("regression", metric, [near] * 2, [far] * 2, truth).sure
    marks = (rng.random((300, 3)) < 0.3).astype(np.float32)
    assert compare("multi_label_classification", "micro_f1", [marks] * 2, [1 - marks] * 2, marks).sure


def test_the_mean_takes_in_only_what_does_not_hurt():
    rng = np.random.default_rng(4)
    targets = rng.integers(0, 2, 600)
    softly = [rng.normal(2.0 * targets - 1.0, 1.2) for _ in range(5)]  # right four times in five, surer where right
    good = [np.stack([1 / (1 + np.exp(x)), 1 / (1 + np.exp(-x))], 1) for x in softly]
    bad = answers(targets, 0.3, rng)
    chosen = greedy_mean("single_label_classification", "accuracy", [*good, bad], targets, 6)
    assert 5 not in chosen and len(chosen) >= 2
    mean = np.mean([([*good, bad])[i] for i in chosen], axis=0)
    assert (mean.argmax(1) == targets).mean() >= max((one.argmax(1) == targets).mean() for one in good)


def test_a_temperature_undoes_overconfidence():
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 1.5, (4000, 3))
    truth = np.array([rng.choice(3, p=p) for p in np.exp(logits) / np.exp(logits).sum(1, keepdims=True)])
    sharp = np.exp(logits * 2.5)
    temperature = fit_temperature(sharp / sharp.sum(1, keepdims=True), truth)
    assert temperature == pytest.approx(2.5, rel=0.1)
    curve = reliability(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), truth)
    assert sum(point["rows"] for point in curve) == 4000
    assert max(abs(point["confidence"] - point["accuracy"]) for point in curve) < 0.1


def told(gain: float, low: float, high: float, trainings: int = 4) -> str:
    result = {"metric": "accuracy", "test_rows": 1000}
    result["test"] = {name: {"accuracy": {"value": value}} for name, value in (("model", 0.76), ("plain", 0.71))}
    return sentence(result, Comparison(gain, low, high, 0.004, 0.0, trainings))


def test_the_sentence_says_what_the_interval_says():
    assert told(0.05, 0.02, 0.08).startswith("A reliable gain: the winner reaches 76.0 % where the plain head")
    assert "+5.0 points (95 % interval +2.0 to +8.0 points, p = 0.004)" in told(0.05, 0.02, 0.08)
    assert told(0.05, -0.01, 0.11).startswith("No reliable gain: keep the plain head.")
    assert told(0.05, 0.02, 0.08, trainings=1).startswith("Not sure: the best candidate reaches 76.0 %")
    assert sentence({"metric": "accuracy"}, None).startswith("Not tested")
    alone = {"metric": "accuracy", "test_rows": 9, "test": {"plain": {"accuracy": {"value": 0.5}}}}
    assert sentence(alone, None).startswith("No other candidate was trained in full. The plain head reaches 50.0 %")
    ready = {**alone, "test": {"model": {"accuracy": {"value": 0.5}}}}
    assert sentence(ready, None, "best so far").startswith("The model that was ready in time reaches 50.0 %")


def test_what_is_delivered_follows_from_the_verdict(tmp_path, encoders):
    found = hunt(tmp_path, encoders(), trials=6)
    verdict = found.result["verdict"]
    card = json.loads((tmp_path / "run" / "model" / "headhunt.json").read_text())
    assert verdict["claim"] in ("gain", "no gain")
    assert (card["trial"] == 0) == (verdict["claim"] == "no gain")
    assert found.result["confusion"]["model"] and found.result["calibration"]["temperature"] > 0
    assert sum(map(sum, found.result["confusion"]["plain"])) == found.result["test_rows"]
    wrong = sum(map(sum, found.result["confusion"]["model"])) - sum(
        row[i] for i, row in enumerate(found.result["confusion"]["model"])
    )
    assert len(found.result["mistakes"]) == min(10, wrong)


def test_a_finalist_that_collapses_with_another_seed_is_none(tmp_path, encoders, monkeypatch):
    """And one that cost its worker is asked once more."""
    judged = []

    class Workers:
        workers = 1

        def __init__(self):
            self.queue = []

        def submit(self, request):
            self.queue.append(request)

        def wait(self, timeout=None):
            request = self.queue.pop(0)
            judged.append((request.trial, request.attempt))
            if request.trial == 1:
                return [(request, Outcome("collapsed"))]
            if request.trial == 2 and not request.attempt:
                return [(request, Outcome("lost"))]
            rows = np.arange(len(judged_targets(case)))
            Path(request.predictions).parent.mkdir(exist_ok=True)
            outputs = np.eye(2, dtype=np.float32)[judged_targets(case)]
            np.savez(request.predictions, rows=rows, outputs=outputs)
            return [(request, Outcome("ok", 1.0))]

        def stop(self):
            raise AssertionError("all have answered")

    found = hunt(tmp_path, encoders(), trials=9)
    trials = [trial for trial in found.state.leaderboard() if trial.number and trial.best[0] == 2][:2]
    for number, trial in zip((1, 2), trials, strict=True):
        monkeypatch.setattr(trial, "number", number)
    plain = found.state.trials[0]
    study = SimpleNamespace(
        state=SimpleNamespace(trials=[plain, *trials], leaderboard=lambda: trials),
        ladder=Ladder(),
        seed_of=lambda number: number,
    )
    deadline = time.time() + 600
    case = FinalEvaluation(found.run_dir, found.about, "accuracy", 3, study, Workers(), deadline)
    monkeypatch.setattr("headhunt.engine.final_test.close_to_best", lambda case, board: list(board))
    scores = _judge_again(case, plain)
    assert scores == {2: [trials[1].best[1], 1.0, 1.0], 0: [plain.best[1], 1.0, 1.0]}
    assert judged == [(1, 0), (2, 0), (0, 0), (2, 1), (2, 0), (0, 0), (2, 1)]


def test_a_deeper_verdict_trains_with_more_seeds(tmp_path, encoders):
    found = hunt(tmp_path, encoders(), trials=5)
    first = {path.name for path in (tmp_path / "run" / "models").iterdir()}
    deeper = headhunt.engine.search.verdict(tmp_path / "run", seeds=3, workers=0)
    more = {path.name for path in (tmp_path / "run" / "models").iterdir()} - first
    winner = deeper.result["best"]["trial"]
    assert {f"{winner:06d}-all-1", f"{winner:06d}-all-2", "000000-all-1", "000000-all-2"} <= more
    assert deeper.result["verdict"]["spread"] >= 0 and deeper.state.ended == found.state.ended


def test_calibration_is_in_the_folder_that_is_delivered(tmp_path, encoders):
    sharp = hunt(tmp_path / "a", encoders(), trials=4)
    calibrated = hunt(tmp_path / "b", encoders(), trials=4, calibrate=True)
    folder = tmp_path / "b" / "run" / "model"
    temperature = json.loads((folder / "headhunt.json").read_text())["temperature"]
    texts = ["a good movie", "the plot was awful", "a dog"]
    before = np.log(Predictor.load(tmp_path / "a" / "run" / "model", precision="fp32").outputs(texts))
    after = np.log(Predictor.load(folder, precision="fp32").outputs(texts))
    difference = lambda x: x[:, 0] - x[:, 1]  # noqa: E731
    assert sharp.result["verdict"]["delivered"] == calibrated.result["verdict"]["delivered"]
    assert np.allclose(difference(before) / temperature, difference(after), atol=1e-4)


def test_variants_take_one_thing_out_each():
    recipe = Recipe(learning_rate=3e-4, freeze=2, smart=Smart(), layer_decay=0.9)
    spec = Spec(encoder="any", head=Head(pooling="mean", blocks=Blocks(), mlp=Mlp(width=64)), recipe=recipe)
    found = variants(spec, 500)
    assert {name.split(":")[0] for name in found} == {
        "pooling", "encoder blocks", "MLP", "learning rate", "freezing", "SMART", "layer-wise rates",
    }  # fmt: skip
    assert found["encoder blocks: on → none"].head.blocks is None
    assert found["encoder blocks: on → none"].recipe == spec.recipe
    assert len({variant.hash for variant in found.values()} | {spec.hash}) == len(found) + 1
    assert variants(plain("any"), 500) == {}


def test_every_part_and_item_has_a_name():
    known = {field.name for field in (*fields(Head), *fields(Recipe))}
    assert set(NAMES) == known - {"max_length"}


def test_an_ablation_tells_what_each_thing_is_worth(tmp_path, encoders):
    hunt(tmp_path, encoders(), trials=8)
    searched = Search(tmp_path / "run").state
    found = ablate(tmp_path / "run", workers=0)
    now = Search(tmp_path / "run").state
    assert (now.ended, now.elapsed) == (searched.ended, searched.elapsed), "an ablation is no searching"
    assert found["items"] and all(item["low"] <= item["difference"] <= item["high"] for item in found["items"])
    assert json.loads((tmp_path / "run" / "ablation.json").read_text()) == found
    before, _ = read(tmp_path / "run" / "ledger.jsonl")
    assert ablate(tmp_path / "run", workers=0) == found  # nothing is judged twice
    assert sum(record["kind"] == "result" for record in before) == sum(
        record["kind"] == "result" for record in read(tmp_path / "run" / "ledger.jsonl")[0]
    )


def test_limits_on_size_and_latency_hold(tmp_path, encoders):
    from headhunt.spec import Space

    space = Space.from_dict({**QUICK.to_dict(), "head": {"pooling": ["mean", "max"], "mlp": {"width": [8, 2048]}}})
    found = hunt(tmp_path / "a", encoders(), space=space, trials=12, max_size="0.1MB")
    outcomes = {result.outcome for trial in found.state.trials for result in trial.results.values()}
    sizes = [
        result.extra["megabytes"]
        for trial in found.state.trials
        for result in trial.results.values()
        if "megabytes" in result.extra
    ]
    assert "limit" in outcomes and sizes and max(sizes) <= 0.1
    slow = hunt(tmp_path / "b", encoders(), trials=4, max_latency="0.001ms")
    assert {result.outcome for trial in slow.state.trials for result in trial.results.values()} == {"limit"}
    assert slow.load() is not None  # the first model is there all the same


@pytest.mark.parametrize("given", ["fast", "0ms", "-3ms", "5 lightyears"])
def test_limits_that_are_none(given):
    with pytest.raises(HeadhuntError, match="must be as 20ms"):
        amount(given, {"ms": 1.0, "s": 1000.0}, "latency", "20ms")


def test_limits_in_words():
    assert amount("20ms", {"ms": 1.0, "s": 1000.0}, "latency", "20ms") == 20
    assert amount("0.5 s", {"ms": 1.0, "s": 1000.0}, "latency", "20ms") == 500
    assert amount(7, {"ms": 1.0}, "latency", "20ms") == 7


def test_a_text_in_both_splits_is_found_and_told():
    texts, labels = sentences(60)
    rows = {"text": texts, "label": labels}
    planted = {"text": ["a dog was very great it is", texts[3]], "label": ["good", labels[3]]}
    task = headhunt.Task.load(rows, test=planted)
    assert any("leak" in warning and "1 test row" in warning for warning in task.warnings)
