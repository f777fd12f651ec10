"""The model card of a search: facts of the typed result, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from report_runs import make_run

from headhunt.report.model_card import render
from headhunt.run.directory import RunDirectory
from headhunt.run.results import SearchResult
from headhunt.run.task import TaskInfo
from headhunt.spec import Spec


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> tuple[TaskInfo, SearchResult]:
    directory = RunDirectory(make_run(tmp_path_factory.mktemp("card") / "run", 12))
    result = directory.read_result()
    assert result is not None
    return directory.read_task_info(), result


def facts_of(spec: Spec, task: TaskInfo) -> dict:
    data = spec.to_dict()
    return {
        "problem_type": task.problem_type,
        "labels": list(task.labels),
        "pair": task.pair,
        "recipe": data["recipe"],
        "spec": data,
    }


def card_of(task: TaskInfo, result: SearchResult) -> str:
    return render(facts_of(result.winner.spec, task), task=task, result=result, command="headhunt search DATA")


def test_model_card_of_winner_shows_scores_beside_plain_head(search):
    text = card_of(*search)
    assert "This model is the winner of that search." in text and "| metric | this model | plain head |" in text
    assert "| accuracy | 0.9020 (0.8800 to 0.9210) | 0.8660 (0.8440 to 0.8850) |" in text
    assert "| `<b>question</b>` | 500 | 0.918 | 0.940 | 0.929 |" in text, (
        "scores of each class are those of the confusion matrix"
    )
    assert "1,000 test rows, which played no part in choosing the model" in text
    assert "Chosen among 12 candidates by accuracy (3 folds, out of fold)" in text
    assert "The expected calibration error on test rows is 3.1 points." in text
    assert "$ headhunt search DATA" in text and "were evaluated" not in text


def test_model_card_of_plain_head_swaps_columns(search):
    task, result = search
    text = card_of(task, replace(result, verdict=replace(result.verdict, delivered="plain")))
    assert "This model is the plain head." in text and "| metric | this model | best other candidate |" in text
    assert "| accuracy | 0.8660 (0.8440 to 0.8850) | 0.9020 (0.8800 to 0.9210) |" in text
    assert "calibration error" not in text, "the calibration was measured for the winner"


def test_model_card_notes_repeated_use_of_test_rows(search):
    task, result = search
    assert "The test rows were evaluated 4 times." in card_of(task, replace(result, test_evaluations=4))


def test_model_card_without_test_says_so(search):
    task, result = search
    text = card_of(task, replace(result, test=None))
    assert "Not tested" in text and "model-index" not in text


def test_model_card_of_a_model_that_was_saved_again_does_not_say_that_it_is_untested(search):
    """Issue: a model of a search that was saved with `Predictor.save` was called untested."""
    task, result = search
    text = render(facts_of(result.winner.spec, task))
    assert "No scores are stored with this model." in text and "Not tested" not in text


def test_model_card_repeats_all_options_of_fit(search):
    """Issue: the command left out the limit, the test file, the groups and the order."""
    task, result = search
    columns = {"text": "text", "text_b": None, "label": "label", "group": "user", "order": None}
    data = {"name": "x", "rows": {"train": 50}, "columns": columns, "limit": 50, "test_given": True}
    text = render({**facts_of(result.winner.spec, task), "task": data, "seed": 1})
    assert all(words in text for words in ("--group user", "--limit 50", "--test TEST")) and "--order" not in text


def test_model_card_never_shows_texts_of_mistakes(search):
    assert "Not the worst evening" not in card_of(*search)


HOSTILE = "a\n```\n# injected\n<script>alert(1)</script>\n[x](javascript:alert(1))\n~~~\n````\n# injected\n"


@pytest.mark.parametrize("command", [None, f"headhunt search DATA --text '{HOSTILE}'"])
def test_model_card_keeps_hostile_names_inside_code(search, command):
    task, result = search
    hostile = replace(task, name=HOSTILE, columns=replace(task.columns, text=HOSTILE, label=HOSTILE))
    facts = {**facts_of(result.winner.spec, hostile), "labels": [HOSTILE, *task.labels[1:]], "seed": 1}
    facts["versions"] = {"torch": HOSTILE}
    text = render(facts, folder=HOSTILE, task=hostile, result=result if command else None, command=command)
    body = text.split("\n---\n", 1)[1]
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    inline = [child for token in tokens for child in token.children or []]
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings[1:] == [heading for heading in headings[1:] if "injected" not in heading] and len(headings) < 12
    assert not [token for token in [*tokens, *inline] if token.type.startswith("html")], "no HTML"
    assert not [token for token in inline if token.type == "link_open" and "javascript" in token.attrs["href"]]
    assert any("# injected" in token.content for token in tokens if token.type == "fence"), "the command is shown"


@pytest.mark.parametrize(("model_type", "native"), [("bert", True), ("headhunt", False)])
def test_model_card_says_whether_the_folder_has_code(search, model_type, native):
    """Issue: a plain head of one of several tasks is saved with its code, and the card denied it."""
    task, _ = search
    facts = facts_of(Spec(encoder="prajjwal1/bert-tiny"), task) | {"model_type": model_type}
    text = render(facts, task=task)
    assert ("the folder contains no code" in text) == native and ("trust_remote_code=True" in text) != native
