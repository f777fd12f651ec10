"""Summaries in notebooks: their contents, that they are harmless, and a real kernel that shows them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
from conftest import require_chromium, sentences
from nbclient import NotebookClient
from report_runs import keep_events, make_run, rename_task, running_search

import headhunt
from headhunt import Head, Mlp, Recipe, Spec
from headhunt.report import notebook
from headhunt.report.notebook import LiveView, search_summary
from headhunt.run.directory import RunDirectory

HOSTILE = '</style></div><script>alert("owned")</script><img src=x onerror=alert(1)>'
TEXTS, LABELS = sentences(96)
SEARCH = (
    "search = headhunt.search((TEXTS, LABELS), encoder=ENCODER, workers=0, out='run', time={time}, trials={trials})"
)


class Notebook(NotebookClient):
    """A notebook under test: counts what the kernel sends, and may press the stop button."""

    stop_when: str = ""
    sent: list[str]

    def process_message(self, msg, cell, cell_index):
        self.sent.append(msg["msg_type"])
        if self.stop_when and self.stop_when in json.dumps(msg["content"]):
            self.stop_when = ""
            asyncio.ensure_future(self.km.interrupt_kernel())  # noqa: RUF006
        return super().process_message(msg, cell, cell_index)


def run_notebook(cells: list[str], folder: Path, encoder: str, stop_when: str = "") -> Notebook:
    setup = f"import headhunt\nENCODER, TEXTS, LABELS = {encoder!r}, {TEXTS!r}, {LABELS!r}"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (setup, *cells)])
    client = Notebook(book, timeout=180, resources={"metadata": {"path": str(folder)}})
    client.sent, client.stop_when = [], stop_when
    client.execute()
    return client


class Tags(HTMLParser):
    """Every tag and attribute of a summary."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_harmless(html: str) -> None:
    found = Tags(html)
    assert found.open == []
    assert not {"script", "img", "link", "iframe", "a"} & set(found.tags)
    assert not any(name.startswith("on") or name in ("src", "href") for name in found.names)
    assert "http" not in html.replace("http://www.w3.org", "") and "url(http" not in html


def test_notebook_shows_search_and_model(encoders, tmp_path):
    cells = [
        SEARCH.format(time=None, trials=3),
        "search",
        "search.load()",
        "from headhunt.sklearn import HeadClassifier\n"
        "fitted = HeadClassifier(ENCODER, recipe=headhunt.Recipe(epochs=2), verbose=True).fit(TEXTS, LABELS)",
    ]
    client = run_notebook(cells, tmp_path, encoders())
    _, searching, search, model, training = (cell["outputs"] for cell in client.nb.cells)
    assert [one["output_type"] for one in searching] == ["display_data"], "one output that changes, and nothing else"
    assert re.search(r"4 candidates in .*, saved in run", searching[0]["data"]["text/html"])
    (summary,) = search
    assert summary["data"]["text/plain"].startswith(f"Search({str(tmp_path / 'run')!r}")
    sentence = RunDirectory(tmp_path / "run").read_result().verdict.sentence
    assert sentence[:30] in summary["data"]["text/html"]
    assert "One text in, one of 2 classes out." in model[0]["data"]["text/html"]
    assert [one["output_type"] for one in training] == ["display_data"] and "examples" in str(training)
    for outputs in (searching, search, model, training):
        check_harmless(outputs[0]["data"]["text/html"])
    assert len(client.sent) < 120, "a notebook is not flooded"


@pytest.mark.slow
def test_search_ends_with_best_model_if_kernel_is_interrupted(encoders, tmp_path):
    began = time.time()
    cells = [SEARCH.format(time=150, trials=None), "print(search.result.reason, search.model_dir)"]
    client = run_notebook(cells, tmp_path, encoders(), stop_when="4 results")
    assert client.stop_when == "" and time.time() - began < 120
    assert client.nb.cells[-1]["outputs"][0]["text"].startswith("interrupted run")
    assert [one["output_type"] for one in client.nb.cells[1]["outputs"]] == ["display_data"], client.nb.cells[1]


