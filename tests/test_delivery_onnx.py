"""A graph gives what the model gives: at any batch and length, in an environment that has never seen torch."""

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
from heads import CASES, LABELS

from headhunt.data.task import Task
from headhunt.delivery.onnx import export as onnx
from headhunt.delivery.onnx import runtime
from headhunt.errors import DataError, ModelError
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import build, load_tokenizer, output_of
from headhunt.predictor import Predictor
from headhunt.run.task import save_task
from headhunt.spec import Recipe, Spec
from headhunt.training.tokens import SpecialTokens

pytestmark = pytest.mark.xdist_group("onnx")  # one process exports, one environment is made

PAIR = Head(pooling="mean", siamese="concat")
# What the contract suite does not have: (family, head, pair, problem_type, recipe)
OTHERS = {
    "labels": ("bert", Head(), False, "multi_label_classification", Recipe(max_length=60)),
    "number": ("bert", Head(pooling="mean"), False, "regression", Recipe(max_length=60)),
    "middle": ("bert", Head(), False, "single_label_classification", Recipe(max_length=13, truncation="middle")),
    "long-pairs": (
        "bert",
        PAIR,
        True,
        "single_label_classification",
        Recipe(max_length=64),
    ),  # joined they are longer than the encoder
    "roberta": ("roberta", PAIR, True, "single_label_classification", Recipe(max_length=40)),
    "modernbert": ("modernbert", Head(), True, "regression", Recipe(max_length=40)),
    "distilbert": ("distilbert", Head(), False, "multi_label_classification", Recipe(max_length=40)),
    "albert": ("albert", Head(layers="mix"), True, "single_label_classification", Recipe(max_length=40)),
    "electra": ("electra", Head(), True, "single_label_classification", Recipe(max_length=40)),
}
FEW = ("plain", "labels", "number", "long-pairs", "calibrated")
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


