"""Training: learning, stopping and resuming, freezing, learning rates, schedules and regularisers."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import FAMILIES, sentences
from torch import nn

from headhunt.data import Task
from headhunt.engine.api import score
from headhunt.engine.assembly import prepare
from headhunt.errors import ModelError
from headhunt.modeling.architecture import Convolutions, Head
from headhunt.modeling.build import build, layers_of
from headhunt.spec import Lora, Recipe, Smart, Spec
from headhunt.training.objectives import Objective, Perturbation, smart
from headhunt.training.optim import parameter_groups, schedule


def task_of(count: int = 32, pair: bool = False) -> Task:
    texts, labels = sentences(count)
    columns = {"text": texts, **({"text_b": texts[::-1]} if pair else {}), "label": labels}
    return Task.load({"train": columns, "test": columns})


def run(task: Task, spec: Spec, **options):
    training, predictor = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32", **options)
    reports = list(training.reports(5))
    return training, predictor, reports


def weights(training) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in training.model.state_dict().items()}


def test_training_learns_and_reports(encoders):
    spec = Spec(
        encoder=encoders(), head=Head(pooling="mean"), recipe=Recipe(learning_rate=1e-2, epochs=15, batch_size=8)
    )
    task = task_of(64)
    training, predictor, reports = run(task, spec)
    assert [round(report.done, 2) for report in reports] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert reports[-1].examples == reports[-1].total == 64 * 15
    assert reports[-1].loss < 0.2 < reports[0].loss
    training.finish()
    assert score(predictor, task.splits["test"]).scores["accuracy"].value > 0.95


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", [Head(), Head(layers="mix", pooling="pooler")], ids=["plain", "mix"])
@pytest.mark.parametrize("pair", [False, True], ids=["one", "pair"])
def test_every_encoder_family_trains_saves_and_loads(encoders, family, head, pair, tmp_path):
    from headhunt.predictor import Predictor

    if pair and not head.plain:
        head = replace(head, siamese="concat")
    spec = Spec(encoder=encoders(family), head=head, recipe=Recipe(epochs=1, freeze="embeddings", smart=Smart()))
    training, predictor, reports = run(task_of(16, pair), spec)
    training.finish()
    assert math.isfinite(reports[-1].loss)
    texts = sentences(5, seed=9)[0]
    expected = predictor.outputs(texts, texts[::-1] if pair else None)
    loaded = Predictor.load(predictor.save(tmp_path / "model"), precision="fp32")
    assert np.abs(loaded.outputs(texts, texts[::-1] if pair else None) - expected).max() < 1e-6


HALF = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
from test_loop import *
encoder, folder, part = sys.argv[2], Path(sys.argv[3]), sys.argv[4]
task = task_of(24, True)
training, _ = prepare(task, task.splits["train"], RESUMED(encoder), device="cpu", precision="fp32")
torch.set_num_threads(1)
if part == "rest":
    training.restore(folder)
    assert training.step == training.steps // 3
for report in training.reports(3):
    if part == "first":
        training.save(folder)
        break
if part != "first":
    from safetensors.torch import save_file
    save_file({k: v.contiguous() for k, v in training.model.state_dict().items()}, folder / f"{part}.safetensors")
"""


def RESUMED(encoder: str) -> Spec:  # noqa: N802
    """Return a spec with every source of randomness."""
    recipe = Recipe(
        epochs=3, batch_size=4, learning_rate=1e-3, freeze="embeddings", swap_pairs=True, smart=Smart(weight=1.0)
    )
    return Spec(encoder=encoder, head=Head(pooling="attention", siamese="cosine"), recipe=recipe)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["tiny", pytest.param("minilm", marks=pytest.mark.real)])
def test_training_resumed_in_new_process_ends_with_same_weights(which, encoders, request, tmp_path):
    from pathlib import Path

    from safetensors.torch import load_file

    encoder = encoders() if which == "tiny" else request.getfixturevalue("minilm")
    script = tmp_path / "half.py"
    script.write_text(HALF)
    for part in ("first", "rest", "whole"):
        command = [sys.executable, script, str(Path(__file__).parent), encoder, str(tmp_path), part]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    rest, whole = load_file(tmp_path / "rest.safetensors"), load_file(tmp_path / "whole.safetensors")
    assert rest.keys() == whole.keys() and len(rest) > 10
    assert [name for name in rest if not torch.equal(rest[name], whole[name])] == []