@pytest.mark.parametrize("status", ["finished", "running", "just started"])
def test_search_summary_shows_known_facts(status, tmp_path):
    folder = make_run(tmp_path / "run", 24, ended=status == "finished")
    rename_task(folder, HOSTILE)
    if status == "just started":
        keep_events(folder, 2)
    html = headhunt.Search(folder)._repr_html_()
    assert html == search_summary(folder)
    check_harmless(html)
    assert "alert(&quot;owned&quot;)" in html
    assert ("A reliable gain" in html) == ("headhunt.load(" in html) == (status == "finished")
    assert ("not finished" in html) == (status != "finished")
    assert html.count("<svg") == {"finished": 2, "running": 2, "just started": 0}[status]
    assert html.count("<tr") == {"finished": 6, "running": 6, "just started": 0}[status]
    assert "Test rows evaluated" not in html


def test_search_summary_notes_repeated_use_of_test_rows(tmp_path):
    directory = RunDirectory(make_run(tmp_path / "run", 12))
    directory.write(replace(directory.read_result(), test_evaluations=2))
    assert "Test rows evaluated 2 times." in search_summary(directory.path)


def test_live_view_draws_at_most_once_a_second(tmp_path, monkeypatch):
    search = replace(running_search(make_run(tmp_path / "run", 12, ended=False)), name=HOSTILE)
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(notebook, "steady_time", lambda: clock.now)
    view, drawings = LiveView(), []
    monkeypatch.chdir(tmp_path)

    view.on_start(search)
    view._replace = drawings.append
    for _ in range(1000):
        clock.now += 0.005
        search.deadline = clock.now + 60
        view.on_update(search)
    assert len(drawings) == 4
    assert "searching" in drawings[0] and "Interrupt the kernel" in drawings[0] and "<svg" in drawings[0]
    search.stage = "testing"
    view.on_update(search)
    assert len(drawings) == 5, "a new stage is shown at once"
    view.on_end(search)
    assert "saved in run<" in drawings[-1]
    for drawing in drawings:
        check_harmless(drawing)


@pytest.mark.parametrize(
    "problem_type", ["single_label_classification", "multi_label_classification", "regression", "pair"]
)
def test_model_summary_shows_input_output_and_architecture(problem_type, encoders):
    names = {
        "single_label_classification": LABELS,
        "multi_label_classification": [[label, HOSTILE] for label in LABELS],
        "regression": np.arange(96) / 7.0,
    }
    labels = names.get(problem_type, LABELS)
    data = {"text": TEXTS, "label": labels} | ({"text_b": TEXTS[::-1]} if problem_type == "pair" else {})
    head = Head(pooling="mean", mlp=Mlp(width=32), siamese="concat" if problem_type == "pair" else None)
    spec = Spec(encoder=encoders(), head=head, recipe=Recipe(epochs=1))
    html = headhunt.fit(
        data, spec=spec, text="text", text_b="text_b" if problem_type == "pair" else None, label="label"
    )._repr_html_()
    check_harmless(html)
    statements = {
        "single_label_classification": "one of 2 classes",
        "multi_label_classification": "any of 3 labels",
        "regression": "a number",
        "pair": "Two texts in",
    }
    assert statements[problem_type] in html and "mean pooling" in html and "MLP, 1 hidden layer" in html
    assert "on test rows" in html and ("another" in html) == (problem_type == "pair")


def test_model_summary_without_spec_and_facts(encoders, tmp_path):
    predictor = headhunt.fit((TEXTS, [HOSTILE if label == "good" else label for label in LABELS]), encoder=encoders())
    predictor.spec, predictor.facts = None, {}
    html = predictor._repr_html_()
    check_harmless(html)
    assert "alert(&quot;owned&quot;)" in html


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_summary_follows_theme_of_notebook(theme, encoders, tmp_path):
    summary = headhunt.fit((TEXTS, LABELS), encoder=encoders())._repr_html_()
    page = tmp_path / "page.html"
    light = str(theme == "light").lower()
    script = "document.title = getComputedStyle(document.querySelector('.headhunt-summary')).backgroundColor"
    page.write_text(
        f'<meta charset=utf-8><body data-jp-theme-light="{light}">{summary}<script>{script}</script></body>'
    )
    command = [require_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    (paper,) = re.findall(r"<title>rgb\((\d+), (\d+), (\d+)\)</title>", done.stdout)
    assert all((int(part) > 240) if theme == "light" else (int(part) < 40) for part in paper)
