"""ONNX exports predict as the model does, at any batch size and length, without torch."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import WORDS, sentences
from ensembles import CASES as ENSEMBLES
from ensembles import make_members
from heads import CASES, LABELS, solve_output
from multitask import make_predictor as make_tasks_predictor

from headhunt.data import load_labelled
from headhunt.data.task import Task
from headhunt.delivery.onnx import export as onnx
from headhunt.delivery.onnx import runtime
from headhunt.engine.ensemble import join
from headhunt.errors import DataError, ModelError
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import build, output_of
from headhunt.modeling.pretrained import load_tokenizer
from headhunt.predictor import Predictor
from headhunt.run.task import save_task
from headhunt.spec import Recipe, Spec, solved
from headhunt.training.tokens import SpecialTokens

pytestmark = pytest.mark.xdist_group("onnx")  # exports and the environment are made once

SOLVED_HEAD, SOLVED_RECIPE = solved("any").head, Recipe(solver="ridge", max_length=60)
PAIR = Head(pooling="mean", siamese="concat")
CLASSES = "single_label_classification"
# Cases that the contract suite does not have: (family, head, pair, problem type, recipe)
OTHERS = {
    "labels": ("bert", Head(), False, "multi_label_classification", Recipe(max_length=60)),
    "thresholds": ("bert", Head(), False, "multi_label_classification", Recipe(max_length=60)),
    "number": ("bert", Head(pooling="mean"), False, "regression", Recipe(max_length=60)),
    "solved-thresholds": ("bert", SOLVED_HEAD, False, "multi_label_classification", SOLVED_RECIPE),
    "solved-number": ("bert", SOLVED_HEAD, False, "regression", SOLVED_RECIPE),
    "middle": ("bert", Head(), False, "single_label_classification", Recipe(max_length=13, truncation="middle")),
    "solved-windows": ("roberta", replace(SOLVED_HEAD, windows="max"), False, CLASSES, Recipe(max_length=24)),
    # Joined, these pairs are longer than the encoder's positions.
    "long-pairs": ("bert", PAIR, True, "single_label_classification", Recipe(max_length=64)),
    "roberta": ("roberta", PAIR, True, "single_label_classification", Recipe(max_length=40)),
    "modernbert": ("modernbert", Head(), True, "regression", Recipe(max_length=40)),
    "distilbert": ("distilbert", Head(), False, "multi_label_classification", Recipe(max_length=40)),
    "albert": ("albert", Head(layers="mix"), True, "single_label_classification", Recipe(max_length=40)),
    "electra": ("electra", Head(), True, "single_label_classification", Recipe(max_length=40)),
}
FEW = ("plain", "thresholds", "number", "long-pairs", "solved-pair", "ensemble", "windows")
# Ensembles of other problem types than the first one: (case, problem type)
ENSEMBLES_OF = {
    f"{case}-{problem_type}": (case, problem_type)
    for case in ("ensemble", "ensemble-pair-cuts")
    for problem_type in ("multi_label_classification", "regression")
}
NASTY = [
    "",
    " ",
    "good",
    "good [SEP] bad [CLS] [PAD] [UNK] </s> <s>",
    "the film was\tnot\ngood\x00 at\u200ball\ufeff",
    "Ünïcödé 一句话 🙂 🏳️‍🌈 ﷽ e\u0301 é",
    "the " * 300,
    " ".join(WORDS * 3),
]


def make_predictor(encoders, name: str) -> Predictor:
    """Return a predictor with weights large enough to make any difference visible."""
    if name in ENSEMBLES or name in ENSEMBLES_OF:
        return join(make_members(encoders(), *ENSEMBLES_OF.get(name, (name,))))
    head, pair = CASES.get(name, (Head(), False))
    family, problem_type, recipe = "bert", "single_label_classification", Recipe(max_length=60)
    if head.windows:
        recipe = Recipe(max_length=16)
    if name in OTHERS:
        family, head, pair, problem_type, recipe = OTHERS[name]
    encoder = encoders(family)
    tokenizer = load_tokenizer(encoder)
    labels = {"single_label_classification": LABELS, "multi_label_classification": ("x", "y|z", "ü"), "regression": ()}[
        problem_type
    ]
    between = SpecialTokens.of(tokenizer, pair=True).between
    model = build(encoder, head, problem_type=problem_type, labels=labels, separators=between, seed=1)
    model.config.window = [recipe.max_length, 1, 1] if head.windows else None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    if name.startswith("solved"):
        solve_output(model.eval(), tokenizer, problem_type, pair)
    spec = Spec(encoder=encoder, head=head, recipe=recipe)
    predictor = Predictor(
        model, tokenizer, problem_type=problem_type, labels=labels, pair=pair, spec=spec, precision="fp32"
    )
    if name.endswith("thresholds"):  # between the outputs of different texts, and far from 0.5
        last = output_of(predictor.model)
        with torch.no_grad():
            last.bias.add_(torch.tensor([-2.0, 2.0, -3.0]))
        ordered = np.sort(predictor.outputs(inputs(predictor)[0]), axis=0)
        places = np.diff(ordered, axis=0).argmax(0)
        predictor.thresholds = [(ordered[at, i] + ordered[at + 1, i]) / 2 for i, at in enumerate(places.tolist())]
    if name == "calibrated":  # and undecided on average, so that it predicts both classes
        odds = np.log(predictor.outputs(sentences(60, seed=8)[0]))
        last = output_of(predictor.model)
        with torch.no_grad():
            last.bias[0] -= float(np.median(odds[:, 0] - odds[:, 1]))
            last.weight.div_(0.05)
            last.bias.div_(0.05)
    return predictor


def inputs(predictor: Predictor) -> tuple[list[str], list[str] | None]:
    texts = [*NASTY, *sentences(9, seed=4)[0]]
    return texts, texts[5:] + texts[:5] if predictor.pair else None


@pytest.fixture(scope="session")
def exported(encoders, tmp_path_factory):
    """Return a predictor and its export by name; each is made once."""
    done: dict[str, tuple[Predictor, Path, onnx.Export]] = {}

    def get(name: str) -> tuple[Predictor, Path, onnx.Export]:
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            predictor = make_predictor(encoders, name)
            predictor.save(folder / "model")
            done[name] = predictor, folder / "out", onnx.export(folder / "model", folder / "out")
        return done[name]

    return get


@pytest.fixture(scope="session")
def bare(tmp_path_factory) -> str:
    """Return a Python that has only the packages predict.py needs."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin/python")
    needs = [f"{name}=={version(name)}" for name in ("onnxruntime", "tokenizers", "numpy")]
    done = subprocess.run([python, "-m", "pip", "install", "-q", *needs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return python


OUTSIDE = """
import importlib.util, json, sys
import numpy as np
for name in ("torch", "transformers", "headhunt", "onnx"):
    assert importlib.util.find_spec(name) is None, name
for case in json.load(open(sys.argv[1])):
    spec = importlib.util.spec_from_file_location("predict", case["folder"] + "/predict.py")
    predict = importlib.util.module_from_spec(spec)
    sys.modules["predict"] = predict
    spec.loader.exec_module(predict)
    model = predict.Model(case["folder"], threads=1)
    for batch in (1, 3, 64):
        np.save(f"{case['folder']}/{batch}.npy", model.outputs(case["texts"], case["texts_b"], batch=batch))
    json.dump(model.predict(case["texts"], case["texts_b"]), open(case["folder"] + "/predictions.json", "w"))
"""


def check_without_torch(names, exported, bare, tmp_path) -> None:
    cases = []
    for name in names:
        predictor, folder, _ = exported(name)
        texts, texts_b = inputs(predictor)
        cases.append({"folder": str(folder), "texts": texts, "texts_b": texts_b})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    (tmp_path / "outside.py").write_text(OUTSIDE)
    command = [bare, "-I", str(tmp_path / "outside.py"), str(tmp_path / "cases.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    for name, case in zip(names, cases, strict=True):
        predictor, folder, _ = exported(name)
        expected = predictor.outputs(case["texts"], case["texts_b"])
        for batch in (1, 3, 64):
            outputs = np.load(folder / f"{batch}.npy")
            assert outputs.shape == expected.shape and outputs.dtype == np.float32
            assert np.abs(outputs - expected).max() < 1e-4, (name, batch)
        predictions = json.loads((folder / "predictions.json").read_text())
        for prediction, original in zip(predictions, predictor.predict(case["texts"], case["texts_b"]), strict=True):
            assert prediction.keys() == vars(original).keys() - {"rejected"}  # none of these models rejects texts
            if predictor.problem_type == "regression":
                assert prediction["label"] == pytest.approx(original.label, abs=1e-4)
                assert (prediction["probability"], prediction["probabilities"]) == (None, {})
            else:
                assert prediction["label"] == original.label, name
                assert prediction["probabilities"] == pytest.approx(original.probabilities, abs=1e-4)
                assert prediction["probability"] == pytest.approx(original.probability, abs=1e-4)


def test_export_predicts_as_the_model_without_torch(exported, bare, tmp_path):
    check_without_torch(FEW, exported, bare, tmp_path)


@pytest.mark.slow
def test_export_of_every_head_and_family_predicts_as_the_model_without_torch(exported, bare, tmp_path):
    check_without_torch(
        [name for name in [*CASES, *OTHERS, *ENSEMBLES, *ENSEMBLES_OF] if name not in FEW], exported, bare, tmp_path
    )


# ------------------------------------------------------------------------------------------------ what is written


def test_export_writes_graph_tokenizer_metadata_and_runtime(exported):
    predictor, folder, done = exported("long-pairs")
    assert {"model.onnx", "tokenizer.json", "headhunt.json", "predict.py"} <= {x.name for x in folder.iterdir()}
    assert done.difference < 1e-5 and done.texts == len(onnx.SENTENCES) and done.pair and done.int8 is None
    assert done.bytes == (folder / "model.onnx").stat().st_size
    metadata = json.loads((folder / "headhunt.json").read_text())
    assert metadata["onnx"] == {"difference": done.difference, "int8": None}
    assert metadata["labels"] == list(LABELS) and metadata["inputs"] == ["input_ids", "attention_mask"]
    assert metadata["siamese"]
    assert [x.name for x in folder.parent.iterdir() if x.name.startswith(".")] == []
    model = runtime.Model(folder)
    assert [node.shape for node in model.session.get_inputs()] == [["batch", "tokens"]] * 2
    assert predictor.model.base_model.config._attn_implementation == "sdpa"


def test_export_decides_by_the_thresholds_of_the_model(exported, tmp_path):
    predictor, folder, _ = exported("thresholds")
    assert json.loads((folder / "headhunt.json").read_text())["thresholds"] == list(predictor.thresholds)
    assert np.abs(np.array(predictor.thresholds) - 0.5).max() > 0.2
    model, (texts, _) = runtime.Model(folder), inputs(predictor)
    assert model.thresholds == list(predictor.thresholds)
    labels = [prediction["label"] for prediction in model.predict(texts)]
    assert labels == [prediction.label for prediction in predictor.predict(texts)]
    model.thresholds = None
    assert labels != [prediction["label"] for prediction in model.predict(texts)]
    assert np.abs(model.outputs(texts) - predictor.outputs(texts)).max() < 1e-4


def test_export_score_depends_on_the_thresholds(exported):
    predictor, folder, _ = exported("thresholds")
    model, texts = runtime.Model(folder), [text for text in inputs(predictor)[0] if text.strip()]
    chosen = [prediction["label"] for prediction in model.predict(texts)]
    rows = load_labelled(
        (texts, chosen), problem_type=predictor.problem_type, labels=predictor.labels, pair=predictor.pair
    )
    assert onnx.score(model, rows) == 1
    model.thresholds = None
    assert onnx.score(model, rows) < 1


@pytest.mark.parametrize("thresholds", [[0.5], [0.5, 0.5, 1.0], [0.5, 0.5, float("nan")], "abc", 0.5])
def test_runtime_refuses_invalid_thresholds(exported, thresholds, tmp_path):
    _, folder, _ = exported("thresholds")
    metadata = json.loads((folder / "headhunt.json").read_text())
    (tmp_path / "headhunt.json").write_text(json.dumps({**metadata, "thresholds": thresholds}))
    with pytest.raises(ValueError, match=r"must be 3 numbers between 0 and 1; export again|not JSON compliant"):
        runtime.Metadata.read(tmp_path / "headhunt.json")


def test_graph_has_no_paths_of_this_machine(exported):
    for name in ("plain", "long-pairs"):
        content = (exported(name)[1] / "model.onnx").read_bytes()
        assert str(Path(onnx.__file__).parents[2]).encode() not in content
        assert b"site-packages" not in content and b".py" not in content


def test_runtime_imports_only_three_packages():
    imports = re.findall(r"^(?:import|from) (\w+)", Path(runtime.__file__).read_text(), re.MULTILINE)
    assert {name for name in imports if name not in sys.stdlib_module_names} == {"numpy", "onnxruntime", "tokenizers"}


def test_export_writes_a_complete_folder_or_nothing(exported, tmp_path, monkeypatch):
    source = exported("plain")[1].parent / "model"
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(ModelError, match=r"must be within -1 .* Nothing was written"):
        onnx.export(source, tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(ModelError, match="is not empty"):
        onnx.export(source, tmp_path / "full")
    assert [x.name for x in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_compare_detects_other_weights_and_tokens(exported, tmp_path, monkeypatch):
    """Compare an export with weights, then with a maximum length, that are not the model's."""
    predictor, folder, _ = exported("plain")
    other = exported("calibrated")[1]
    shutil.copytree(folder, tmp_path / "mixed")
    shutil.copy(other / "model.onnx", tmp_path / "mixed")
    assert onnx.compare(predictor, runtime.Model(tmp_path / "mixed"), NASTY, None) > 0.01
    metadata = json.loads((folder / "headhunt.json").read_text())
    (tmp_path / "mixed" / "headhunt.json").write_text(json.dumps({**metadata, "max_length": 20}))
    with pytest.raises(ModelError, match="same tokens"):
        onnx.compare(predictor, runtime.Model(tmp_path / "mixed"), NASTY, None)


def test_load_runtime_names_missing_packages(monkeypatch):
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxscript" else True)
    with pytest.raises(ModelError, match=r'needs onnxscript, .* "headhunt\[onnx\]"'):
        onnx.load_runtime()


# ------------------------------------------------------------------------------------------------ 8 bits


def test_quantize_keeps_the_last_layer_of_every_member_in_32_bits(exported, tmp_path):
    import onnx as onnx_format

    folder = exported("ensemble")[1]
    shutil.copy(folder / "model.onnx", tmp_path)
    onnx.quantize(tmp_path / "model.onnx", tmp_path / "full.onnx")
    nodes = onnx_format.load(tmp_path / "model.onnx").graph.node
    products = [node.op_type for node in nodes if "MatMul" in node.op_type or node.op_type == "Gemm"]
    assert sum("Integer" in name for name in products) > 10
    assert len(onnx.last_products(onnx_format.load(tmp_path / "full.onnx").graph)) == 3
    assert len(onnx.last_products(onnx_format.load(tmp_path / "model.onnx").graph)) == 3


@pytest.fixture
def rows(exported, tmp_path) -> Path:
    """Write rows labelled with the predictions of the model in 32 bits."""
    predictor, texts = exported("calibrated")[0], sentences(60, seed=8)[0]
    lines = [("text", "label"), *((text, x.label) for text, x in zip(texts, predictor.predict(texts), strict=True))]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return tmp_path / "rows.csv"


def test_int8_is_accepted_or_refused_by_its_score(exported, rows, tmp_path):
    _, folder, full = exported("calibrated")
    source = folder.parent / "model"
    accepted = onnx.export(source, tmp_path / "accepted", int8=True, data=rows, max_loss=100)
    assert accepted.int8 and accepted.int8.accepted and accepted.int8.fp32 == 1.0 and accepted.int8.rows == 60
    assert accepted.int8.loss == pytest.approx(100 * (1 - accepted.int8.int8))
    assert accepted.texts == len(onnx.SENTENCES) + 60, "logits are compared on the task's own texts"
    content = (tmp_path / "accepted" / "model.onnx").read_bytes()
    assert b"MatMulInteger" in content or b"DynamicQuantizeLinear" in content
    assert accepted.bytes == len(content)
    refused = onnx.export(source, tmp_path / "refused", int8=True, data=rows, max_loss=-1)
    assert refused.int8 and not refused.int8.accepted and refused.int8.int8 == accepted.int8.int8
    assert (tmp_path / "refused" / "model.onnx").read_bytes() == (folder / "model.onnx").read_bytes()
    names = {"model.onnx", "tokenizer.json", "headhunt.json", "predict.py"}
    assert (
        {x.name for x in (tmp_path / "accepted").iterdir()}
        == {x.name for x in (tmp_path / "refused").iterdir()}
        == names
    )
    assert full.bytes == refused.bytes
    metadata = json.loads((tmp_path / "accepted" / "headhunt.json").read_text())
    assert metadata["onnx"]["int8"] == asdict(accepted.int8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["solved", "solved-pair"])
def test_int8_keeps_the_output_layer_of_a_solved_head(exported, name, tmp_path):
    """The terms of a solved output layer are large and nearly cancel: 8 bits are not enough for them."""
    import onnx as onnx_format

    predictor, folder, _ = exported(name)
    texts = sentences(60, seed=8)[0]
    texts_b = [text if i % 2 else texts[i - 5] for i, text in enumerate(texts)] if predictor.pair else None
    labels = [prediction.label for prediction in predictor.predict(texts, texts_b)]
    rows = (texts, texts_b, labels) if texts_b else (texts, labels)
    done = onnx.export(folder.parent / "model", tmp_path / "out", int8=True, data=rows, max_loss=100)
    assert done.int8 and done.int8.fp32 == 1.0 and len(set(labels)) == 2
    graph = onnx_format.load(tmp_path / "out" / "model.onnx").graph
    weight = output_of(predictor.model).weight.detach().numpy()
    stored = [onnx_format.numpy_helper.to_array(x) for x in graph.initializer]
    same = [x for x in stored if x.dtype == np.float32 and x.size == weight.size]
    assert any(np.array_equal(x if x.shape == weight.shape else x.T, weight) for x in same), "kept in 32 bits"
    outputs, expected = runtime.Model(tmp_path / "out").outputs(texts, texts_b), predictor.outputs(texts, texts_b)
    clear = np.abs(expected[:, 0] - 0.5) > 0.25
    assert clear.sum() > 5 and (outputs.argmax(1) == expected.argmax(1))[clear].mean() > 0.9
    assert done.int8.int8 > 0.8


@pytest.mark.slow
def test_int8_reads_every_window(exported, tmp_path):
    predictor, folder, _ = exported("windows")
    texts = [" ".join(np.random.default_rng(i).choice(WORDS, 2 * i + 1)) for i in range(30)]
    labels = [prediction.label for prediction in predictor.predict(texts)]
    done = onnx.export(folder.parent / "model", tmp_path / "out", int8=True, data=(texts, labels), max_loss=100)
    assert done.int8 and done.int8.accepted and done.int8.fp32 == 1.0
    outputs, expected = runtime.Model(tmp_path / "out").outputs(texts), predictor.outputs(texts)
    assert np.abs(outputs - expected).max() < 0.15 and np.corrcoef(outputs[:, 0], expected[:, 0])[0, 1] > 0.9


def test_int8_needs_labelled_rows(exported, rows, tmp_path):
    source = exported("calibrated")[1].parent / "model"
    with pytest.raises(ModelError, match=r"labelled rows .* found none .* Pass data"):
        onnx.export(source, tmp_path / "out", int8=True)
    (tmp_path / "texts.csv").write_text("text\ngood\nbad\n")
    with pytest.raises(DataError, match="column"):
        onnx.export(source, tmp_path / "out", int8=True, data=tmp_path / "texts.csv")
    assert not (tmp_path / "out").exists()


def test_int8_uses_the_validation_rows_of_a_run_and_never_its_test_rows(exported, rows, tmp_path):
    predictor = exported("calibrated")[0]
    (tmp_path / "data").mkdir()
    lines = rows.read_text().splitlines()
    for name, part in (("train", lines[1:21]), ("validation", lines[21:41]), ("test", lines[41:])):
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join([lines[0], *part]) + "\n")
    save_task(Task.load(tmp_path / "data"), tmp_path / "run" / "task")
    for file in (tmp_path / "run" / "task").glob("test.*"):
        file.unlink()
    predictor.save(tmp_path / "run" / "model")
    split, source = onnx.labelled_rows(predictor, tmp_path / "run" / "model", None, {})
    assert len(split) == 20 and "validation" in source and split.texts()[0] == lines[21].split(",")[0]


# ------------------------------------------------------------------------------------------------ the runtime


@pytest.mark.parametrize("name", ["plain", "cross", "siamese-cosine"])
@pytest.mark.parametrize("truncation", ["end", "middle"])
@pytest.mark.parametrize("max_length", [8, 9, 14, 60])
def test_runtime_gives_the_tokens_of_the_predictor(encoders, exported, tmp_path, name, truncation, max_length):
    predictor, folder = make_predictor(encoders, name), tmp_path / "out"
    check_tokens(predictor, exported("plain")[1], folder, truncation, max_length)


@pytest.mark.real
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("truncation", ["end", "middle"])
def test_runtime_gives_the_tokens_of_a_real_tokenizer(minilm, exported, tmp_path, pair, truncation):
    tokenizer = load_tokenizer(minilm)
    model = exported("plain")[0].model
    predictor = Predictor(
        model,
        tokenizer,
        problem_type="single_label_classification",
        labels=LABELS,
        pair=pair,
        spec=Spec(encoder=minilm),
    )
    for max_length in (8, 33, 128):
        check_tokens(predictor, exported("plain")[1], tmp_path / str(max_length), truncation, max_length)


def check_tokens(predictor: Predictor, graph: Path, folder: Path, truncation: str, max_length: int) -> None:
    recipe = Recipe(max_length=max_length, truncation=truncation)
    predictor.recipe, predictor.spec = recipe, replace(predictor.spec, recipe=recipe)
    folder.mkdir()
    onnx.write_companions(predictor, folder)
    onnx.write_metadata(predictor, folder / "headhunt.json", ["input_ids"])
    shutil.copy(graph / "model.onnx", folder)
    texts = [*NASTY, *(" ".join(WORDS[:n]) for n in range(1, 20))]
    others = [*texts[7:], *texts[:7]] if predictor.pair else None
    tokens, rows = predictor.tokenise(texts, others), runtime.Model(folder, threads=1).encode(texts, others)
    types = tokens.batch(np.arange(len(texts))).get("token_type_ids")
    assert types is not None
    for i, row in enumerate(rows):
        assert row.ids == tokens.row(i).tolist() and len(row) == len(row.ids), texts[i]
        assert [int(j >= row.second) for j in range(len(row))] == types[i, : len(row)].tolist()


def test_runtime_outputs_are_finite_for_large_logits(exported, monkeypatch):
    for name in ("plain", "labels"):
        model = runtime.Model(exported(name)[1])
        huge = np.array([[1e30, -1e30, 0], [-1e4, -1e4, -1e4], [90, 89, 88]], np.float32)[:, : len(model.labels)]
        monkeypatch.setattr(model, "logits", lambda rows, huge=huge: huge)
        outputs = model.run([None, None, None])  # type: ignore[list-item]
        logits = torch.from_numpy(huge)
        expected = logits.softmax(-1) if name == "plain" else logits.sigmoid()
        assert np.abs(outputs - expected.numpy()).max() < 1e-6


def test_runtime_refuses_invalid_texts(exported):
    single, pairs = runtime.Model(exported("plain")[1]), runtime.Model(exported("long-pairs")[1])
    assert single.outputs([]).shape == (0, 2) and pairs.outputs([], []).shape == (0, 2)
    assert runtime.Model(exported("number")[1]).outputs([]).shape == (0,)
    assert single.predict("good")[0].keys() == {"label", "probability", "probabilities"}
    for model, texts, message in [
        (single, (["a"], ["b"]), "takes one text for each prediction; found two"),
        (pairs, (["a"],), "takes two texts for each prediction; found one"),
        (pairs, (["a", "b"], ["c"]), "found 2 and 1"),
        (single, ("a",), "found one string"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.outputs(*texts)
    with pytest.raises(ValueError, match="export again"):
        runtime.Model(exported("plain")[1].parent / "model")


def test_predict_py_prints_predictions(exported, bare):
    def predict(name: str, *texts: str, piped: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [bare, "-I", str(exported(name)[1] / "predict.py"), *texts]
        return subprocess.run(command, input=piped, capture_output=True, text=True, encoding="utf-8")

    def expected_lines(name: str, *texts: list[str]) -> list[str]:
        lines = []
        for prediction in exported(name)[0].predict(*texts):
            label = "|".join(prediction.label) if isinstance(prediction.label, list) else prediction.label
            lines.append(label if prediction.probability is None else f"{label}\t{prediction.probability:.4f}")
        return lines

    texts = [text for text in NASTY if "\n" not in text]
    done = predict("plain", piped="\ufeff" + "".join(text + "\r\n" for text in texts))
    assert (done.stderr, done.stdout.splitlines()) == ("", expected_lines("plain", texts))
    assert predict("plain", "good film", "bad").stdout.splitlines() == expected_lines("plain", ["good film", "bad"])
    assert predict("labels", "good").stdout.splitlines() == expected_lines("labels", ["good"])
    assert float(predict("number", "good").stdout) == pytest.approx(
        exported("number")[0].predict("good")[0].label, abs=1e-4
    )
    pairs = expected_lines("long-pairs", ["good", "a"], ["bad", "film"])
    assert predict("long-pairs", "good", "bad", "a", "film").stdout.splitlines() == pairs
    assert predict("long-pairs", piped="good\tbad\na\tfilm\n").stdout.splitlines() == pairs
    for done, message in [
        (predict("long-pairs", "one"), "even number of texts; found 1"),
        (predict("long-pairs", piped="a\tb\nc\n"), "line 2 has 1"),
    ]:
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------ the command


def test_export_command_reports_differences_and_scores(exported, rows, tmp_path):
    from typer.testing import CliRunner

    from headhunt.cli import app

    source = str(exported("calibrated")[1].parent / "model")
    out = str(tmp_path / "out")
    done = CliRunner().invoke(app, ["export", source, "--onnx", out, "--data", str(rows), "--int8", "--max-loss", "-1"])
    assert done.exit_code == 2, done.output
    assert re.search(
        r"logits differ from torch's by at most \d\.\de-\d\d of the largest logit, or of 1, over 69 texts", done.output
    )
    assert re.search(r"accuracy [\d.]+ in 8 bits, 100.00 before, on 60 rows", done.output)
    assert "must not cost more than -1 points; they cost" in done.output and "in 32 bits" in done.output
    assert runtime.Model(out).predict("good")
    again = CliRunner().invoke(app, ["export", source, "--onnx", out])
    assert again.exit_code == 2 and "has files in it" in again.output


@pytest.mark.parametrize(
    ("layers", "siamese"),
    [(1, None), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, None), (1, "combined")))],
)
def test_graph_of_several_tasks_has_an_output_for_each_and_shared_layers_once(encoders, tmp_path, layers, siamese):
    names = ("mood", "topic", "length") if siamese is None else ("same", "near")
    predictor = make_tasks_predictor(encoders(), head=Head(pooling="mean", siamese=siamese), task_layers=layers)
    folder = predictor.save(tmp_path / "model")
    done = onnx.export(folder, tmp_path / "all", task=names)
    assert done.difference < 1e-3 and done.pair == bool(siamese)
    model = runtime.Model(tmp_path / "all")
    texts, others = NASTY + sentences(9)[0], sentences(17, seed=1)[0]
    found = model.predict(texts, others if siamese else None)
    for name in names:
        expected = predictor.predict(texts, others if siamese else None, task=name)
        for one, other in zip((row[name] for row in found), expected, strict=True):
            assert one["probabilities"] == pytest.approx(other.probabilities, abs=1e-4)
            assert one["label"] == (pytest.approx(other.label, abs=1e-3) if name in ("length", "near") else other.label)
    assert [output.name for output in model.session.get_outputs()] == [f"logits.{name}" for name in names]
    of_a_layer = 8  # products: four of attention's weights, two within it, two of the MLP
    assert count_products(tmp_path / "all" / "model.onnx") == of_a_layer * (2 - layers) + len(names) * (
        of_a_layer * layers + 1
    )
    printed = subprocess.run(
        [sys.executable, tmp_path / "all" / "predict.py", *["a good film"] * (1 + bool(siamese))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split("\t")[0] for line in printed.stdout.splitlines()] == list(names)


def count_products(path: Path) -> int:
    """Return the number of matrix products in a graph."""
    import onnx as library

    graph = library.load(path).graph
    return sum(node.op_type in ("MatMul", "Gemm") for node in graph.node)


def test_tasks_of_one_graph_take_the_same_texts(encoders, tmp_path):
    folder = make_tasks_predictor(encoders(), ("mood", "topic", "same")).save(tmp_path / "model")
    with pytest.raises(ModelError, match=r"one text \(mood, topic\) or all take two \(same\)"):
        onnx.export(folder, tmp_path / "out")
    with pytest.raises(ModelError, match="must be one of mood, topic, same; found 'other'"):
        onnx.export(folder, tmp_path / "out", task=["mood", "other"])
    with pytest.raises(ModelError, match="rows of one task"):
        onnx.export(folder, tmp_path / "out", task=["mood", "topic"], int8=True)