def test_training_restore_refuses_checkpoint_of_another_run(encoders, tmp_path):
    spec = Spec(encoder=encoders(), recipe=Recipe(epochs=1))
    task = task_of(16)
    training, _, _ = run(task, spec)
    training.save(tmp_path)
    other, _ = prepare(task, task.splits["train"], replace(spec, recipe=Recipe(epochs=2)))
    with pytest.raises(ModelError, match="same recipe"):
        other.restore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["training.safetensors"]


def test_training_runs_in_one_process_are_independent(encoders):
    spec = Spec(encoder=encoders(), recipe=Recipe(epochs=2, batch_size=8, learning_rate=1e-3))
    task = task_of(16)
    alone = weights(run(task, spec)[0])
    first, _ = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")
    second, _ = prepare(task, task.splits["train"], spec, seed=7, device="cpu", precision="fp32")
    for _ in zip(first.reports(4), second.reports(4), strict=True):
        torch.rand(3)
    assert all(torch.equal(alone[name], value) for name, value in weights(first).items())


def test_gradient_accumulation_gives_gradient_of_complete_batch(encoders):
    spec = Spec(encoder=encoders(), head=Head(dropout=0.0), recipe=Recipe(epochs=1, batch_size=16, encoder_dropout=0.0))
    task = task_of(16)
    complete, _ = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")
    accumulated, _ = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")
    accumulated.gradient_accumulation_steps = 3
    for training in (complete, accumulated):
        list(training.reports(1))
    for (name, a), b in zip(complete.model.named_parameters(), accumulated.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-6), name


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_micro_batches_give_the_gradient_of_a_weighted_batch(encoders, steps, smoothing):
    """Issue: the mean over a micro-batch divides by its own weights, so that one of a single class had none."""
    recipe = Recipe(epochs=1, batch_size=16, encoder_dropout=0.0, class_weights=True, label_smoothing=smoothing)
    spec = Spec(encoder=encoders(), head=Head(dropout=0.0), recipe=recipe)
    texts = [f"the film was {word}" for word in ("good", "bad", "great", "awful")] * 4
    task = Task.load({"train": (texts, ["rare", *["often"] * 15]), "test": (texts[:2], ["rare", "often"])})
    gradients = []
    for split in (False, True):
        training, _ = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")
        rows = np.arange(16)
        parts = np.array_split(rows, 4 * steps) if split else [rows]
        for number, part in enumerate(parts):
            share = training.objective.share(training.targets[part], training.targets[rows])
            (training._losses(part, number, None)[0] * share).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in training.trained if p.grad is not None]))
    assert torch.allclose(gradients[0], gradients[1], atol=1e-5)


@pytest.mark.real
def test_parameter_groups_apply_layer_decay(minilm):
    head = Head(convolutions=Convolutions(channels=8), pooling="mean")
    model = build(minilm, head, problem_type="single_label_classification", labels=("a", "b"))
    groups = parameter_groups(
        model, Recipe(learning_rate=1e-4, head_lr_multiplier=1.5, layer_decay=0.5, weight_decay=0.01)
    )
    listed = {
        group["name"]: (round(group["rate"], 10), group["weight_decay"], len(group["params"])) for group in groups
    }
    rates = {"embeddings": 1e-4 * 0.5**6, **{f"layer {i}": 1e-4 * 0.5 ** (5 - i) for i in range(6)}, "head": 1.5e-4}
    counts = {"embeddings": (3, 2), **{f"layer {i}": (6, 10) for i in range(6)}, "head": (3, 2)}
    expected = {}
    for where, rate in rates.items():
        matrices, vectors = counts[where]
        expected[where] = (round(rate, 10), 0.01, matrices)
        expected[f"{where}, norms and biases"] = (round(rate, 10), 0.0, vectors)
    assert listed == expected


@pytest.mark.parametrize("freeze", ["none", "embeddings", 1, 2, "all"])
def test_freeze_stops_training_and_dropout_of_frozen_modules(encoders, freeze):
    spec = Spec(encoder=encoders(), recipe=Recipe(epochs=1, freeze=freeze))
    training, _ = prepare(task_of(16), task_of(16).splits["train"], spec)
    next(iter(training.reports(1)))
    encoder = training.model.base_model
    state = {"embeddings": encoder.embeddings, **{str(i): layer for i, layer in enumerate(layers_of(training.model))}}
    frozen = {"none": [], "embeddings": ["embeddings"], 1: ["embeddings", "0"]}.get(freeze, ["embeddings", "0", "1"])
    for name, module in state.items():
        assert module.training == (name not in frozen)
        assert all(p.requires_grad == (name not in frozen) for p in module.parameters())
    assert all(p.requires_grad for p in encoder.pooler.parameters()), "the pooler belongs to the head"