def made(encoders, name: str) -> Predictor:
    """A predictor whose weights are large enough to make any difference visible."""
    family, (head, pair), problem_type, recipe = (
        "bert",
        CASES.get(name, (Head(), False)),
        "single_label_classification",
        Recipe(max_length=60),
    )
    if name in OTHERS:
        family, head, pair, problem_type, recipe = OTHERS[name]
    encoder = encoders(family)
    tokenizer = load_tokenizer(encoder)
    labels = {"single_label_classification": LABELS, "multi_label_classification": ("x", "y|z", "ü"), "regression": ()}[
        problem_type
    ]
    between = SpecialTokens.of(tokenizer, pair=True).between
    model = build(encoder, head, problem_type=problem_type, labels=labels, separators=between, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    spec = Spec(encoder=encoder, head=head, recipe=recipe)
    predictor = Predictor(
        model, tokenizer, problem_type=problem_type, labels=labels, pair=pair, spec=spec, precision="fp32"
    )
    if name == "calibrated":  # and evenly undecided, so that labels after its answers are of both classes
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
    """A predictor and the folder it was exported to, by name; each made once."""
    done: dict[str, tuple[Predictor, Path, onnx.Export]] = {}

    def get(name: str) -> tuple[Predictor, Path, onnx.Export]:
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            predictor = made(encoders, name)
            predictor.save(folder / "model")
            done[name] = predictor, folder / "out", onnx.export(folder / "model", folder / "out")
        return done[name]

    return get


@pytest.fixture(scope="session")
def bare(tmp_path_factory) -> str:
    """A Python that has what predict.py asks for and nothing of ours."""
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
for work in json.load(open(sys.argv[1])):
    spec = importlib.util.spec_from_file_location("predict", work["folder"] + "/predict.py")
    predict = importlib.util.module_from_spec(spec)
    sys.modules["predict"] = predict
    spec.loader.exec_module(predict)
    model = predict.Model(work["folder"], threads=1)
    for batch in (1, 3, 64):
        np.save(f"{work['folder']}/{batch}.npy", model.outputs(work["texts"], work["texts_b"], batch=batch))
    json.dump(model.predict(work["texts"], work["texts_b"]), open(work["folder"] + "/answers.json", "w"))
"""


def check_outside(names, exported, bare, tmp_path) -> None:
    work = []
    for name in names:
        predictor, folder, _ = exported(name)
        texts, texts_b = inputs(predictor)
        work.append({"folder": str(folder), "texts": texts, "texts_b": texts_b})
    (tmp_path / "work.json").write_text(json.dumps(work))
    (tmp_path / "outside.py").write_text(OUTSIDE)
    command = [bare, "-I", str(tmp_path / "outside.py"), str(tmp_path / "work.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    for name, given in zip(names, work, strict=True):
        predictor, folder, _ = exported(name)
        expected = predictor.outputs(given["texts"], given["texts_b"])
        for batch in (1, 3, 64):
            found = np.load(folder / f"{batch}.npy")
            assert found.shape == expected.shape and found.dtype == np.float32
            assert np.abs(found - expected).max() < 1e-4, (name, batch)
        answers = json.loads((folder / "answers.json").read_text())
        for ours, theirs in zip(answers, predictor.predict(given["texts"], given["texts_b"]), strict=True):
            assert ours.keys() == vars(theirs).keys()
            if predictor.problem_type == "regression":
                assert ours["label"] == pytest.approx(theirs.label, abs=1e-4)
                assert (ours["probability"], ours["probabilities"]) == (None, {})
            else:
                assert ours["label"] == theirs.label, name
                assert ours["probabilities"] == pytest.approx(theirs.probabilities, abs=1e-4)
                assert ours["probability"] == pytest.approx(theirs.probability, abs=1e-4)


def test_a_graph_gives_the_same_where_there_is_no_torch(exported, bare, tmp_path):
    check_outside(FEW, exported, bare, tmp_path)


@pytest.mark.slow
def test_every_head_pair_mode_and_family_gives_the_same_where_there_is_no_torch(exported, bare, tmp_path):
    check_outside([name for name in [*CASES, *OTHERS] if name not in FEW], exported, bare, tmp_path)


# ------------------------------------------------------------------------------------------------ what is written


def test_what_is_written(exported):
    predictor, folder, done = exported("long-pairs")
    assert {"model.onnx", "tokenizer.json", "headhunt.json", "predict.py"} <= {x.name for x in folder.iterdir()}
    assert done.difference < 1e-5 and done.texts == len(onnx.SENTENCES) and done.pair and done.int8 is None
    assert done.bytes == (folder / "model.onnx").stat().st_size
    card = json.loads((folder / "headhunt.json").read_text())
    assert card["onnx"] == {"difference": done.difference, "int8": None}
    assert card["labels"] == list(LABELS) and card["inputs"] == ["input_ids", "attention_mask"] and card["each"]
    assert [x.name for x in folder.parent.iterdir() if x.name.startswith(".")] == []
    model = runtime.Model(folder)
    assert [node.shape for node in model.session.get_inputs()] == [["batch", "tokens"]] * 2
    assert predictor.model.base_model.config._attn_implementation == "sdpa"


def test_a_graph_tells_nothing_of_the_machine_that_made_it(exported):
    for name in ("plain", "long-pairs"):
        content = (exported(name)[1] / "model.onnx").read_bytes()
        assert str(Path(onnx.__file__).parents[2]).encode() not in content
        assert b"site-packages" not in content and b".py" not in content


def test_predict_py_is_the_runtime_and_asks_for_three_packages():
    imports = re.findall(r"^(?:import|from) (\w+)", Path(runtime.__file__).read_text(), re.MULTILINE)
    assert {name for name in imports if name not in sys.stdlib_module_names} == {"numpy", "onnxruntime", "tokenizers"}


def test_a_folder_appears_whole_or_not_at_all(exported, tmp_path, monkeypatch):
    source = exported("plain")[1].parent / "model"
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(ModelError, match=r"must be within -1 .* Nothing was written"):
        onnx.export(source, tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(ModelError, match="has something in it"):
        onnx.export(source, tmp_path / "full")
    assert [x.name for x in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_a_graph_that_is_wrong_is_refused(exported, tmp_path, monkeypatch):
    """The comparison is what stands between a bad exporter and the user: other weights than the model's are found."""
    predictor, folder, _ = exported("plain")
    other = exported("calibrated")[1]
    shutil.copytree(folder, tmp_path / "mixed")
    shutil.copy(other / "model.onnx", tmp_path / "mixed")
    assert onnx.compare(predictor, runtime.Model(tmp_path / "mixed"), NASTY, None) > 0.01
    card = json.loads((folder / "headhunt.json").read_text())
    (tmp_path / "mixed" / "headhunt.json").write_text(json.dumps({**card, "max_length": 20}))
    with pytest.raises(ModelError, match="same tokens"):
        onnx.compare(predictor, runtime.Model(tmp_path / "mixed"), NASTY, None)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxscript" else True)
    with pytest.raises(ModelError, match=r'needs onnxscript, .* "headhunt\[onnx\]"'):
        onnx.load_runtime()


# ------------------------------------------------------------------------------------------------ 8 bits


@pytest.fixture
def rows(exported, tmp_path) -> Path:
    """Rows labelled with what the model in 32 bits says of them."""
    predictor, texts = exported("calibrated")[0], sentences(60, seed=8)[0]
    lines = [("text", "label"), *((text, x.label) for text, x in zip(texts, predictor.predict(texts), strict=True))]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return tmp_path / "rows.csv"


def test_8_bits_are_judged_by_score_and_taken_or_refused(exported, rows, tmp_path):
    _, folder, full = exported("calibrated")
    source = folder.parent / "model"
    taken = onnx.export(source, tmp_path / "taken", int8=True, data=rows, max_loss=100)
    assert taken.int8 and taken.int8.accepted and taken.int8.fp32 == 1.0 and taken.int8.rows == 60
    assert taken.int8.loss == pytest.approx(100 * (1 - taken.int8.int8))
    assert taken.texts == len(onnx.SENTENCES) + 60, "logits are compared on the task's own texts"
    content = (tmp_path / "taken" / "model.onnx").read_bytes()
    assert b"MatMulInteger" in content or b"DynamicQuantizeLinear" in content
    assert taken.bytes == len(content)
    refused = onnx.export(source, tmp_path / "refused", int8=True, data=rows, max_loss=-1)
    assert refused.int8 and not refused.int8.accepted and refused.int8.int8 == taken.int8.int8
    assert (tmp_path / "refused" / "model.onnx").read_bytes() == (folder / "model.onnx").read_bytes()
    names = {"model.onnx", "tokenizer.json", "headhunt.json", "predict.py"}
    assert (
        {x.name for x in (tmp_path / "taken").iterdir()} == {x.name for x in (tmp_path / "refused").iterdir()} == names
    )
    assert full.bytes == refused.bytes
    card = json.loads((tmp_path / "taken" / "headhunt.json").read_text())
    assert card["onnx"]["int8"] == asdict(taken.int8)


def test_8_bits_need_labelled_rows(exported, rows, tmp_path):
    source = exported("calibrated")[1].parent / "model"
    with pytest.raises(ModelError, match=r"labelled rows; found none .* --data FILE"):
        onnx.export(source, tmp_path / "out", int8=True)
    (tmp_path / "texts.csv").write_text("text\ngood\nbad\n")
    with pytest.raises(DataError, match="column"):
        onnx.export(source, tmp_path / "out", int8=True, data=tmp_path / "texts.csv")
    assert not (tmp_path / "out").exists()


def test_8_bits_are_judged_on_a_runs_validation_rows_and_never_on_its_test_rows(exported, rows, tmp_path):
    predictor = exported("calibrated")[0]
    (tmp_path / "data").mkdir()
    lines = rows.read_text().splitlines()
    for name, part in (("train", lines[1:21]), ("validation", lines[21:41]), ("test", lines[41:])):
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join([lines[0], *part]) + "\n")
    save_task(Task.load(tmp_path / "data"), tmp_path / "run" / "task")
    for file in (tmp_path / "run" / "task").glob("test.*"):
        file.unlink()
    predictor.save(tmp_path / "run" / "model")
    found, source = onnx.labelled_rows(predictor, tmp_path / "run" / "model", None, {})
    assert len(found) == 20 and "validation" in source and found.texts()[0] == lines[21].split(",")[0]


