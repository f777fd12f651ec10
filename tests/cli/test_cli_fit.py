"""`headhunt fit` and `headhunt evaluate`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from command_line import QUICK_SPEC, make_rows, refuse, run, saved_models, succeed, write_csv

from headhunt.predictor import Predictor


@pytest.fixture(scope="module")
def models(encoders, tmp_path_factory):
    return saved_models(encoders, tmp_path_factory)


@pytest.mark.parametrize("flags", [[], ["--fine-tune"]])
def test_fit_without_spec_solves_a_head_unless_asked_and_prints_next_command(encoders, tmp_path, flags):
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 40, 0))
    out = tmp_path / "new" / "model"
    completed = run("fit", data, "--out", out, "--encoder", encoders(), "--limit", 20, *flags)
    assert completed.code == 0 and "text column: text" in completed.err
    assert "accuracy" in completed.out and f"headhunt predict {out}" in completed.out
    assert Predictor.load(out).recipe.is_solved == (not flags)
    assert ("model.py" in {path.name for path in out.iterdir()}) == (not flags), "the plain head needs no code"


def test_fit_refuses_a_spec_and_fine_tuning(tmp_path):
    refuse("fit", "x.csv", "--out", tmp_path / "m", "--spec", "s.json", "--fine-tune", fragments=["--fine-tune out"])


def test_fit_trains_on_all_rows_before_the_test_rows(encoders, tmp_path):
    header, rows = make_rows("single_label_classification", 40, 0)
    dated = [(*row, at, at % 8) for at, row in enumerate(rows)]
    data = write_csv(tmp_path / "data.csv", f"{header},day,user", dated)
    (tmp_path / "spec.json").write_text(json.dumps(QUICK_SPEC))
    words = ("--encoder", encoders(), "--spec", tmp_path / "spec.json", "--json")
    for flag, column in (("--order", "day"), ("--group", "user")):
        facts = json.loads(succeed("fit", data, "--out", tmp_path / column, *words, flag, column))
        assert sum(facts["task"]["rows"].values()) == 40 and facts["task"]["rows"].keys() == {"train", "test"}


def test_fit_max_length_overrides_spec(encoders, tmp_path):
    header, rows = make_rows("single_label_classification", 40, 0)
    data = write_csv(tmp_path / "data.csv", header, rows)
    (tmp_path / "spec.json").write_text(json.dumps(QUICK_SPEC))
    words = ("--encoder", encoders(), "--spec", tmp_path / "spec.json", "--max-length", 16)
    succeed("fit", data, "--out", tmp_path / "model", *words)
    assert Predictor.load(tmp_path / "model").recipe.max_length == 16


def test_fit_saves_spec_labels_and_test_scores(models):
    folder, _, facts = models()
    assert facts["out"] == str(folder) and facts["test"]["scores"]["accuracy"]["value"] > 0.8
    description = json.loads((folder / "headhunt.json").read_text())
    assert (
        description["spec"]["recipe"]["learning_rate"] == 0.003
        and description["labels"] == ["bad", "good"]
        and description["schema"] == 1
    )


def test_fit_accepts_spec_sampled_from_space(encoders, tmp_path):
    printed = succeed("space", "paper", "--sample", 1, "--layers", 2, "--encoder", encoders())
    spec = json.loads(printed)
    spec["recipe"] |= {"epochs": 1, "batch_size": 16}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 40, 0))
    succeed("fit", data, "--out", tmp_path / "model", "--spec", tmp_path / "spec.json")
    saved = json.loads((tmp_path / "model" / "headhunt.json").read_text())["spec"]
    assert saved["encoder"] == encoders() and saved["head"] == spec["head"]


INTERRUPTIBLE_FIT = """
import contextlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
import headhunt.report.terminal
from headhunt.cli import main

@contextlib.contextmanager
def print_reports(name):
    yield lambda report: print("report", file=sys.stderr, flush=True)

headhunt.report.terminal.training_bar = print_reports
main()
"""


@pytest.mark.slow
def test_fit_ctrl_c_exits_130_and_leaves_no_files(encoders, tmp_path):
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 40, 0))
    (tmp_path / "spec.json").write_text(json.dumps({"recipe": {"epochs": 1000, "batch_size": 1}}))
    words = ["fit", data, "--out", tmp_path / "out", "--spec", tmp_path / "spec.json", "--encoder", encoders()]
    command = [sys.executable, "-c", INTERRUPTIBLE_FIT, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if line.startswith("report"):
                    break
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "stopped" in err and "Traceback" not in err and not out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "problem_type", ["single_label_classification", "pair", "regression", "multi_label_classification"]
)
def test_evaluate_prints_scores_of_fit(models, problem_type):
    folder, test, facts = models(problem_type)
    evaluation = json.loads(succeed("evaluate", folder, test, "--json"))
    assert evaluation["rows"] == 32 and evaluation["scores"].keys() == facts["test"]["scores"].keys()
    for name, score in evaluation["scores"].items():
        assert score == pytest.approx(facts["test"]["scores"][name], abs=1e-5), name
    printed = succeed("evaluate", folder, test)
    assert "32 rows" in printed and all(name in printed for name in evaluation["scores"])


def test_evaluate_prints_confusion_matrix(models):
    folder, test, facts = models()
    printed = succeed("evaluate", folder, test)
    table = printed[printed.index("true \\ predicted") :].replace("│", " ").splitlines()
    counts = {
        line.split()[0]: [int(cell) for cell in line.split()[1:]] for line in table if line[2:5] in ("bad", "goo")
    }
    assert counts == dict(zip(["bad", "good"], facts["test"]["confusion"], strict=True))


def test_evaluate_prints_labels_without_markup(encoders, tmp_path):
    header, rows = make_rows("single_label_classification", 40, 0)
    data = write_csv(tmp_path / "data.csv", header, [(text, f"[/{label}]") for text, label in rows])
    succeed("fit", data, "--out", tmp_path / "model", "--encoder", encoders())
    printed = succeed("evaluate", tmp_path / "model", data)
    assert printed.count("[/good]") == printed.count("[/bad]") == 3


def test_evaluate_refuses_unknown_labels(models, tmp_path):
    data = write_csv(tmp_path / "new.csv", "text,label", [("a b c", "good"), ("c d e", "bad"), ("d e f", "awful")] * 4)
    refuse("evaluate", models()[0], data, fragments=["'awful'", "row"])