def test_freeze_refuses_layers_the_encoder_does_not_have(encoders):
    task = task_of(16)
    for family, freeze, fragment in (("bert", 3, "at most"), ("albert", 1, "shares one layer")):
        spec = Spec(encoder=encoders(family), recipe=Recipe(freeze=freeze))
        with pytest.raises(ModelError, match=fragment):
            prepare(task, task.splits["train"], spec)


@pytest.mark.parametrize("head", [Head(), Head(pooling="mean")], ids=["plain", "mean"])
def test_lora_trains_only_updates_and_merges(encoders, head, tmp_path):
    recipe = Recipe(epochs=6, batch_size=8, learning_rate=1e-2, freeze=1, lora=Lora(rank=2))
    training, predictor = prepare(
        task_of(32), task_of(32).splits["train"], Spec(encoder=encoders(), head=head, recipe=recipe)
    )
    names = [name for name, p in training.model.named_parameters() if p.requires_grad and "lora" in name]
    assert names and all("layer.1." in name for name in names)
    head_names = {n.split(".")[0] for n, p in training.model.named_parameters() if p.requires_grad and "lora" not in n}
    assert head_names <= {"head", "classifier", "bert"}
    list(training.reports(2))
    predictor.precision = "fp32"
    training.model.eval()
    texts = sentences(6, seed=4)[0]
    before = predictor.outputs(texts)
    training.finish()
    assert not [name for name in training.model.state_dict() if "lora" in name]
    assert np.abs(predictor.outputs(texts) - before).max() < 1e-5
    from headhunt.predictor import Predictor

    loaded = Predictor.load(predictor.save(tmp_path / "m"), precision="fp32")
    assert np.abs(loaded.outputs(texts) - before).max() < 1e-5


def test_schedule_has_documented_shape():
    def shape(**recipe):
        factor = schedule(Recipe(**recipe))
        return [round(factor(done), 3) for done in (0.0, 0.05, 0.1, 0.55, 1.0)]

    assert shape(schedule="cosine", warmup=0.1) == [0.0, 0.5, 1.0, 0.5, 0.0]
    assert shape(schedule="linear", warmup=0.1) == [0.0, 0.5, 1.0, 0.5, 0.0]
    assert shape(schedule="constant", warmup=0.1) == [0.0, 0.5, 1.0, 1.0, 1.0]
    assert shape(schedule="slanted") == [
        round(1 / 32, 3),
        round(16.5 / 32, 3),
        1.0,
        round(16.5 / 32, 3),
        round(1 / 32, 3),
    ]
    assert schedule(Recipe(schedule="cosine", warmup=0.0))(0.0) == 1.0


def test_objective_class_weights_balance_classes():
    targets = np.array([0] * 30 + [1] * 10)
    objective = Objective.of("single_label_classification", targets, 2, Recipe(class_weights=True))
    assert objective.weights is not None
    counted = objective.weights.numpy() * np.bincount(targets)
    assert counted[0] == pytest.approx(counted[1]) and counted.sum() == pytest.approx(40)
    assert Objective.of("single_label_classification", targets, 2, Recipe()).weights is None


@pytest.mark.parametrize("head", [Head(), Head(pooling="mean")], ids=["plain", "mean"])
def test_regression_learns_targets_of_any_scale(encoders, head):
    texts, labels = sentences(64)
    numbers = [10_000.0 + 250.0 * (label == "good") + 0.5 * i for i, label in enumerate(labels)]
    columns = {"text": texts, "label": numbers}
    task = Task.load({"train": columns, "test": columns}, problem_type="regression")
    spec = Spec(encoder=encoders(), head=head, recipe=Recipe(learning_rate=1e-2, epochs=15, batch_size=8))
    training, predictor, _ = run(task, spec)
    training.finish()
    outputs = predictor.outputs(texts)
    assert np.corrcoef(outputs, numbers)[0, 1] > 0.9
    assert abs(outputs.mean() - np.mean(numbers)) < 60


class Toy(nn.Module):
    """A model with logits linear in its input, whose worst perturbation is known."""

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self.enter, self.matrix = nn.Identity(), matrix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("btf,of->bo", self.enter(x), self.matrix)


