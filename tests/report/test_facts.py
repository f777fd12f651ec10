"""Facts of a search: every section if all is known, and fewer but correct ones if not."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import ENCODER, keep_events, make_run

from headhunt.errors import HeadhuntError
from headhunt.report import collect_facts
from headhunt.report.facts import SECTIONS
from headhunt.run import schema
from headhunt.run.directory import RunDirectory
from headhunt.run.events import FinalTestRun, RunResumed, SearchEnded
from headhunt.run.ledger import LedgerWriter
from headhunt.run.results import SearchResult
from headhunt.run.task import INFO


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("facts") / "finished", 60)


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("facts") / "running", 24, ended=False)


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def change_result(folder: Path, **changes) -> None:
    directory = RunDirectory(folder)
    result = directory.read_result()
    assert isinstance(result, SearchResult)
    directory.write(replace(result, **changes))


def test_facts_of_finished_search_have_every_section(finished):
    found = collect_facts(finished)
    # Classes have no sizes of errors, and this search answers all texts.
    assert set(found) == {"schema", *SECTIONS} - {"errors", "rejection"}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["headline"].startswith("A reliable gain")
    assert len(found["trials"]) == 60 and {row["trial"] for row in found["trials"]} == set(range(60))
    assert [row["score"] for row in found["trials"][:2]] == sorted([row["score"] for row in found["trials"][:2]])[::-1]
    assert found["winner"]["trial"] in [row["trial"] for row in found["trials"][:2]]
    assert found["load"]["lines"][1] == f'model = headhunt.load("{(finished / "model").as_posix()}")'
    assert [stage["stage"] for stage in found["winner"]["stages"]][:2] == ["tokens", "encoder"]
    assert found["verdict"]["p_value"] == 0.0014 and found["verdict"]["training_runs"] == 4


def test_facts_of_running_search_use_validation_rows(running):
    found = collect_facts(running)
    assert not found["run"]["finished"] and not {"verdict", "load", "ablation"} & set(found)
    assert "so far" in found["headline"] and "not tested" in found["headline"]
    assert found["scores"]["on"] == found["confusion"]["on"] == "validation rows"
    assert set(found["confusion"]["models"]) == {"winner", "plain"}
    assert found["mistakes"]["items"]
    assert all(row["label"] != row["prediction"] for row in found["mistakes"]["items"])
    assert {row["outcome"] for row in found["trials"]} >= {"ok", "running"}


def test_facts_label_scores_by_role_with_searched_metric_first(finished):
    scores = collect_facts(finished)["scores"]
    assert next(iter(scores["metrics"])) == "accuracy" and scores["on"] == "test rows" and scores["rows"] == 1000
    assert [row["role"] for row in scores["metrics"]["accuracy"]] == ["winner", "plain", "ensemble"]
    assert scores["metrics"]["accuracy"][2]["name"] == "mean of 4 unlike models"


@pytest.mark.parametrize(
    ("attribute", "missing"),
    [("result", None), ("ablation", {"ablation"}), ("importances", {"importance"}), ("environment", set())],
)
def test_facts_leave_out_missing_files(copy, attribute, missing):
    before = collect_facts(copy)
    getattr(RunDirectory(copy), attribute).unlink()
    after = collect_facts(copy)
    assert set(after) <= set(before) and (missing is None or set(before) - set(after) == missing)


def test_facts_leave_out_validation_scores_without_predictions(running, tmp_path):
    folder = Path(shutil.copytree(running, tmp_path / "run"))
    shutil.rmtree(folder / "predictions")
    assert not {"scores", "confusion", "mistakes", "calibration"} & set(collect_facts(folder))


def test_facts_without_test_result_fall_back_to_validation_rows(copy):
    change_result(copy, test=None)
    found = collect_facts(copy)
    assert found["scores"]["on"] == found["calibration"]["on"] == "validation rows"


def test_facts_show_plain_head_once_if_it_won(copy):
    result = RunDirectory(copy).read_result()
    change_result(copy, winner=result.plain)
    found = collect_facts(copy)
    assert [row["name"] for row in found["scores"]["metrics"]["accuracy"]] == [
        "plain head (#0)",
        "mean of 4 unlike models",
    ]
    assert set(found["confusion"]["models"]) == {"winner"}


def test_facts_leave_out_the_ablation_of_an_earlier_winner(copy):
    directory = RunDirectory(copy)
    ablation = directory.read_ablation()
    assert "ablation" in collect_facts(copy)
    directory.write(replace(ablation, trial=ablation.trial + 1))
    assert "ablation" not in collect_facts(copy)


def test_facts_do_not_draw_a_candidate_with_the_layers_of_another_encoder(copy):
    """Issue: the number of layers came from the delivered model, which may have another encoder."""

    def layers():
        return next(stage for stage in collect_facts(copy)["winner"]["stages"] if stage["stage"] == "encoder")["layers"]

    assert layers() == 6
    (RunDirectory(copy).model / "headhunt.json").write_text(json.dumps({"spec": {"encoder": "another"}}))
    assert layers() is None


def test_facts_mark_verdict_stale_if_search_continued(copy):
    assert not collect_facts(copy)["run"]["stale"]
    change_result(copy, results=3)
    assert collect_facts(copy)["run"]["stale"]


def test_facts_keep_reason_of_search_after_a_later_verdict(copy):
    with LedgerWriter(RunDirectory(copy)) as ledger:
        ledger.append(RunResumed(), SearchEnded("resumed"))
    assert collect_facts(copy)["run"]["reason"] == "trials"


def test_facts_count_test_evaluations(copy):
    assert collect_facts(copy)["run"]["test_evaluations"] == 1
    with LedgerWriter(RunDirectory(copy)) as ledger:
        ledger.append(FinalTestRun(["winner"]), FinalTestRun(["winner"]))
    assert collect_facts(copy)["run"]["test_evaluations"] == 3


@pytest.mark.parametrize("count", [1, 2])
def test_facts_of_search_that_has_just_started(copy, count):
    RunDirectory(copy).result.unlink()
    shutil.rmtree(copy / "predictions")
    keep_events(copy, count)
    assert collect_facts(copy)["headline"].startswith("No candidate has a score yet")


def test_facts_refuse_folder_without_run(tmp_path):
    with pytest.raises(HeadhuntError, match="is not the run directory of a search"):
        collect_facts(tmp_path)


def test_facts_of_regression_have_scores_and_no_classes(tmp_path):
    found = collect_facts(make_run(tmp_path / "run", 12, problem_type="regression", ended=False))
    assert list(found["scores"]["metrics"]) == ["spearman", "mse", "pearson"]
    assert not {"confusion", "mistakes", "calibration"} & set(found) and "counts" not in found["data"]
    assert found["winner"]["stages"][-1]["title"] == "a number"


def test_facts_name_negated_error(tmp_path):
    found = collect_facts(make_run(tmp_path / "run", 9, problem_type="regression", ended=False, metric="mse"))
    assert found["run"]["metric"] == found["progress"]["metric"] == "−mse"
    assert next(iter(found["scores"]["metrics"])) == "mse"


def test_facts_of_pairs_show_both_texts(tmp_path):
    found = collect_facts(make_run(tmp_path / "run", 20, pair=True))
    assert 'model.predict("one text", "another")' in found["load"]["lines"][2]
    assert found["mistakes"]["items"][2]["texts"] == ["Why?", "Because."]


def parse_command(folder: Path) -> dict:
    """Return the options that the program reads from the command to repeat a search."""
    from typer.main import get_command

    from headhunt.cli import app

    words = shlex.split(" ".join(collect_facts(folder)["repeat"]["command"]))
    command = get_command(app).commands["search"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headhunt.engine.encoders.find_encoders", lambda given: given)  # it is not on this machine
        return command.make_context("search", words[2:], resilient_parsing=False).params


def test_repeat_command_is_accepted_by_the_program(finished):
    options = parse_command(finished)
    assert options["encoder"] == [ENCODER] and options["trials"] == 60 and options["text"] == "review"
    assert options["limit"] is None and options["test"] is None


def test_repeat_command_includes_limit_and_test(copy):
    directory = RunDirectory(copy)
    schema.write(directory.task / INFO, replace(directory.read_task_info(), limit=50, test_given=True))
    options = parse_command(copy)
    assert options["limit"] == 50 and str(options["test"]) == "TEST"


def test_facts_do_not_import_torch(finished):
    heavy = "[name for name in ('torch', 'transformers') if name in sys.modules]"
    code = f"import sys, headhunt.report as report; report.collect_facts({str(finished)!r}); print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
