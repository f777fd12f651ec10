"""A saved model folder predicts alike without Headhunt and never runs its own code with it."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
import torch
from conftest import sentences
from ensembles import CASES as ENSEMBLES
from ensembles import make_members
from heads import CASES
from model_folders import CODE, FILES, make_predictor

from headhunt.engine import api
from headhunt.engine.ensemble import join
from headhunt.predictor import Predictor

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


def make_case(encoder: str, case: str, problem_type: str) -> tuple[Predictor, dict[str, torch.Tensor], set[str]]:
    """Return a predictor, a batch of its inputs, and the names of the code files that its folder must have."""
    if case not in ENSEMBLES:
        predictor, batch = make_predictor(encoder, case, problem_type)
        return predictor, batch, set() if CASES[case][0].plain else CODE
    predictor = join(make_members(encoder, case, problem_type))
    texts = sentences(6, seed=3)[0]
    batch = predictor.tokenise(texts, texts[::-1] if predictor.pair else None).batch(np.arange(6))
    return predictor, batch, CODE | {"ensemble.py"}


def test_folder_gives_the_same_logits_without_headhunt(encoders, tmp_path, outside):
    expected, scores, cases = {}, {}, []
    for case in [*CASES, *ENSEMBLES]:
        for problem_type in PROBLEM_TYPES:
            name = f"{case}-{problem_type}"
            predictor, batch, files = make_case(encoders(), case, problem_type)
            if case in ("plain", "siamese-mlp-attention", "ensemble"):
                predictor.calibrate(1.7)
            folder = predictor.save(tmp_path / name)
            assert {path.name for path in folder.iterdir()} == FILES | files, name
            with torch.no_grad():
                expected[name] = predictor.model(**batch).logits.numpy()
            values = predictor.outputs(["a good film"], ["it was bad"] if predictor.pair else None)
            scores[name] = dict(zip(predictor.labels or ("score",), values.ravel().tolist(), strict=True))
            inputs = {name: x.tolist() for name, x in batch.items()}
            entry = {"native": not files, "pair": predictor.pair}
            cases.append({"name": name, "folder": str(folder), "inputs": inputs, **entry})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    (tmp_path / "load.py").write_text(LOAD)
    words = [str(tmp_path / name) for name in ("load.py", "cases.json", "outputs.json")]
    done = subprocess.run(
        [outside["OUTSIDE_PYTHON"], *words], env=outside, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = json.loads((tmp_path / "outputs.json").read_text())
    assert len(outputs) == (len(CASES) + len(ENSEMBLES)) * len(PROBLEM_TYPES)
    for name, logits in expected.items():
        assert np.ptp(logits) > 1e-4, "the outputs must differ between texts"
        assert np.abs(np.array(outputs[name]["logits"]) - logits).max() < 1e-5, name
        assert outputs[name]["scores"] == pytest.approx(scores[name], abs=1e-5), name


@pytest.mark.parametrize("case", ["plain", "conv-blocks", "siamese-concat", "ensemble"])
def test_folder_loads_without_running_its_code(encoders, case, tmp_path, monkeypatch):
    from transformers import AutoModelForSequenceClassification, dynamic_module_utils

    predictor, batch, files = make_case(encoders(), case, "single_label_classification")
    folder = predictor.save(tmp_path / "model")
    for name in files:
        (folder / name).write_text("raise SystemExit('code of the folder ran')")
    monkeypatch.setattr(dynamic_module_utils, "get_class_in_module", None)
    with torch.no_grad():
        expected = predictor.model(**batch).logits
        for loaded in (AutoModelForSequenceClassification.from_pretrained(folder).eval(), api.load(folder).model):
            assert torch.equal(loaded(**batch).logits, expected)
