"""Solved heads: save and restore, the delivered model, and sixteen bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import FAMILIES, sentences

from headhunt.data import Task
from headhunt.engine.api import score
from headhunt.engine.assembly import prepare
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import output_of
from headhunt.predictor import Predictor
from headhunt.spec import Recipe, Spec, solved
from headhunt.training.activations import StoppedError
from headhunt.training.solve import Solving

CASES = ("single_label_classification", "multi_label_classification", "regression", "pair")


def task_of(case: str = "single_label_classification", count: int = 48) -> Task:
    texts, labels = sentences(count)
    second = {"text_b": [texts[i - i % 4 // 2 * 5] for i in range(count)]} if case == "pair" else {}
    columns = {"text": texts, **second, "label": labels}
    if case == "multi_label_classification":
        columns["label"] = [
            [label, "long"] if len(text) > 25 else [label] for text, label in zip(texts, labels, strict=True)
        ]
    elif case == "regression":
        columns["label"] = [500.0 + len(text) for text in texts]
    elif case == "pair":
        columns["label"] = ["other" if i % 4 // 2 else "same" for i in range(count)]
    return Task.load({"train": columns, "test": columns})


def solve(task: Task, encoder: str, *, precision: str = "fp32", spec: Spec | None = None) -> tuple[Solving, Predictor]:
    spec = spec or solved(encoder, pair=task.pair)
    training, predictor = prepare(task, task.splits["train"], spec, device="cpu", precision=precision)
    assert isinstance(training, Solving)
    (report,) = training.reports()
    assert report.done == 1 and report.examples == len(task.splits["train"]) and np.isfinite(report.loss)
    return training, predictor


def logits_of(training: Solving) -> np.ndarray:
    return training.predict(np.arange(len(training.features.tokens)))


@pytest.mark.parametrize("case", CASES)
def test_solving_takes_one_step_and_learns(encoders, case):
    task = task_of(case)
    training, predictor = solve(task, encoders())
    assert (training.steps, training.step, training.steps_until(0.3)) == (1, 1, 1)
    assert list(training.reports()) == [], "a solved head has nothing left to learn"
    training.finish()
    scores = score(predictor, task.splits["test"]).scores
    assert next(iter(scores.values())).value > 0.8


def test_checkpoint_of_other_rows_is_refused(encoders, tmp_path):
    task = task_of(CASES[0])
    training, _ = solve(task, encoders())
    training.save(tmp_path)
    train = task.splits["train"]
    other, _ = prepare(task, train.take(np.arange(len(train) - 1)), solved(encoders(), pair=task.pair), device="cpu")
    with pytest.raises(ValueError, match="other rows"):
        other.restore(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_solving_restored_from_its_checkpoint_has_equal_logits(encoders, case, tmp_path):
    task = task_of(case)
    training, predictor = solve(task, encoders())
    training.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["training.safetensors"]
    spec = solved(encoders(), pair=task.pair)
    other, restored = prepare(task, task.splits["train"], spec, seed=9, device="cpu", precision="fp32")
    other.restore(tmp_path)
    assert isinstance(other, Solving) and other.step == 1 and list(other.reports()) == []
    assert np.array_equal(logits_of(other), logits_of(training))
    assert all(np.array_equal(*pair) for pair in zip(other.held_out, training.held_out, strict=True))
    train = task.splits["train"]
    expected = predictor.outputs(train.texts(), train.texts_b())
    assert np.array_equal(restored.outputs(train.texts(), train.texts_b()), expected)


@pytest.mark.parametrize("case", CASES)
def test_saved_model_predicts_as_the_solution(encoders, case, tmp_path):
    task = task_of(case)
    training, predictor = solve(task, encoders())
    training.finish()
    loaded = Predictor.load(predictor.save(tmp_path / "model"), device=torch.device("cpu"), precision="fp32")
    expected = loaded.activate(torch.from_numpy(logits_of(training))).numpy()
    train = task.splits["train"]
    difference = np.abs(loaded.outputs(train.texts(), train.texts_b()) - expected).max()
    assert difference < 1e-4 * max(1.0, np.abs(expected).max())
    assert loaded.spec == solved(encoders(), pair=task.pair) or loaded.spec.recipe.max_length == 64


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pair", [False, True], ids=["one", "pair"])
def test_every_encoder_family_can_be_solved(encoders, family, pair, tmp_path):
    task = task_of("pair" if pair else "single_label_classification", 24)
    training, predictor = solve(task, encoders(family))
    training.finish()
    train = task.splits["train"]
    expected = predictor.activate(torch.from_numpy(logits_of(training))).numpy()
    loaded = Predictor.load(predictor.save(tmp_path / "model"), precision="fp32")
    assert np.abs(loaded.outputs(train.texts(), train.texts_b()) - expected).max() < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_solution_keeps_its_outputs_under_autocast(encoders, case):
    """Without an output layer in 32 bits, the rounding of its large terms would change the logits."""
    task = task_of(case)
    training, predictor = solve(task, encoders())
    train = task.splits["train"]
    expected = logits_of(training)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        batch = training.features.tokens.batch(np.arange(len(train)))
        outputs = predictor.model(**batch).logits
    assert outputs.dtype == torch.float32
    assert np.abs(outputs.numpy() - expected).mean() < 0.15 * expected.std()
    exact = []
    handle = output_of(predictor.model).register_forward_pre_hook(lambda module, args: exact.append(args[0]))
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = predictor.model(**batch).logits
    handle.remove()
    assert exact[0].dtype == torch.float32, "the output layer computes in 32 bits"
    recomputed = exact[0].numpy() @ output_of(predictor.model).weight.detach().numpy().T
    recomputed += output_of(predictor.model).bias.detach().numpy()
    assert np.abs(recomputed - outputs.numpy()).max() < 1e-3 * max(1.0, np.abs(recomputed).max())


@pytest.mark.parametrize("case", CASES)
def test_solving_in_sixteen_bits_predicts_as_its_delivered_model(encoders, case, tmp_path):
    task = task_of(case)
    training, predictor = solve(task, encoders(), precision="bf16")
    training.finish()
    train = task.splits["train"]
    expected = predictor.activate(torch.from_numpy(logits_of(training))).numpy()
    loaded = Predictor.load(predictor.save(tmp_path / "model"), precision="bf16")
    difference = np.abs(loaded.outputs(train.texts(), train.texts_b()) - expected)
    assert difference.mean() < 0.1 * expected.std()


@pytest.mark.parametrize(("which", "least"), [("tiny", 20), pytest.param("minilm", 90, marks=pytest.mark.real)])
def test_folder_loaded_in_bfloat16_keeps_clear_predictions(which, least, encoders, request, tmp_path):
    from transformers import AutoModelForSequenceClassification

    encoder = encoders() if which == "tiny" else request.getfixturevalue("minilm")
    training, predictor = solve(task_of(count=96), encoder)
    training.finish()
    folder = predictor.save(tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16).eval()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    with torch.inference_mode():
        logits = model(**training.features.tokens.batch(np.arange(96))).logits.float().numpy()
    expected = logits_of(training)
    clear = np.abs(expected[:, 0] - expected[:, 1]) > 1.0
    assert clear.sum() >= least
    assert (logits.argmax(1) == expected.argmax(1))[clear].all()


def test_solving_stopped_early_has_no_solution_and_starts_again(encoders):
    task = task_of()
    training, _ = prepare(task, task.splits["train"], solved(encoders()), device="cpu", precision="fp32")
    with pytest.raises(StoppedError):
        list(training.reports(stop=lambda: True))
    assert training.step == 0
    assert len(list(training.reports())) == 1 and training.step == 1


def test_solving_trains_the_output_layer_alone(encoders):
    task = task_of()
    training, _ = prepare(task, task.splits["train"], solved(encoders()), device="cpu", precision="fp32")
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    list(training.reports())
    changed = {name for name, value in training.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"head.output.weight", "head.output.bias"}


def test_solving_depends_on_the_seed_only_through_the_folds(encoders):
    task = task_of()
    first, second = (logits_of(solve(task, encoders())[0]) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("head", [Head(), Head(pooling="mean"), Head(layers=2, pooling="mean_max")], ids=str)
def test_solving_works_with_other_heads_without_weights(encoders, head):
    task = task_of()
    spec = Spec(encoder=encoders(), head=head, recipe=Recipe(solver="ridge"))
    training, predictor = solve(task, encoders(), spec=replace(spec.canonical()))
    expected = predictor.activate(torch.from_numpy(logits_of(training))).numpy()
    assert np.abs(predictor.outputs(task.splits["train"].texts()) - expected).max() < 1e-4
