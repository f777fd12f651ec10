"""A saved model folder predicts alike without Headhunt and never runs its own code with it."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
import torch
from heads import CASES
from model_folders import CODE, FILES, make_predictor

from headhunt.engine import api
from headhunt.modeling.build import output_of

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
LOAD = """
import json, sys, numpy as np, torch, importlib.util
assert importlib.util.find_spec("headhunt") is None
from transformers import AutoModelForSequenceClassification, pipeline
outputs = {}
for case in json.load(open(sys.argv[1])):
    inputs = {name: torch.tensor(x) for name, x in case["inputs"].items()}
    # A plain head must load without trust_remote_code, any other with it.
    trust = {} if case["native"] else {"trust_remote_code": True}
    model = AutoModelForSequenceClassification.from_pretrained(case["folder"], **trust).eval()
    with torch.no_grad():
        logits = model(**inputs).logits.tolist()
    classify = pipeline("text-classification", case["folder"], device="cpu", **trust)
    text = {"text": "a good film", "text_pair": "it was bad"} if case["pair"] else "a good film"
    scores = {item["label"]: item["score"] for item in classify(text, top_k=None)}
    outputs[case["name"]] = {"logits": logits, "scores": scores}
json.dump(outputs, open(sys.argv[2], "w"))
"""


def test_folder_gives_the_same_logits_without_headhunt(encoders, tmp_path, outside):
    expected, scores, cases = {}, {}, []
    for case, (head, pair) in CASES.items():
        for problem_type in PROBLEM_TYPES:
            name = f"{case}-{problem_type}"
            predictor, batch = make_predictor(encoders(), case, problem_type)
            if case in ("plain", "siamese-mlp-attention"):  # as calibration does, within the last layer
                with torch.no_grad():
                    output_of(predictor.model).weight.div_(1.7)
                    output_of(predictor.model).bias.div_(1.7)
                predictor.facts["temperature"] = 1.7
            folder = predictor.save(tmp_path / name)
            assert {path.name for path in folder.iterdir()} == FILES | (set() if head.plain else CODE), name
            with torch.no_grad():
                expected[name] = predictor.model(**batch).logits.numpy()
            values = predictor.outputs(["a good film"], ["it was bad"] if pair else None)
            scores[name] = dict(zip(predictor.labels or ("score",), values.ravel().tolist(), strict=True))
            inputs = {name: x.tolist() for name, x in batch.items()}
            cases.append({"name": name, "folder": str(folder), "inputs": inputs, "native": head.plain, "pair": pair})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    (tmp_path / "load.py").write_text(LOAD)
    words = [str(tmp_path / name) for name in ("load.py", "cases.json", "outputs.json")]
    done = subprocess.run(
        [outside["OUTSIDE_PYTHON"], *words], env=outside, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = json.loads((tmp_path / "outputs.json").read_text())
    assert len(outputs) == len(CASES) * len(PROBLEM_TYPES)
    for name, logits in expected.items():
        assert np.ptp(logits) > 1e-4, "the outputs must differ between texts"
        assert np.abs(np.array(outputs[name]["logits"]) - logits).max() < 1e-5, name
        assert outputs[name]["scores"] == pytest.approx(scores[name], abs=1e-5), name


@pytest.mark.parametrize("case", ["plain", "conv-blocks", "siamese-concat"])
def test_folder_loads_without_running_its_code(encoders, case, tmp_path, monkeypatch):
    from transformers import AutoModelForSequenceClassification, dynamic_module_utils

    predictor, batch = make_predictor(encoders(), case)
    folder = predictor.save(tmp_path / "model")
    for name in CODE & {path.name for path in folder.iterdir()}:
        (folder / name).write_text("raise SystemExit('code of the folder ran')")
    monkeypatch.setattr(dynamic_module_utils, "get_class_in_module", None)
    with torch.no_grad():
        expected = predictor.model(**batch).logits
        for loaded in (AutoModelForSequenceClassification.from_pretrained(folder).eval(), api.load(folder).model):
            assert torch.equal(loaded(**batch).logits, expected)