# ------------------------------------------------------------------------------------------------ the runtime


@pytest.mark.parametrize("name", ["plain", "cross", "siamese-cosine"])
@pytest.mark.parametrize("truncation", ["end", "middle"])
@pytest.mark.parametrize("max_length", [8, 9, 14, 60])
def test_texts_are_cut_into_the_same_tokens(encoders, exported, tmp_path, name, truncation, max_length):
    predictor, folder = made(encoders, name), tmp_path / "out"
    check_tokens(predictor, exported("plain")[1], folder, truncation, max_length)


@pytest.mark.real
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("truncation", ["end", "middle"])
def test_texts_are_cut_into_the_same_tokens_by_a_real_tokenizer(minilm, exported, tmp_path, pair, truncation):
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
    onnx.write_card(predictor, folder / "headhunt.json", ["input_ids"])
    shutil.copy(graph / "model.onnx", folder)
    texts = [*NASTY, *(" ".join(WORDS[:n]) for n in range(1, 20))]
    others = [*texts[7:], *texts[:7]] if predictor.pair else None
    tokens, rows = predictor.tokenise(texts, others), runtime.Model(folder, threads=1).encode(texts, others)
    types = tokens.batch(np.arange(len(texts))).get("token_type_ids")
    assert types is not None
    for i, row in enumerate(rows):
        assert row.ids == tokens.row(i).tolist() and len(row) == len(row.ids), texts[i]
        assert [int(j >= row.second) for j in range(len(row))] == types[i, : len(row)].tolist()


