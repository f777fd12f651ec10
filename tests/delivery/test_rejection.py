"""A model that rejects texts does so from Python, on the command line, as a service and on a corpus."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import succeed
from conftest import sentences
from labelled_rows import write_jsonl
from serving import make_export, start_service_fixture  # noqa: F401

from headhunt import Predictor
from headhunt.delivery.corpus import label_corpus
from headhunt.delivery.onnx.export import write_metadata
from headhunt.delivery.onnx.runtime import Model
from headhunt.errors import ModelError
from headhunt.evaluation import Rejection
from headhunt.sklearn import HeadClassifier

TEXTS = sentences(40, seed=3)[0]


@pytest.fixture(scope="module")
def folders(encoders, tmp_path_factory):
    """Return a saved model that rejects one class and some texts of the others, its export, and what is rejected."""
    folder = tmp_path_factory.mktemp("rejects")
    make_export(encoders(), folder)
    predictor = Predictor.load(folder / "saved")
    outputs = predictor.outputs(TEXTS)
    other = int(np.bincount(outputs.argmax(1)).argmin())
    confident = np.sort(outputs[outputs.argmax(1) != other].max(1))
    predictor.rejection = Rejection(float(confident[len(confident) // 3 - 1 : len(confident) // 3 + 1].mean()))
    if np.bincount(outputs.argmax(1), minlength=2).min():
        predictor.rejection = Rejection(predictor.rejection.threshold, predictor.labels[other])
    predictor.save(folder / "rejecting")
    metadata = folder / "export" / "headhunt.json"
    write_metadata(predictor, metadata, json.loads(metadata.read_text())["inputs"])
    return folder / "rejecting", folder / "export"


def expected_of(folder, precision: str = "auto") -> list[tuple[str | None, bool]]:
    """Return labels and rejections of all texts; an export computes in fp32 on every machine."""
    predictions = Predictor.load(folder, precision=precision).predict(TEXTS)
    found = [(each.label, each.rejected) for each in predictions]
    assert 0 < sum(rejected for _, rejected in found) < len(TEXTS)
    assert all((label is None) == rejected for label, rejected in found)
    assert all(each.probability == max(each.probabilities.values()) for each in predictions)
    return found


def test_rejection_is_saved_in_the_config_and_exported(folders):
    saved, exported = folders
    rejection = Predictor.load(saved).rejection
    assert json.loads((saved / "config.json").read_text())["rejection"]["threshold"] == rejection.threshold
    found = [(row["label"], row["rejected"]) for row in Model(exported).predict(TEXTS)]
    assert found == expected_of(saved, "fp32")


def test_load_refuses_an_invalid_rejection(folders, tmp_path):
    saved = Predictor.load(folders[0]).save(tmp_path / "model")
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "rejection": {"threshold": 2.0}}))
    with pytest.raises(ModelError, match="cannot be loaded: rejection must have a threshold between 0 and 1"):
        Predictor.load(saved)


def test_runtime_refuses_an_invalid_rejection(folders, tmp_path):
    metadata = json.loads((folders[1] / "headhunt.json").read_text())
    for name in ("model.onnx", "tokenizer.json"):
        (tmp_path / name).symlink_to(folders[1] / name)
    (tmp_path / "headhunt.json").write_text(json.dumps({**metadata, "rejection": {"threshold": "high"}}))
    with pytest.raises(ValueError, match="must have a threshold between 0 and 1"):
        Model(tmp_path)


def test_service_marks_rejected_texts(folders, start_service):
    service = start_service(folders[1])
    predictions = service.request(body={"texts": TEXTS})[2]["predictions"]
    assert [(row["label"], row["rejected"]) for row in predictions] == expected_of(folders[0], "fp32")
    schema = service.request(path="/openapi.json")[2]["components"]["schemas"]["Prediction"]
    assert "rejected" in schema["required"] and {"type": "null"} in schema["properties"]["label"]["anyOf"]


def test_corpus_and_command_line_mark_rejected_texts(folders, tmp_path):
    lines = write_jsonl(tmp_path / "texts.jsonl", [[text] for text in TEXTS], ["text"])
    label_corpus(folders[0], str(lines), str(tmp_path / "out"), workers=0)
    table = pq.read_table(tmp_path / "out", columns=["row", "label", "rejected"]).sort_by("row").to_pydict()
    expected = expected_of(folders[0])
    assert list(zip(table["label"], table["rejected"], strict=True)) == expected
    printed = succeed("predict", folders[0], "--input", lines, "--json").splitlines()
    assert [(row["label"], row["rejected"]) for row in map(json.loads, printed)] == expected
    plain = succeed("predict", folders[0], "--input", lines).splitlines()
    assert [line.split("\t")[0] or None for line in plain] == [label for label, _ in expected]


def test_evaluate_scores_the_answers_beside_all_rows(folders, tmp_path):
    labels = sentences(40, seed=3)[1]
    data = write_jsonl(tmp_path / "rows.jsonl", list(zip(TEXTS, labels, strict=True)), ["text", "label"])
    found = json.loads(succeed("evaluate", folders[0], data, "--json"))
    rejection, name = found["rejection"], Predictor.load(folders[0]).rejection.label
    inside = [(each, label) for (each, _), label in zip(expected_of(folders[0]), labels, strict=True) if label != name]
    answers = [(each, label) for each, label in inside if each is not None]
    assert rejection["coverage"] == pytest.approx(len(answers) / len(inside)) and rejection["asked"] is None
    assert rejection["accuracy"] == pytest.approx(np.mean([each == label for each, label in answers]) if answers else 0)
    assert found["rows"] == 40 and found["scores"]["accuracy"]["value"] <= 1
    printed = " ".join(succeed("evaluate", folders[0], data).split())
    assert f"the model answers {rejection['coverage']:.1%} of the rows" in printed
    without = Predictor.load(folders[0])
    without.rejection = None
    assert "rejection" not in json.loads(succeed("evaluate", without.save(tmp_path / "all"), data, "--json"))


def test_classifier_marks_rejected_texts_and_predicts_a_class_for_each(folders, tmp_path):
    rejected = np.array([rejected for _, rejected in expected_of(folders[0])])
    model = HeadClassifier.load(folders[0])
    best = model.classes_[model.predict_proba(TEXTS).argmax(1)]
    assert (model.rejects(TEXTS) == rejected).all()
    for label in (model.predictor_.labels[0], None):
        model.predictor_.rejection = Rejection(model.predictor_.rejection.threshold, label)
        rejected, predicted = model.rejects(TEXTS), model.predict(TEXTS)
        assert (predicted[~rejected] == best[~rejected]).all() and rejected.any() and not rejected.all()
        assert (predicted[rejected] == (best[rejected] if label is None else label)).all()
    model.predictor_.rejection = None
    assert not model.rejects(TEXTS).any() and (model.predict(TEXTS) == best).all()
