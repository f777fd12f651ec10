"""Encoders that are built: every option, saving and loading, ONNX, layers of the given encoder, tokenizers."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import FAMILIES, sentences
from transformers import AutoModelForSequenceClassification

from headhunt.delivery.onnx.export import export
from headhunt.delivery.onnx.runtime import Model
from headhunt.errors import ModelError
from headhunt.modeling.architecture import ACTIVATIONS, NORM_POSITIONS, NORMS, EncoderShape, Head
from headhunt.modeling.build import build, build_tasks, embeddings_of, find_layers, layers_of
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.modeling.tokenizer import train_tokenizer
from headhunt.predictor import Predictor
from headhunt.spec import Spec
from headhunt.training.tokens import tokenise

SMALL = {"depth": 2, "width": 16, "heads": 2, "ffn_ratio": 2}
SHAPES = {
    **{name: EncoderShape(activation=name, **SMALL) for name in ACTIVATIONS},
    **{
        f"{where}-{norm}": EncoderShape(norm=norm, norm_position=where, **SMALL)
        for where in NORM_POSITIONS
        for norm in NORMS
    },
    "wide": EncoderShape(depth=1, width=32, heads=8, ffn_ratio=1.3),
    "own tokens": EncoderShape(vocabulary=300, activation="swiglu", norm="rms", norm_position="post", **SMALL),
    "spread": EncoderShape(initial="spread", depth=1),
    "first": EncoderShape(initial="first", depth=2),
}


def make(encoder: str, shape: EncoderShape, head: Head | None = None, seed: int = 1) -> Predictor:
    """Return an untrained predictor with an encoder that is built."""
    tokenizer = train_tokenizer(sentences(40)[0], shape.vocabulary) if shape.vocabulary else load_tokenizer(encoder)
    head = Head(pooling="mean") if head is None else head
    problem = {"problem_type": "single_label_classification", "labels": ("bad", "good")}
    model = build(encoder, head, shape=shape, tokenizer=tokenizer, seed=seed, **problem)
    spec = Spec(encoder=encoder, shape=shape, head=head)
    with torch.no_grad():
        for parameter in model.parameters():  # large enough to show differences
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    return Predictor(model, tokenizer, pair=False, spec=spec, precision="fp32", **problem)


def batch_of(predictor: Predictor) -> dict[str, torch.Tensor]:
    return tokenise(predictor.tokenizer, sentences(6, seed=3)[0]).batch(np.arange(6))


@pytest.mark.parametrize("name", SHAPES)
def test_every_weight_of_a_shape_is_trained(encoders, name):
    predictor = make(encoders(), SHAPES[name])
    batch = batch_of(predictor)
    predictor.model.train()(**batch, labels=torch.tensor([0, 1] * 3)).loss.backward()
    assert all(parameter.grad is not None for parameter in predictor.model.parameters())
    assert len(layers_of(predictor.model)) == SHAPES[name].depth
    assert embeddings_of(predictor.model)


@pytest.mark.parametrize("name", SHAPES)
def test_padding_does_not_change_outputs(encoders, name):
    predictor = make(encoders(), SHAPES[name])
    texts = sentences(6, seed=3)[0]
    alone = np.concatenate([predictor.outputs([text]) for text in texts])
    np.testing.assert_allclose(predictor.outputs(texts), alone, atol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_saved_encoders_predict_the_same(encoders, tmp_path, name):
    predictor = make(encoders(), SHAPES[name])
    texts = sentences(6, seed=3)[0]
    loaded = Predictor.load(predictor.save(tmp_path / "model"), precision="fp32")
    assert loaded.spec == predictor.spec
    np.testing.assert_allclose(loaded.outputs(texts), predictor.outputs(texts), atol=1e-6)
    assert np.ptp(predictor.outputs(texts)[:, 0]) > 1e-3


def test_options_change_the_encoder(encoders):
    """An option that was ignored would give equal outputs."""
    names = ["gelu", "relu", "silu", "swiglu", "pre-rms", "post-layer", "post-rms"]
    texts = sentences(6, seed=3)[0]
    outputs = [make(encoders(), SHAPES[name]).outputs(texts) for name in names]
    for one in range(len(names)):
        for other in range(one):
            assert not np.allclose(outputs[one], outputs[other], atol=1e-6), (names[one], names[other])


def test_all_layers_can_be_read(encoders):
    for layers in (2, "mix", "concat"):
        predictor = make(encoders(), SHAPES["pre-rms"], Head(layers=layers, pooling="mean"))
        assert np.isfinite(predictor.outputs(["good movie"])).all()


@pytest.mark.parametrize("name", ["own tokens", pytest.param("pre-layer", marks=pytest.mark.slow)])
def test_exported_encoders_predict_the_same(encoders, tmp_path, name):
    predictor = make(encoders(), SHAPES[name])
    predictor.save(tmp_path / "model")
    export(tmp_path / "model", tmp_path / "onnx")
    texts = sentences(6, seed=3)[0]
    np.testing.assert_allclose(Model(tmp_path / "onnx").outputs(texts), predictor.outputs(texts), atol=1e-4)


def test_transformers_loads_a_built_encoder_without_headhunt(encoders, tmp_path, outside):
    predictor = make(encoders(), SHAPES["own tokens"])
    predictor.save(tmp_path / "model")
    code = (
        "from transformers import pipeline\n"
        f"pipe = pipeline('text-classification', {str(tmp_path / 'model')!r}, trust_remote_code=True, top_k=None)\n"
        "import json; print(json.dumps({row['label']: row['score'] for row in pipe(['good movie'])[0]}))"
    )
    done = subprocess.run([outside["OUTSIDE_PYTHON"], "-c", code], env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose([found["bad"], found["good"]], predictor.outputs(["good movie"])[0], atol=1e-5)


def test_seeds_give_initial_weights(encoders):
    shape = SHAPES["gelu"]
    first, again, other = (make(encoders(), shape, seed=seed).outputs(["a good dog"]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
@pytest.mark.parametrize("head", [Head(), Head(pooling="mean")], ids=["plain", "mean"])
def test_kept_layers_are_those_of_the_encoder(encoders, tmp_path, family, head):
    """The outputs are those of the given encoder after as many layers, and stay so when saved."""
    encoder = encoders(family)
    problem = {"problem_type": "single_label_classification", "labels": ("bad", "good")}
    model = build(encoder, head, shape=EncoderShape(initial="first", depth=1), **problem).eval()
    complete = build(encoder, Head(pooling="mean"), **problem).eval()
    kept, given = layers_of(model), layers_of(complete)
    assert len(kept) == 1
    for name, value in given[0].state_dict().items():
        assert torch.equal(kept[0].state_dict()[name], value), name
    model.save_pretrained(tmp_path / "model")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    batch = tokenise(load_tokenizer(encoder), sentences(4)[0]).batch(np.arange(4))
    torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits)


def test_evenly_spaced_layers_begin_with_the_lowest():
    kept = {depth: EncoderShape(initial="spread", depth=depth).kept_layers(6) for depth in (1, 2, 3, 4, 6)}
    assert kept == {1: [0], 2: [0, 3], 3: [0, 2, 4], 4: [0, 1, 3, 4], 6: [0, 1, 2, 3, 4, 5]}
    assert EncoderShape(initial="first", depth=2).kept_layers(6) == [0, 1]


def test_every_other_layer_is_kept(tmp_path):
    """Four layers that can be told apart by a bias."""
    from conftest import TINY, make_tokenizer
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model("bert", **TINY | {"num_hidden_layers": 4, "pad_token_id": 1})
    encoder = AutoModel.from_config(config)
    for number, layer in enumerate(encoder.encoder.layer):
        torch.nn.init.constant_(layer.output.dense.bias, number)
    encoder.save_pretrained(tmp_path)
    make_tokenizer("bert").save_pretrained(tmp_path)
    shape, problem = EncoderShape(initial="spread", depth=2), {"problem_type": "regression", "labels": ()}
    model = build(str(tmp_path), Head(pooling="mean"), shape=shape, **problem)
    assert [layer.output.dense.bias[0].item() for layer in find_layers(model.base_model)] == [0.0, 2.0]
    assert model.config.encoder["num_hidden_layers"] == 2


def test_shapes_that_do_not_fit_the_encoder_are_refused(encoders):
    problem = {"problem_type": "regression", "labels": ()}
    with pytest.raises(ModelError, match="at most 2, the layers of the encoder; found 3"):
        build(encoders(), Head(), shape=EncoderShape(initial="first", depth=3), **problem)
    with pytest.raises(ModelError, match="shares one layer"):
        build(encoders("albert"), Head(), shape=EncoderShape(initial="spread", depth=1), **problem)


def test_trained_tokenizers_know_the_texts_and_any_other():
    texts = ["the quick brown fox", "The quick red fox"] * 20
    tokenizer = train_tokenizer(texts, 400)
    assert len(tokenizer.tokenize("quick fox")) == 2
    assert len(tokenizer.tokenize("zebra")) > 2
    assert tokenizer("数 é")["input_ids"]
    ids = tokenizer("fox [SEP]", "fox")["input_ids"]
    assert ids.count(tokenizer.sep_token_id) == 2  # "[SEP]" in a text is ordinary text


def test_trained_tokenizers_are_equal_in_every_process(tmp_path):
    code = (
        "import hashlib\n"
        "from headhunt.modeling.tokenizer import train_tokenizer\n"
        "texts = [f'word{i} other{i % 7} text{i % 13}' for i in range(300)]\n"
        "print(hashlib.sha256(train_tokenizer(texts, 500).backend_tokenizer.to_str().encode()).hexdigest())"
    )
    found = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
    assert len(found) == 1 and len(found.pop()) > 60


@pytest.mark.parametrize("name", ["post-rms", "spread"])
def test_tasks_share_a_built_encoder(encoders, tmp_path, name):
    tokenizer = load_tokenizer(encoders())
    tasks = [{"name": each, "problem_type": "regression", "labels": [], "pair": False} for each in ("one", "other")]
    options = {"shape": SHAPES[name], "tokenizer": tokenizer, "task_layers": 1}
    model = build_tasks(encoders(), Head(pooling="mean"), tasks, **options).eval()
    assert model.config.task_layers == 1 and len(layers_of(model)) == SHAPES[name].depth
    batch = tokenise(tokenizer, sentences(4)[0]).batch(np.arange(4))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    for each in ("one", "other"):
        torch.testing.assert_close(loaded(**batch, task=each).logits, model(**batch, task=each).logits)