def test_answers_are_finite_however_large_the_logits(exported, monkeypatch):
    for name in ("plain", "labels"):
        model = runtime.Model(exported(name)[1])
        huge = np.array([[1e30, -1e30, 0], [-1e4, -1e4, -1e4], [90, 89, 88]], np.float32)[:, : len(model.labels)]
        monkeypatch.setattr(model, "logits", lambda rows, huge=huge: huge)
        found = model.run([None, None, None])  # type: ignore[list-item]
        logits = torch.from_numpy(huge)
        expected = logits.softmax(-1) if name == "plain" else logits.sigmoid()
        assert np.abs(found - expected.numpy()).max() < 1e-6


def test_the_runtime_refuses_what_means_nothing(exported):
    one, two = runtime.Model(exported("plain")[1]), runtime.Model(exported("long-pairs")[1])
    assert one.outputs([]).shape == (0, 2) and two.outputs([], []).shape == (0, 2)
    assert runtime.Model(exported("number")[1]).outputs([]).shape == (0,)
    assert one.predict("good")[0].keys() == {"label", "probability", "probabilities"}
    for model, given, message in [
        (one, (["a"], ["b"]), "takes one text for each answer; found two"),
        (two, (["a"],), "takes two texts for each answer; found one"),
        (two, (["a", "b"], ["c"]), "found 2 and 1"),
        (one, ("a",), "found one string"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.outputs(*given)
    with pytest.raises(ValueError, match="export again"):
        runtime.Model(exported("plain")[1].parent / "model")


def test_predict_py_answers_from_the_command_line(exported, bare):
    def ask(name: str, *texts: str, piped: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [bare, "-I", str(exported(name)[1] / "predict.py"), *texts]
        return subprocess.run(command, input=piped, capture_output=True, text=True, encoding="utf-8")

    def lines(name: str, *given: list[str]) -> list[str]:
        found = exported(name)[0].predict(*given)
        words = ["|".join(x.label) if isinstance(x.label, list) else x.label for x in found]
        return [w if x.probability is None else f"{w}\t{x.probability:.4f}" for w, x in zip(words, found, strict=True)]

    texts = [text for text in NASTY if "\n" not in text]
    done = ask("plain", piped="\ufeff" + "".join(text + "\r\n" for text in texts))
    assert (done.stderr, done.stdout.splitlines()) == ("", lines("plain", texts))
    assert ask("plain", "good film", "bad").stdout.splitlines() == lines("plain", ["good film", "bad"])
    assert ask("labels", "good").stdout.splitlines() == lines("labels", ["good"])
    assert float(ask("number", "good").stdout) == pytest.approx(
        exported("number")[0].predict("good")[0].label, abs=1e-4
    )
    pairs = lines("long-pairs", ["good", "a"], ["bad", "film"])
    assert ask("long-pairs", "good", "bad", "a", "film").stdout.splitlines() == pairs
    assert ask("long-pairs", piped="good\tbad\na\tfilm\n").stdout.splitlines() == pairs
    for done, message in [
        (ask("long-pairs", "one"), "even number of texts; found 1"),
        (ask("long-pairs", piped="a\tb\nc\n"), "line 2 has 1"),
    ]:
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------ the command


def test_the_command(exported, rows, tmp_path):
    from typer.testing import CliRunner

    from headhunt.cli import app

    source = str(exported("calibrated")[1].parent / "model")
    out = str(tmp_path / "out")
    done = CliRunner().invoke(app, ["export", source, "--onnx", out, "--data", str(rows), "--int8", "--max-loss", "-1"])
    assert done.exit_code == 2, done.output
    assert re.search(r"logits differ from torch's by at most \d\.\de-\d\d, over 69 texts", done.output)
    assert re.search(r"accuracy [\d.]+ in 8 bits, 100.00 before, on 60 rows", done.output)
    assert "must not cost more than -1 points; they cost" in done.output and "in 32 bits" in done.output
    assert runtime.Model(out).predict("good")
    again = CliRunner().invoke(app, ["export", source, "--onnx", out])
    assert again.exit_code == 2 and "has something in it" in again.output