@pytest.mark.parametrize("problem_type", ["regression", "single_label_classification"])
def test_smart_matches_analytic_value_on_linear_model(problem_type):
    w = torch.tensor([0.3, -0.2, 0.1, 0.05], dtype=torch.float64)
    matrix = w[None] if problem_type == "regression" else torch.stack([w / 2, -w / 2])
    toy, x = Toy(matrix), torch.tensor([[[0.5, 0.1, -0.3, 0.2], [0.2, 0.0, 0.4, 1.0]]], dtype=torch.float64)
    perturbation = Perturbation(toy.enter)
    settings = Smart(radius=0.25, sigma=1e-9, eta=1e-3, epsilon=1e-6)
    torch.manual_seed(0)
    clean = toy(x)
    regulariser = smart(lambda: toy(x), clean, perturbation, settings, Objective(problem_type).divergence).item()
    # Both tokens are perturbed along ±w, scaled to the radius; the random start decides the sign.
    shrinkage = settings.eta / (settings.eta + settings.epsilon)
    size = 0.25 * float(x.square().mean().sqrt())
    change = 2 * size * float(w @ w) / 0.3 * shrinkage
    if problem_type == "regression":
        assert regulariser == pytest.approx(change**2, rel=1e-5)
    else:
        z = float((clean[0, 0] - clean[0, 1]).item())
        sigmoid = torch.nn.functional.sigmoid
        expected = [float((sigmoid(torch.tensor(z + d)) - sigmoid(torch.tensor(z))) * d) for d in (change, -change)]
        assert min(abs(regulariser - value) for value in expected) < 1e-5
    assert perturbation.delta is None


@pytest.mark.parametrize(
    "head", [Head(pooling="mean"), Head(pooling="mean", siamese="difference")], ids=["cross", "siamese"]
)
def test_smart_adds_two_passes_over_half_the_rows(encoders, head):
    for recipe, passes in ((Recipe(epochs=1, batch_size=8), 1), (Recipe(epochs=1, batch_size=8, smart=Smart()), 2)):
        task = task_of(16, pair=True)
        spec = Spec(encoder=encoders(), head=head, recipe=recipe)
        training, _ = prepare(task, task.splits["train"], spec, device="cpu", precision="fp32")
        calls = []
        training.model.encoder.register_forward_hook(lambda *x, calls=calls: calls.append(len(x[2].last_hidden_state)))
        list(training.reports(1))
        assert sum(calls) == passes * len(training.tokens) * (2 if head.siamese else 1)
        assert not training.model.encoder.embeddings._forward_hooks, "the hook must be removed after training"


@pytest.mark.parametrize("siamese", [None, "difference"], ids=["cross", "siamese"])
def test_smart_reduces_spread_of_outputs_for_pairs(encoders, siamese):
    """Outputs of a strongly regularised model vary less than those of a model without regularisation."""
    task = task_of(32, pair=True)
    spread = {}
    for name, settings in (("off", None), ("on", Smart(weight=100.0, radius=0.2))):
        recipe = Recipe(epochs=8, batch_size=8, learning_rate=3e-3, freeze="embeddings", smart=settings)
        spec = Spec(encoder=encoders(), head=Head(pooling="mean", siamese=siamese, dropout=0.0), recipe=recipe)
        _, predictor, reports = run(task, spec)
        assert all(math.isfinite(report.loss) for report in reports)
        train = task.splits["train"]
        spread[name] = predictor.outputs(train.texts(), train.texts_b())[:, 0].std()
    assert spread["on"] < 0.7 * spread["off"]


@pytest.mark.parametrize("majority", ["same", "other"])
def test_similarity_head_learns_sign_from_data(encoders, majority):
    """Equal texts must be similar, whichever class is larger."""
    texts = sentences(40, seed=5)[0]
    most, least = (30, 10) if majority == "same" else (10, 30)
    same = [(text, text, "same") for text in texts[:most]]
    other = [(text, texts[(i + 7) % 40], "other") for i, text in enumerate(texts[:least])]
    columns = dict(zip(("text", "text_b", "label"), map(list, zip(*same, *other, strict=True)), strict=True))
    task = Task.load({"train": columns, "test": columns})
    for seed in range(3):
        recipe = Recipe(epochs=1, batch_size=8, learning_rate=1e-4, head_lr_multiplier=10.0, warmup=0.0)
        training, _, _ = run(
            task, Spec(encoder=encoders(), head=Head(pooling="mean", siamese="cosine"), recipe=recipe), seed=seed
        )
        training.finish()
        output = training.model.head.output.weight[:, 0]
        same_class = task.labels.index("same")
        assert bool(training.model.head.compare.fitted)
        assert output[same_class] > output[1 - same_class]
