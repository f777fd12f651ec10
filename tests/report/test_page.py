"""The report page: valid HTML without foreign content, and its behaviour in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import HOSTILE, keep_events, make_run

from headhunt import Head, Recipe
from headhunt.errors import HeadhuntError
from headhunt.report import collect_facts, write
from headhunt.report.page import render
from headhunt.report.sections import SECTIONS, _confusion
from headhunt.run.directory import RunDirectory
from headhunt.run.results import Finalist, TestResult, Verdict
from headhunt.spec import plain, stages


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("page") / "finished", 60)


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("page") / "running", 24, ended=False)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("page") / "pairs", 20, pair=True)


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


class Checker(HTMLParser):
    """Collects tags, and asserts that they are closed and that nothing leads out of the page."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open, self.tags, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        assert not any(name.startswith("on") for name in given)
        for name in ("href", "src"):
            assert given.get(name, "#").startswith(("#", "data:")), given
        if tag == "svg":
            assert given["role"] == "img" and given["aria-label"].strip()
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_html(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == [] and len(checker.ids) == len(set(checker.ids))
    assert checker.tags.count("script") == 1 and "img" not in checker.tags and "b" in checker.tags
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", page.lower())
    return checker


def render_run(folder: Path) -> str:
    return render(collect_facts(folder))


def change_result(folder: Path, **changes) -> None:
    directory = RunDirectory(folder)
    directory.write(replace(directory.read_result(), **changes))


def test_write_escapes_data_and_writes_the_same_facts(finished):
    path = write(finished)
    page = path.read_text(encoding="utf-8")
    check_html(page)
    assert page.count("<section") == 16 == len(SECTIONS) - 2  # no errors of numbers, no rejected texts
    assert HOSTILE not in page and "&lt;b&gt;question&lt;/b&gt;" in page
    report_data = RunDirectory(finished).report_data
    assert json.loads(report_data.read_text(encoding="utf-8")) == collect_facts(finished)
    escaped = HOSTILE.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    assert "http" not in page.replace(escaped, "").replace('http-equiv="Content-Security-Policy"', "")


def test_write_refuses_folder_without_run(tmp_path):
    with pytest.raises(HeadhuntError):
        write(tmp_path)


@pytest.mark.parametrize("attribute", ["result", "ablation", "importances", "environment"])
def test_render_leaves_out_sections_without_facts(copy, attribute):
    before = collect_facts(copy)
    getattr(RunDirectory(copy), attribute).unlink()
    after = collect_facts(copy)
    page = render(after)
    for section in set(before) - set(after):
        assert f'<section id="{section}"' not in page
    assert "<h1>" in page


@pytest.mark.parametrize(
    "change",
    [
        {"test": None, "finalists": (), "rungs": (), "versions": {}},
        {"verdict": Verdict("plain", "no gain", "No reliable gain."), "winner": None},
        {"finalists": (Finalist(3, (0.9,)), Finalist(999, (0.9,)), Finalist(4, ()))},
        {"winner": None, "plain": None},
        {"test": TestResult(9, {}, confusion={"winner": [[1, 2], [3, 4]]})},
        {"verdict": Verdict("winner", "untested", "Not tested."), "model": None},
    ],
    ids=["no test", "no winner", "few finalists", "no trial", "no scores", "untested"],
)
def test_render_of_result_with_fewer_parts(copy, change):
    change_result(copy, **change)
    check_html(write(copy).read_text(encoding="utf-8"))


def test_render_of_test_result_with_one_model(copy):
    test = RunDirectory(copy).read_result().test
    score = {"accuracy": test.scores["winner"]["accuracy"]}
    change_result(copy, test=TestResult(9, {"winner": score}, temperature=None))
    page = render_run(copy)
    check_html(page)
    assert "All metrics" not in page and 'id="confusion"' not in page


def test_render_notes_unfinished_and_continued_search(running, copy):
    assert "The search is not finished" in render_run(running)
    change_result(copy, results=3)
    assert "continued after this verdict" in render_run(copy)


def test_render_notes_repeated_use_of_test_rows(copy):
    assert "Test rows evaluated" not in render_run(copy)
    change_result(copy, test_evaluations=3)
    page = render_run(copy)
    assert "Test rows evaluated 3 times" in page and "evaluated 3 times</dd>" in page
    check_html(page)


@pytest.mark.parametrize("count", [1, 2])
def test_render_of_search_that_has_just_started(copy, count):
    RunDirectory(copy).result.unlink()
    shutil.rmtree(copy / "predictions")
    keep_events(copy, count)
    page = render_run(copy)
    check_html(page)
    assert "No candidate has a score yet" in page


def test_render_of_regression(tmp_path):
    check_html(render_run(make_run(tmp_path / "run", 12, problem_type="regression", ended=False)))


def test_confusion_of_many_classes_is_a_table():
    labels = [f"class {i}" for i in range(40)]
    matrix = [[int(i != j) * (i + 2 * j) for j in range(40)] for i in range(40)]
    facts = {"confusion": {"on": "test rows", "rows": 9, "labels": labels, "models": {"winner": matrix}}}
    html = _confusion(facts, facts["confusion"])
    assert "<svg" not in html and "class 39" in html


def test_confusions_of_several_classes_are_drawn_and_listed():
    labels = [f"card payment about {i}" for i in range(15)]
    matrix = [[40 if i == j else int(j == i + 1) * i for j in range(15)] for i in range(15)]
    facts = {"confusion": {"on": "test rows", "rows": 9, "labels": labels, "models": {"winner": matrix}}}
    html = _confusion(facts, facts["confusion"])
    heads = re.findall(r'class="tick"[^>]*>([^<]+)<', html)
    assert heads == [str(number) for number in range(1, 16)], "columns can be told apart"
    assert "<td>card payment about 13 → card payment about 14</td>" in html
    few = _confusion({}, {**facts["confusion"], "labels": ["no", "yes"], "models": {"plain": [[3, 1], [0, 2]]}})
    assert re.findall(r'class="tick"[^>]*>([^<]+)<', few) == ["no", "yes"] and "→" not in few


def test_word_counts_are_drawn_without_an_encoder(copy):
    found = collect_facts(copy)
    alone = replace(plain("an encoder"), head=Head(words="alone"), recipe=Recipe(solver="ridge", freeze="all"))
    found["winner"]["stages"] = stages(alone, 6, False, "single_label_classification", 3)
    page = render(found)
    drawing = re.search(r'<section id="winner".*?</figure>', page, re.DOTALL)[0]
    assert "word counts" in drawing and "an encoder" not in drawing and "read by the head" not in drawing
    assert ">Scores</h2>" in page and "Winner against" not in page


def test_write_keeps_page_of_many_trials_small(tmp_path):
    path = write(make_run(tmp_path / "many", 500))
    assert 300_000 < path.stat().st_size < 6_000_000
    assert RunDirectory(tmp_path / "many").report_data.stat().st_size < 6_000_000


# --- in a browser


def test_browser_reports_errors_and_requests(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("no"); undefined.x</script>')
    browser.open(page, 400, False)
    messages = json.dumps(browser.trouble())
    assert "127.0.0.1:9" in messages and '"no"' in messages and "TypeError" in messages


def test_page_does_not_run_foreign_script(browser, finished, tmp_path):
    page = write(finished).read_text(encoding="utf-8")
    path = tmp_path / "page.html"
    path.write_text(page.replace("<main>", '<main><script>document.title = "owned"</script>'), encoding="utf-8")
    browser.open(path, 400, False)
    assert browser.run("document.title") == "task · headhunt"
    assert "Content Security Policy" in json.dumps(browser.trouble())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_page_opens_without_errors(browser, finished, width, dark):
    browser.open(write(finished), width, dark)
    assert browser.trouble() == []
    assert browser.run("document.title") == "task · headhunt"
    assert browser.run("document.documentElement.scrollWidth") <= width  # nothing overflows
    paper = browser.run("getComputedStyle(document.documentElement).backgroundColor")
    light = [int(part) for part in re.findall(r"\d+", paper)[:3]]
    assert (max(light) < 60) if dark else (min(light) > 200)
    wide_enough = browser.run(
        "[...document.querySelectorAll('section svg')].filter(one => one.getClientRects().length)"
        ".every(one => one.getBoundingClientRect().width > 100)"
    )
    assert wide_enough
    hidden = browser.run("getComputedStyle(document.querySelector('#progress svg.wide')).display === 'none'")
    assert hidden == (width == 400)


def column(browser, number: int) -> list:
    script = (
        "[...document.querySelectorAll('#trials .tall tbody tr')].filter(row => !row.hidden)"
        f".map(row => row.cells[{number}]).map(cell => cell.dataset.value ?? cell.textContent)"
    )
    return browser.run(script)


@pytest.mark.parametrize("width", [1400, 400])
def test_page_sorts_trials_by_click(browser, finished, width):
    browser.open(write(finished), width, False)
    browser.click("#trials th:nth-child(1) button")
    assert [int(value) for value in column(browser, 0)] == list(range(60))
    browser.click("#trials th:nth-child(1) button")
    assert [int(value) for value in column(browser, 0)] == list(range(59, -1, -1))
    browser.click("#trials th:nth-child(2) button")
    scores = column(browser, 1)
    known = [float(score) for score in scores if score]
    assert known == sorted(known, reverse=True) and scores[: len(known)] == [s for s in scores if s]  # none last
    browser.click("#trials th:nth-child(4) button")
    words = [text.lower() for text in column(browser, 3)]
    assert words == sorted(words)
    assert browser.run("document.querySelector('#trials th:nth-child(4)').getAttribute('aria-sort')") == "ascending"
    assert browser.trouble() == []


def test_page_filters_trials_by_words(browser, finished):
    browser.open(write(finished), 1400, False)
    browser.click("#filter")
    browser.type("attention frozen")
    words = column(browser, 3)
    assert 0 < len(words) < 60 and all("attention" in text and "frozen" in text for text in words)
    assert browser.run("document.getElementById('count').textContent") == f"{len(words)} of 60 candidates"
    browser.click("#trials th:nth-child(1) button")
    assert len(column(browser, 0)) == len(words)
    browser.run("document.getElementById('filter').select()")
    browser.type("no such thing")
    assert column(browser, 0) == []


def test_page_remembers_theme(browser, finished):
    page = write(finished)
    browser.open(page, 1400, False)
    before = browser.run("getComputedStyle(document.body).color")
    assert browser.run("document.getElementById('theme').textContent") == "Dark"
    browser.click("#theme")
    assert browser.run("getComputedStyle(document.body).color") != before
    browser.open(page, 1400, False)
    assert browser.run("document.getElementById('theme').textContent") == "Light"
    browser.click("#theme")
    assert browser.run("getComputedStyle(document.body).color") == before
    browser.run("localStorage.clear()")


def test_page_prints_dark_on_white_with_every_row(browser, finished):
    browser.open(write(finished), 718, True)
    browser("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.querySelector('.tall')).maxHeight") == "none"
    assert browser.run("getComputedStyle(document.getElementById('theme')).display") == "none"
    assert max(int(part) for part in re.findall(r"\d+", browser.run("getComputedStyle(document.body).color"))[:3]) < 80
    browser("Emulation.setEmulatedMedia", media="")


def test_page_of_unfinished_search_and_of_pairs_opens_without_errors(browser, running, pairs):
    for folder in (running, pairs):
        browser.open(write(folder), 400, False)
        assert browser.trouble() == [] and browser.run("document.documentElement.scrollWidth") <= 400


def test_long_labels_fit_a_phone(browser, finished, tmp_path):
    labels = [f"balance_not_updated_after_cheque_or_cash_deposit_{i}" for i in range(15)]
    found = collect_facts(finished)
    matrix = [[i + j for j in range(15)] for i in range(15)]
    found["confusion"] |= {"labels": labels, "models": {"winner": matrix}}
    found["data"] |= {"labels": labels, "counts": list(range(15))}
    found["mistakes"]["items"][0] |= {"label": labels[0], "prediction": labels[1]}
    path = tmp_path / "page.html"
    path.write_text(render(found), encoding="utf-8")
    browser.open(path, 400, False)
    assert browser.trouble() == [] and browser.run("document.documentElement.scrollWidth") <= 400
    edges = "[...document.querySelectorAll('#confusion text, #data text')].map(one => one.getBoundingClientRect())"
    assert browser.run(f"Math.min(...{edges}.map(box => box.left))") >= 0
    assert browser.run(f"Math.max(...{edges}.map(box => box.right))") <= 400


def test_page_shows_the_cost_of_all_candidates(copy):
    page = write(copy).read_text()
    assert "Cost of all candidates" in page and "On the front of score, latency and size together" in page
