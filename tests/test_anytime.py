"""The benchmarks of the delivered model over time and of the ranking of encoders: draws, references, summaries."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas
import pytest

from headhunt.data import Task
from headhunt.predictor import Prediction
from headhunt.run.directory import RunDirectory
from headhunt.run.events import ModelSaved, TrialFinished, encode

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
anytime, summary, draws, references, ranking = map(
    import_module, ("anytime", "anytime_summary", "draws", "references", "encoder_ranking")
)


def cell_row(**changes) -> dict:
    """Return a stored cell that meets every requirement."""
    score = {"score": 0.9, "low": 0.85, "high": 0.95}
    reference = {**score, "score": 0.5, "rows": 10, "seconds": 3.0, "penalty": 1.0, "threshold": None}
    row = {"cell": "sst2-500-60s", "dataset": "sst2", "rows": 500, "seconds": 60, "auto": False, "pair": False}
    row |= {"problem_type": "single_label_classification", "metric": "accuracy", "first_model_s": 12.0}
    row |= {"delivered": score, "candidates": 5, "tested": True, "wall_s": 61.0, "exit": 0}
    return row | {"frozen": reference, "tfidf": reference} | changes


def write_ledger(folder: Path, *events: tuple[float, object]) -> RunDirectory:
    directory = RunDirectory(folder)
    directory.ledger.write_bytes(b"".join(encode(event, at) for at, event in events))
    return directory


def finished(trial: int, score: float | None) -> TrialFinished:
    return TrialFinished(trial, 0, "ok" if score is not None else "collapsed", score, 1.0, 10)


def test_cells_are_unique_and_begin_with_the_required_scores():
    names = [cell.name for cell in anytime.list_cells()]
    assert len(names) == len(set(names)) == 61
    assert {name for name in summary.REQUIRED if not name.startswith("sst2")} <= set(names[:10])
    assert set(summary.REQUIRED) <= set(names)


def test_choose_cells_matches_patterns_and_leaves_out_several_encoders():
    args = Namespace(cells="mrpc-*,*-60s", quick=False)
    names = [cell.name for cell in anytime.choose_cells(args, several=False)]
    assert "mrpc-all-300s" in names and "sst2-100-60s" in names
    assert not any(name.endswith("auto") for name in names)
    assert "mrpc-all-300s-auto" in [cell.name for cell in anytime.choose_cells(args, several=True)]


def test_stored_cells_are_read_again_with_their_predictions(tmp_path, monkeypatch):
    monkeypatch.setattr(anytime, "provenance", dict)
    log = tmp_path / "results" / "anytime.jsonl"
    predictions = {"targets": np.array([0, 1, 150]), "delivered": np.array([0.5, 1.0, 2.0])}
    benchmark = anytime.Benchmark(log, {"a": "encoder"}, tmp_path, 10)
    benchmark._store(cell_row(exit=1), {"targets": np.zeros(1, int), "frozen": np.zeros(1, int)})
    benchmark._store(cell_row(cell="mrpc-500-60s"), predictions)
    benchmark._store(cell_row(), predictions)
    again = anytime.Benchmark(log, {"a": "encoder"}, tmp_path, 10)
    assert {row["cell"]: row["exit"] for row in again.rows} == {"sst2-500-60s": 0, "mrpc-500-60s": 0}
    assert sorted(again.arrays) == [
        f"{cell}-500-60s/{name}" for cell in ("mrpc", "sst2") for name in sorted(predictions)
    ]
    assert again.arrays["sst2-500-60s/targets"].tolist() == [0, 1, 150]


def test_first_evaluated_model_ignores_models_without_a_score(tmp_path):
    directory = write_ledger(
        tmp_path,
        (10.0, ModelSaved(-1, "first")),
        (12.0, finished(0, None)),
        (13.0, ModelSaved(0, "000000")),
        (14.0, ModelSaved(1, "000001")),
        (17.0, finished(1, 0.8)),
        (20.0, finished(2, 0.9)),
        (21.0, ModelSaved(2, "000002")),
    )
    assert anytime.first_evaluated_model(directory) == 17.0


def test_first_evaluated_model_is_none_without_scores(tmp_path):
    assert anytime.first_evaluated_model(write_ledger(tmp_path, (10.0, ModelSaved(-1, "first")))) is None


@pytest.mark.parametrize(
    ("problem_type", "labels", "predictions"),
    [
        (draws.CLASSES, ["b", "a"] * 10, np.array([1, 0, 1])),
        (draws.LABELS, [["b"], ["a", "c"]] * 10, np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]])),
        (draws.REGRESSION, [0.5, 2.5] * 10, np.array([0.25, 1.5, 2.0])),
    ],
)
def test_delivered_predictions_are_those_of_the_loaded_model(monkeypatch, problem_type, labels, predictions):
    task = Task.load({"text": list("abcdefghijklmnopqrst"), "label": labels}, problem_type=problem_type)
    names = {
        draws.CLASSES: lambda row: task.labels[row],
        draws.LABELS: lambda row: [task.labels[i] for i in np.flatnonzero(row)],
        draws.REGRESSION: float,
    }[problem_type]

    class Loaded:
        def predict(self, texts, texts_b):
            assert list(texts) == task.splits["test"].texts() and texts_b is None
            # The probability contradicts the labels: the model applies its own thresholds.
            return [Prediction(names(row), 0.1, {}) for row in predictions]

    monkeypatch.setattr("headhunt.engine.api.load", lambda folder: Loaded())
    assert anytime.delivered_predictions(Path("model"), task).tolist() == predictions.tolist()


def test_holm_adjusts_in_order_of_p_values():
    assert summary.adjust_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert summary.adjust_holm([]) == []


def test_compare_rows_uses_the_exact_test_of_mcnemar():
    targets = np.zeros(100, int)
    delivered, frozen = np.zeros(100, int), np.zeros(100, int)
    delivered[:2], frozen[2:12] = 1, 1
    pair = summary.compare_rows(cell_row(), delivered, frozen, targets)
    assert pair.gain == pytest.approx(0.08)
    assert pair.p_value == pytest.approx(0.03857, abs=1e-4)  # 2 of 12 discordant rows, two-sided


@pytest.mark.parametrize(
    ("changes", "requirement"),
    [
        ({"first_model_s": 15.1}, "first evaluated model in time"),
        ({"first_model_s": None}, "first evaluated model in time"),
        ({"first_model_s": 46.0, "rows": None}, "first evaluated model in time"),
        ({"first_model_s": 25.1, "pair": True}, "first evaluated model in time"),
        ({"wall_s": 65.1}, "ends on time with exit code 0"),
        ({"exit": 1}, "ends on time with exit code 0"),
        ({"tested": False}, "ends tested"),
        ({"delivered": None}, "delivers a model"),
        ({"cell": "search_trec6-500-60s"}, "search_trec6-500-60s at least 0.91"),
    ],
)
def test_checks_name_the_requirement_that_fails(changes, requirement):
    assert [name for name, failed in summary.check_cells([cell_row(**changes)], {}).items() if failed] == [requirement]


@pytest.mark.parametrize("changes", [{}, {"first_model_s": 45.0, "rows": 501}, {"first_model_s": 25.0, "pair": True}])
def test_checks_pass_where_every_requirement_holds(changes):
    assert not any(summary.check_cells([cell_row(**changes)], {}).values())


def test_checks_find_a_cell_significantly_below_the_frozen_encoder():
    pairs = {"sst2-500-60s": summary.Paired("sst2-500-60s", -0.05, -0.08, -0.02, 0.001, 0.01)}
    checks = summary.check_cells([cell_row()], pairs)
    assert checks["not significantly below the frozen encoder"]
    assert checks["mean difference above 0"]


def test_checks_need_all_three_sets_for_a_mean():
    rows = [cell_row(cell=f"{task}-500-300s", seconds=300) for task in anytime.SEARCH_TASKS]
    name = "mean of search_*-500-300s at least 0.84"
    assert name not in summary.check_cells(rows[:2], {})
    assert summary.check_cells(rows, {})[name] == []


def test_summary_reads_the_last_line_of_a_cell_and_writes_table_and_chart(tmp_path):
    log = tmp_path / "anytime.jsonl"
    rows = [cell_row(exit=1), cell_row(), cell_row(cell="sst2-500-300s-auto", seconds=300, auto=True, delivered=None)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    targets = np.arange(40) % 2
    arrays = {"delivered": targets, "frozen": np.zeros(40, int), "targets": targets}
    np.savez(log.with_suffix(".npz"), **{f"sst2-500-60s/{name}": array for name, array in arrays.items()})
    result = summary.summarize(log)
    assert result["cells"] == 2
    assert result["significantly_above"] == ["sst2-500-60s"]
    assert result["mean_difference"] == 0.5
    assert result["checks"]["ends on time with exit code 0"]["passed"]
    assert "| sst2-500-60s | accuracy | 12.0 |" in log.with_suffix(".md").read_text()
    drawing = ElementTree.fromstring(log.with_suffix(".svg").read_text())
    assert any("sst2, 500 rows" in (text.text or "") for text in drawing.iter("{http://www.w3.org/2000/svg}text"))


def test_sample_has_every_label_twice_and_is_deterministic():
    labels = [["common"]] * 500 + [["rare"], ["rare", "common"], ["rare"]]
    frame = pandas.DataFrame({"text": [f"text {i}" for i in range(len(labels))], "label": labels})
    chosen = draws.sample(frame, 20, draws.LABELS)
    assert len(chosen) == 20
    assert chosen.label.explode().value_counts()["rare"] >= 2
    assert chosen.equals(draws.sample(frame, 20, draws.LABELS))


@pytest.fixture
def sentiment(tmp_path):
    """Write small versions of the sets that the million rows are made from."""
    words = {"positive": ["good", "fine", "lovely", "great"], "negative": ["bad", "poor", "dull", "weak"]}
    rows = [
        {"text": f"{a} {b} {label} {i}", "label": label, "lang": "english"}
        for label, choices in words.items()
        for i, (a, b) in enumerate((a, b) for a in choices for b in choices)
    ]
    for name, splits in {
        "sst2": ("train", "dev"),
        "cr": ("train", "test"),
        "umsab_sentiment": ("train", "test"),
    }.items():
        (tmp_path / name).mkdir()
        for split in splits:
            frame = pandas.DataFrame([{**row, "text": f"{name} {split} {row['text']}"} for row in rows])
            frame.drop(columns=[] if name == "umsab_sentiment" else "lang").to_parquet(
                tmp_path / name / f"{split}.parquet"
            )
    return tmp_path


def test_million_joins_texts_of_one_sentiment_and_one_source(sentiment):
    train, test = draws.make_million(sentiment, 400)
    assert len(train) == 400 and train.text.is_unique
    assert len(test) == 96
    for text, label in zip(train.text, train.label, strict=True):
        words = text.split()
        assert {"positive", "negative"} & set(words) == {label}
        assert len({"sst2", "cr", "umsab_sentiment"} & set(words)) == 1
        assert "test" not in words and "dev" not in words
    assert train.equals(draws.make_million(sentiment, 400)[0])


def test_draw_leaves_out_test_rows_that_are_among_the_training_rows(tmp_path):
    (tmp_path / "cr").mkdir()
    frame = pandas.DataFrame({"text": [f"text {i}" for i in range(20)], "label": ["a", "b"] * 10})
    frame.to_parquet(tmp_path / "cr" / "train.parquet")
    frame.assign(text=[f"text {i}" for i in range(15, 35)]).to_parquet(tmp_path / "cr" / "test.parquet")
    drawn = draws.draw("cr", tmp_path, tmp_path, None)
    assert len(pandas.read_parquet(drawn.test)) == 15


@pytest.mark.parametrize("problem_type", [draws.CLASSES, draws.LABELS, draws.REGRESSION])
def test_tfidf_reference_learns_words(problem_type):
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 2, 240)
    others = ["".join(rng.choice(list("abcdefgh "), 30)) for _ in kinds]
    texts = [f"{['red apple', 'blue sea'][kind]} {other}" for kind, other in zip(kinds, others, strict=True)]
    labels = {
        draws.CLASSES: [["fruit", "water"][kind] for kind in kinds],
        draws.LABELS: [[["fruit"], ["water", "cold"]][kind] for kind in kinds],
        draws.REGRESSION: (kinds + 0.01 * rng.standard_normal(len(kinds))).tolist(),
    }[problem_type]
    task = Task.load({"text": texts, "label": labels}, problem_type=problem_type)
    reference = references.fit_tfidf(task, 60)
    assert reference.rows == len(task.splits["train"])
    # Within a kind the numbers are noise, so that no model has a rank correlation far above 0.75.
    assert anytime.score(task, reference.predictions)["score"] > (0.7 if problem_type == draws.REGRESSION else 0.9)


def test_rank_agreement_measures_the_loss_of_the_choice():
    agreement = ranking.rank_agreement({"a": 0.8, "b": 0.9, "c": 0.7}, {"a": 0.85, "b": 0.84, "c": 0.6})
    assert agreement["tau"] == pytest.approx(1 / 3, abs=1e-3)
    assert (agreement["chosen"], agreement["best"]) == ("b", "a")
    assert agreement["below_best"] == pytest.approx(0.01)


def test_ranking_summary_pools_sets_with_an_interval():
    scores = [
        {"task": task, "name": name, "kind": kind, "seed": 0, "score": score}
        for task, tuned in (("cr", (0.7, 0.8)), ("subj", (0.8, 0.7)))
        for kind, values in (("solved", (0.6, 0.7)), ("fine-tuned", tuned))
        for name, score in zip("ab", values, strict=True)
    ]
    result = ranking.summarize(scores)
    assert result["kendall_tau"] == {"value": 0.0, "low": -1.0, "high": 1.0}
    assert (result["sets"], result["sets_within_one_point"]) == (2, 1)
