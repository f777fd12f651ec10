"""The scoreboard: cells, draws, the scripts of other tools, tables and the chart."""

from __future__ import annotations

import json
import shutil
import sys
import time
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas
import pytest

from headhunt.data import Task
from headhunt.predictor import Prediction

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
draws, scoreboard, summary = map(import_module, ("draws", "scoreboard", "scoreboard_summary"))

PEER = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
for name in ("train", "test", "out", "seconds", "seed"):
    parser.add_argument(f"--{name}", required=True)
args = parser.parse_args()
assert os.path.isdir(os.environ["PB_ENCODER"]) and args.seconds == "300" and args.seed == "10"
json.dump(RESULT, open(args.out, "w"))
time.sleep(0.2)  # seconds are rounded to tenths
"""


@pytest.fixture
def data(tmp_path):
    """A data directory with trec6 alone."""
    folder = tmp_path / "data" / "trec6"
    folder.mkdir(parents=True)
    labels = ["ABBR", "DESC", "ENTY"]
    texts = [f"question {row}" for row in range(6_000)]
    train = pandas.DataFrame({"text": texts, "text_b": None, "label": [labels[row % 3] for row in range(6_000)]})
    train.to_parquet(folder / "train.parquet")
    return tmp_path / "data"


def test_cells_have_unique_names_and_the_draws_that_each_tool_needs():
    cells = scoreboard.list_cells()
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names)
    assert {"same-sst-headhunt-12", "same-sst-setfit-12", "own-few_sst-probe-19", "same-stsb-frozen-12"} <= set(names)
    assert not {"same-sst-plain-12", "own-sst-plain-10", "same-mrpc-setfit-10", "same-stsb-probe-10"} & set(names)


def test_test_rows_of_trec6_are_in_no_draw(data, tmp_path):
    tests = []
    for draw in (10, 11, 12):
        cell = scoreboard.Cell("same", "trec6", "probe", draw)
        train, test = map(pandas.read_parquet, scoreboard.draw_rows(cell, scoreboard.SETTINGS["trec6"], data, tmp_path))
        assert len(train) == 500 and not set(train.text) & set(test.text) and set(train.label) == {0, 1, 2}
        tests.append(set(test.text))
    assert len(tests[0]) == 1_000 and tests[0] == tests[1] == tests[2]


@pytest.mark.parametrize("predicts", [False, True])
def test_peer_is_run_once_and_stored(data, tmp_path, predicts):
    result = {"test_acc": 0.5} | ({"predictions": [0] * 1_000} if predicts else {})
    (tmp_path / "run_probe.py").write_text(PEER.replace("RESULT", repr(result)))
    args = Namespace(data=data, peers=tmp_path, encoder=str(tmp_path), encoders="", sentence_encoder=None, quick=False)
    board = scoreboard.Scoreboard(args, tmp_path / "log.jsonl", scoreboard.SETTINGS)
    (tmp_path / "cell").mkdir()
    board.run(scoreboard.Cell("same", "trec6", "probe", 10), tmp_path / "cell")
    (row,) = scoreboard.read_rows(tmp_path / "log.jsonl")
    assert row["cell"] == "same-trec6-probe-10" and row["exit"] == 0 and row["seconds"] > 0
    assert row["score"] == row["accuracy"] and (row["score"] == 0.5) != predicts


def test_peer_that_fails_is_stored_without_a_score(data, tmp_path):
    (tmp_path / "run_probe.py").write_text("raise SystemExit(3)")
    args = Namespace(data=data, peers=tmp_path, encoder=str(tmp_path), encoders="", sentence_encoder=None, quick=False)
    board = scoreboard.Scoreboard(args, tmp_path / "log.jsonl", scoreboard.SETTINGS)
    board.run(scoreboard.Cell("same", "trec6", "probe", 10), tmp_path)
    assert board.rows[0]["exit"] == 3 and board.rows[0]["score"] is None


def test_summary_compares_the_cells_that_both_have(tmp_path, capsys):
    def row(setting, tool, draw, score, accuracy=None, exit_code=0):
        name = f"same-{setting}-{tool}-{draw}"
        facts = {"metric": scoreboard.SETTINGS[setting].metric, "score": score, "accuracy": accuracy or score}
        return {"cell": name, "table": "same", "setting": setting, "tool": tool, "draw": draw, **facts} | {
            "seconds": 20.0 + draw,
            "exit": exit_code,
        }

    rows = [row("sst", "headhunt", draw, 0.85 + draw / 1_000) for draw in (10, 11, 12)]
    rows += [row("sst", "setfit", draw, 0.84) for draw in (10, 11)]
    rows += [row("cola", "headhunt", 10, 0.4, 0.75), row("cola", "setfit", 10, None, 0.72)]
    rows += [row("sst", "plain", 10, None, None, exit_code=1)]
    log = tmp_path / "scoreboard.jsonl"
    log.write_text("".join(json.dumps(each) + "\n" for each in rows))
    result = summary.summarize(log)
    setfit = result["tables"]["same"]["setfit"]
    assert setfit["pairs"] == 3 and setfit["difference"] == pytest.approx((2.0 + 2.1 + 3.0) / 3, abs=0.01)
    assert "low" not in setfit and result["cells"] == 7  # three pairs are too few for an interval
    text = capsys.readouterr().out
    assert "| SetFit | 84.0" in text and "accuracy 72.0" in text and "Trainer" not in text
    assert log.with_suffix(".svg").read_text().startswith("<svg xmlns")
    more = [
        row("trec6", tool, draw, score) for draw in (10, 11) for tool, score in (("headhunt", 0.9), ("setfit", 0.8))
    ]
    log.write_text("".join(json.dumps(each) + "\n" for each in rows + more))
    setfit = summary.summarize(log)["tables"]["same"]["setfit"]
    assert setfit["pairs"] == 5 and setfit["low"] <= setfit["difference"] <= setfit["high"]


def test_time_to_reach_another_tool_is_that_of_the_first_model_that_stays_ahead():
    def row(tool, setting, score, **facts):
        return {"table": "same", "tool": tool, "setting": setting, "draw": 10, "score": score, **facts}

    rows = [
        row("hf_optuna", "sst", 0.8),
        row("headhunt", "sst", 0.85, curve=[[9.0, 0.7], [12.0, 0.82], [30.0, 0.79], [40.0, 0.85]]),
        row("hf_optuna", "mrpc", 0.7),
        row("headhunt", "mrpc", 0.76, curve=[[11.0, 0.75], [200.0, 0.76]]),
        row("hf_optuna", "trec6", 0.9),
        row("headhunt", "trec6", 0.89, curve=[[10.0, 0.8], [250.0, 0.89]]),
    ]
    reached = summary.seconds_to_reach(rows)
    assert reached == {"median": 40.0, "settings": {"sst": 40.0, "mrpc": 11.0, "trec6": None}}
    assert summary.seconds_to_reach(rows[:1]) == {}
    del rows[3]["curve"]  # its models were not kept: the end counts
    rows[3]["seconds"] = 220.0
    assert summary.seconds_to_reach(rows)["settings"]["mrpc"] == 220.0


def test_models_of_a_search_are_kept_with_their_times(tmp_path):
    run = scoreboard.RunDirectory(tmp_path / "run")
    with scoreboard.keep_models(run, tmp_path / "kept") as kept:
        for count, name in enumerate(("first", "second"), 1):
            (run.models / name).mkdir(parents=True)
            (run.models / name / "config.json").write_text(name)
            run.link_best(name)
            deadline = time.monotonic() + 20
            while len(kept) < count:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            shutil.rmtree(run.models / name)
    assert [(path / "config.json").read_text() for _, path in kept] == ["first", "second"]
    assert 0 < kept[0][0] < kept[1][0]


@pytest.mark.parametrize(
    ("problem_type", "labels", "predictions"),
    [
        (draws.CLASSES, ["b", "a"] * 10, np.array([1, 0, 1])),
        (draws.REGRESSION, [0.5, 2.5] * 10, np.array([0.25, 1.5, 2.0])),
    ],
)
def test_delivered_predictions_are_those_of_the_loaded_model(monkeypatch, problem_type, labels, predictions):
    task = Task.load({"text": list("abcdefghijklmnopqrst"), "label": labels}, problem_type=problem_type)
    names = {
        draws.CLASSES: lambda row: task.labels[row],
        draws.REGRESSION: float,
    }[problem_type]

    class Loaded:
        def predict(self, texts, texts_b):
            assert list(texts) == task.splits["test"].texts() and texts_b is None
            # The probability contradicts the labels: the model applies its own thresholds.
            return [Prediction(names(row), 0.1, {}) for row in predictions]

    monkeypatch.setattr("headhunt.engine.api.load", lambda folder: Loaded())
    assert scoreboard.delivered_predictions(Path("model"), task).tolist() == predictions.tolist()


def test_sample_has_every_label_twice_and_is_deterministic():
    labels = [["common"]] * 500 + [["rare"], ["rare", "common"], ["rare"]]
    frame = pandas.DataFrame({"text": [f"text {i}" for i in range(len(labels))], "label": labels})
    chosen = draws.sample(frame, 20, draws.LABELS)
    assert len(chosen) == 20
    assert chosen.label.explode().value_counts()["rare"] >= 2
    assert chosen.equals(draws.sample(frame, 20, draws.LABELS))


def test_draw_leaves_out_test_rows_that_are_among_the_training_rows(tmp_path):
    (tmp_path / "cr").mkdir()
    frame = pandas.DataFrame({"text": [f"text {i}" for i in range(20)], "label": ["a", "b"] * 10})
    frame.to_parquet(tmp_path / "cr" / "train.parquet")
    frame.assign(text=[f"text {i}" for i in range(15, 35)]).to_parquet(tmp_path / "cr" / "test.parquet")
    drawn = draws.draw("cr", tmp_path, tmp_path, None)
    assert len(pandas.read_parquet(drawn.test)) == 15
