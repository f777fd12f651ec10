"""Searches of the space `encoder`: from data to a tested model, resumed, under limits, with its own tokenizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import sentences
from searches import make_task, run_search

import headhunt
from headhunt import Space, Spec, Task
from headhunt.engine import api
from headhunt.engine.ablation import variants
from headhunt.engine.assembly import architecture_key, make_tokenizer, token_key, tokenizer_key
from headhunt.engine.deliver import pareto_front
from headhunt.engine.worker_data import WorkerData
from headhunt.engine.workers import RunnerSettings
from headhunt.report import write as write_report
from headhunt.run.directory import RunDirectory
from headhunt.run.task import save_task
from headhunt.spec import Choice, EncoderShape

pytestmark = pytest.mark.usefixtures("own_cache")

PRESET = Space.load("encoder", 2)
TINY = Space(
    "tiny encoder",
    {
        "shape": {
            **PRESET.tree["shape"],
            "initial": Choice(("random", "spread")),
            "width": Choice((16, 256)),
            "vocabulary": 300,
        },
        "head": PRESET.tree["head"],
        "recipe": {"epochs": 10.0, "learning_rate": 3e-3, "batch_size": 8, "weight_decay": Choice((0.0, 0.01))},
    },
)
MAX_SIZE = 0.5  # MB: encoders of width 256 are too large
OPTIONS = {"space": TINY, "strategy": "random", "rungs": 1, "max_size": MAX_SIZE}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, encoders):
    """A finished search."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADHUNT_CACHE", str(folder / "cache"))
        return run_search(folder, encoders(), **OPTIONS, trials=9)


def test_search_of_encoders_ends_with_a_model_and_a_pareto_front(finished):
    built = [trial for trial in finished.state.trials if trial.spec.shape is not None]
    assert {trial.spec.shape.is_random for trial in built} == {True, False}
    assert {result.outcome for trial in built for result in trial.results.values()} <= {"ok", "collapsed", "limit"}
    costs = finished.result.costs
    assert {cost.trial for cost in costs if cost.efficient} == pareto_front(costs)
    assert {cost.trial for cost in costs} & {trial.number for trial in built}
    assert len({cost.megabytes for cost in costs}) > 1  # each shape is measured by itself
    assert finished.load().predict(["the movie was great"])[0].label in ("good", "bad")
    assert "built encoder" in write_report(finished.run_dir).read_text()


@pytest.mark.slow
def test_search_of_encoders_is_resumed_as_if_uninterrupted(tmp_path, encoders, finished):
    run_search(tmp_path, encoders(), **OPTIONS, trials=6)
    resumed = headhunt.resume(tmp_path / "run", trials=9, callbacks=[])
    scores = [{trial.spec.hash: trial.best for trial in search.state.trials} for search in (finished, resumed)]
    assert scores[0] == scores[1]
    assert any(trial.spec.shape and trial.spec.shape.vocabulary for trial in resumed.state.trials if trial.best)


def test_encoders_above_a_limit_are_not_trained(finished):
    built = [trial for trial in finished.state.trials if trial.spec.shape and trial.spec.shape.is_random]
    assert {trial.spec.shape.width for trial in built if trial.best} == {16}
    refused = [trial for trial in built if "limit" in {result.outcome for result in trial.results.values()}]
    assert {trial.spec.shape.width for trial in refused} == {256}


def test_new_tokenizers_know_training_texts_alone(tmp_path, encoders):
    train, labels = sentences(60)
    test = ([f"{text} xylophone" for text in sentences(20, seed=5)[0]], sentences(20, seed=5)[1])
    task = Task.load((train, labels), test=test)
    save_task(task, RunDirectory(tmp_path).task)
    data = WorkerData(RunnerSettings(directory=str(tmp_path), metric="accuracy"))
    spec = Spec(encoder=encoders(), shape=EncoderShape(width=16, heads=2, vocabulary=400))
    tokenizer = data.build(spec, 0).tokenizer
    assert len(tokenizer.tokenize("movie")) == 1
    assert len(tokenizer.tokenize("xylophone")) > 3
    again = make_tokenizer(spec, lambda: task.splits["train"])
    assert again.get_vocab() == tokenizer.get_vocab()


def test_candidates_share_tokens_but_not_costs():
    shape = EncoderShape(width=16, heads=2, vocabulary=400)
    specs = [Spec(encoder=name, shape=shape) for name in ("one", "other")]
    assert tokenizer_key(specs[0]) == tokenizer_key(specs[1]) == 400
    assert tokenizer_key(replace(specs[0], shape=None)) == "one"
    deeper = replace(specs[0], shape=replace(shape, depth=3))
    assert token_key(deeper) == token_key(specs[0])
    assert architecture_key(deeper) != architecture_key(specs[0])


def test_fit_trains_a_built_encoder(tmp_path, encoders):
    shape = EncoderShape(depth=1, width=32, heads=2, vocabulary=300)
    spec = Spec(encoder=encoders(), shape=shape, head=headhunt.Head(pooling="mean"))
    spec = replace(spec, recipe=replace(spec.recipe, learning_rate=3e-3, epochs=20.0))
    task = make_task(120)
    predictor = headhunt.fit(task, spec=spec)
    outputs = predictor.outputs(task.splits["test"].texts())
    loaded = headhunt.load(predictor.save(tmp_path / "model"))
    np.testing.assert_allclose(loaded.outputs(task.splits["test"].texts()), outputs, atol=1e-5)
    assert api.score(predictor, task.splits["test"]).scores["accuracy"].value > 0.9


def test_ablation_compares_with_the_given_encoder():
    shape = EncoderShape(depth=3, width=64, heads=8, norm="rms")
    names = variants(Spec(encoder="any", shape=shape), 500)
    assert names["built encoder → the given one"].shape is None
    assert names["encoder, norm: rms → layer"].shape == replace(shape, norm="layer")
    student = variants(Spec(encoder="any", shape=EncoderShape(initial="spread", depth=3)), 500)
    assert [name for name in student if "encoder" in name] == ["built encoder → the given one"]
