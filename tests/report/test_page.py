"""The report of a search: its facts, its drawings, and the page in a real browser."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headhunt.data import Task
from headhunt.engine.search import Settings
from headhunt.errors import HeadhuntError
from headhunt.evaluation import DEFAULT_METRIC
from headhunt.report import charts, facts, write
from headhunt.report.figures import SECTIONS, front, leaf_words, stages, ticks
from headhunt.report.page import _confusion, render
from headhunt.run.directory import Run
from headhunt.run.state import Outcome
from headhunt.run.task import open_task, save_task
from headhunt.spec import Choice, Int, Log, Space, Spec
from headhunt.study.candidates import Candidates
from headhunt.study.executors import InlineExecutor
from headhunt.study.study import Limits, Study

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
NASTY = '</script><script>document.title="owned"</script><img src="http://example.org/x.png" onerror="alert(1)">'
LABELS = ("praise", "complaint", "<b>question</b>")
VERSIONS = {"python": "3.12.1", "headhunt": "0.1.0", "torch": "2.6.0", "transformers": "5.1.0", "numpy": "2.1.0"}


# --- a run without training


class Toy:
    """Scores candidates by a formula, answers held-out rows accordingly, and lets time pass."""

    def __init__(self, targets: np.ndarray, classes: int) -> None:
        self.targets, self.classes, self.now = targets, classes, 1_750_000_000.0

    def clock(self) -> float:
        return self.now

    def true(self, spec: dict) -> float:
        head, recipe = spec["head"], spec["recipe"]
        pooling = {"attention": 0.03, "mean": 0.025, "mean_max": 0.02, "cls": 0.0, "pooler": -0.01}
        score = 0.86 + pooling.get(head["pooling"], 0.005) - 0.02 * abs(math.log(recipe["learning_rate"] / 1.2e-4))
        score -= 0.05 * (recipe["freeze"] == "all") + 0.02 * (head["blocks"] is not None)
        return score + 0.012 * (head["mlp"] is not None) + 0.01 * (recipe["smart"] is not None)

    def __call__(self, request: Request) -> Outcome:
        rng = random.Random(f"{request.seed}/{request.rung}")
        seconds = (4 + 9 * rng.random()) * max(request.fraction, 0.05) * 3
        self.now += seconds
        if request.trial and rng.random() < 0.04:
            return Outcome("collapsed", seconds=seconds, extra={"message": f"it gives the same answer {NASTY}"})
        score = self.true(request.spec) - 0.06 * (1 - request.fraction) + rng.gauss(0, 0.008)
        if request.trial and rng.random() < 0.03:
            score -= 0.3
        score = min(score, 0.99)
        if request.fraction == 1 and request.predictions:
            Path(request.predictions).parent.mkdir(parents=True, exist_ok=True)
            rows = np.arange(len(self.targets))
            np.savez(request.predictions, rows=rows, outputs=self.answers(score, request.seed))
        losses = [round(0.7 * math.exp(-0.5 * step) + 0.02 * rng.random(), 4) for step in range(9)]
        return Outcome("ok", score, seconds, int(3000 * request.fraction), {"loss": losses[-1], "losses": losses})

    def answers(self, score: float, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        if not self.classes:
            return self.targets + rng.normal(0, 1 - score, len(self.targets)).astype(np.float32)
        said = np.where(
            rng.random(len(self.targets)) < score, self.targets, rng.integers(0, self.classes, len(self.targets))
        )
        sure = rng.uniform(0.6, 0.99, len(said)).astype(np.float32)
        outputs = np.repeat(((1 - sure) / (self.classes - 1))[:, None], self.classes, axis=1)
        outputs[np.arange(len(said)), said] = sure
        return outputs


def make_run(
    folder: Path,
    trials: int,
    *,
    problem_type: str = "single_label_classification",
    pair: bool = False,
    strategy: str = "random",
    ended: bool = True,
) -> Path:
    """A run directory as a search leaves it, made in a second; without `ended` it is cut off before its end."""
    rng = random.Random(0)
    words = [
        "the",
        "a",
        "film",
        "plot",
        "was",
        "very",
        "slow",
        "bright",
        "dull",
        "dog",
        "ran",
        "over",
        "seven",
        "hills",
    ]
    texts = [" ".join(rng.choice(words) for _ in range(rng.randint(3, 30))) + f" {i}" for i in range(240)]
    texts[7] = NASTY
    labels = [
        LABELS[rng.choice((0, 0, 0, 1, 1, 2))] if problem_type == "single_label_classification" else rng.gauss(3, 1)
        for _ in texts
    ]
    columns = {"review": texts, "label": labels} | ({"other": [*texts[1:], "end"]} if pair else {})
    named = {"text": "review", "label": "label"} | ({"text_b": "other"} if pair else {})
    task = Task.load(pa.table(columns), seed=0, **named)
    save_task(task, folder / "task")
    space = Space.load("default", 6)
    metric = DEFAULT_METRIC[problem_type]
    settings = Settings(ENCODER, space.to_dict(), strategy=strategy, metric=metric, time=None, trials=trials)
    settings.write(folder)
    toy = Toy(open_task(folder / "task").splits["train"].targets, len(task.labels))
    with pytest.MonkeyPatch.context() as patch, Run(folder, write=True, now=toy.clock) as run:
        patch.setattr("os.fsync", lambda handle: None)
        candidates = Candidates(space, encoder=ENCODER, pair=pair, rows=len(toy.targets))
        study = Study(
            run,
            candidates,
            InlineExecutor(toy),
            strategy=strategy,
            limits=Limits(trials=trials),
            versions=VERSIONS,
            clock=toy.clock,
        )
        study.go()
        state = study.state
    if not ended:
        lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "ledger.jsonl").write_bytes(b"".join(lines[: len(lines) * 2 // 3]))
        return folder
    (folder / "model").mkdir()
    for name, data in (("headhunt.json", {}), ("config.json", {"encoder": {"num_hidden_layers": 6}})):
        (folder / "model" / name).write_text(json.dumps(data))
    board = [trial for trial in state.leaderboard() if trial.number]
    put(folder, "result.json", result_of(state, board))
    put(folder, "ablation.json", ABLATION)
    put(folder, "importance.json", IMPORTANCE)
    return folder


def put(folder: Path, name: str, data: dict) -> None:
    (folder / name).write_text(json.dumps(data), encoding="utf-8")


def result_of(state, board) -> dict:
    best, plain = board[0], state.trials[0]

    def about(trial) -> dict:
        return {"trial": trial.number, "rung": trial.best[0], "score": trial.best[1], "spec": trial.spec}

    def scores(value: float) -> dict:
        return {
            name: {"value": value - 0.01 * i, "low": value - 0.022, "high": value + 0.019}
            for i, name in enumerate(METRICS)
        }

    finalists = [
        {
            "trial": trial.number,
            "scores": [trial.best[1] + 0.002 * i for i in range(3)],
            "latency": {
                "1": {"p50_ms": 4.0 + 0.7 * place, "p99_ms": 6.1 + place},
                "32": {"p50_ms": 60.0 + 9 * place, "p99_ms": 80.5},
            },
            "megabytes": 91.2 - 0.8 * place,
            "gflops": 1.4,
            "parameters": 22_700_000 + 1000 * place,
        }
        for place, trial in enumerate([plain, *board[3::-1]])
    ]
    return {
        "schema": 1,
        "reason": "trials",
        "metric": "accuracy",
        "trials": len(state.trials),
        "results": len(state.settled),
        "seconds": state.elapsed,
        "model": "model",
        "model_from": f"{best.number:06d}-all",
        "best": about(best),
        "plain": about(plain),
        "mean_of": [trial.number for trial in board[:4]],
        "judged_on": "3 parts, out of fold",
        "rungs": [
            {"rung": i, "fraction": f, "results": 40, "promoted": 12, "failed": 1, "seconds": 321.5, "best": 0.9}
            for i, f in enumerate((1 / 9, 1 / 3, 1.0))
        ],
        "versions": VERSIONS,
        "test_rows": 1000,
        "test": {"model": scores(0.902), "plain": scores(0.866), "mean": scores(0.909)},
        "verdict": {
            "sentence": "A reliable gain: the winner reaches 90.2 % where the plain head reaches 86.6 %, on 1,000 test "
            "rows: +3.6 points (95 % interval +1.4 points to +5.8 points, p = 0.0014).",
            "claim": "gain",
            "gain": 0.036,
            "low": 0.014,
            "high": 0.058,
            "p": 0.0014,
            "delivered": "winner",
        },
        "confusion": {
            "model": [[470, 20, 10], [31, 300, 9], [11, 17, 132]],
            "plain": [[455, 33, 12], [41, 280, 19], [14, 15, 131]],
        },
        "calibration": {
            "model": [
                {"confidence": c, "accuracy": a, "rows": r}
                for c, a, r in (
                    (0.55, 0.5, 40),
                    (0.66, 0.6, 90),
                    (0.78, 0.71, 150),
                    (0.9, 0.87, 300),
                    (0.98, 0.97, 420),
                )
            ],
            "temperature": 1.21,
        },
        "mistakes": [
            {"text": f"It was {NASTY}", "label": "praise", "model": LABELS[2], "plain": "praise", "confidence": 0.987},
            {
                "text": "Not the worst evening I have had. " * 30,
                "label": "praise",
                "model": "complaint",
                "plain": "complaint",
                "confidence": 0.95,
            },
            {
                "text": "Why?",
                "text_b": "Because.",
                "label": LABELS[2],
                "model": "complaint",
                "plain": LABELS[2],
                "confidence": 0.81,
            },
        ],
        "finalists": finalists,
        "cost": {"seconds": 1234.5, "trials": len(state.trials), "examples": 1_234_567, "peak_gb": 2.31},
    }


METRICS = ("accuracy", "macro_f1", "weighted_f1", "mcc")
ABLATION = {
    "schema": 1,
    "base": {"score": 0.901, "low": 0.88, "high": 0.92},
    "items": [
        {"name": "freezing: 3 → none", "score": 0.905, "difference": 0.004, "low": -0.009, "high": 0.017},
        {"name": "pooling: attention → cls", "score": 0.87, "difference": -0.031, "low": -0.049, "high": -0.012},
        {"name": "faster head: 5 → 1", "score": 0.884, "difference": -0.017, "low": -0.03, "high": -0.004},
        {"name": "MLP: on → none", "score": 0.893, "difference": -0.008, "low": -0.02, "high": 0.004},
    ],
}
IMPORTANCE = {
    "schema": 1,
    "items": [
        {"name": name, "importance": value}
        for name, value in (
            ("recipe.learning_rate", 0.41),
            ("head.pooling", 0.22),
            ("recipe.freeze", 0.17),
            ("head.mlp", 0.06),
        )
    ],
}


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """A search that is over, with all there may be."""
    return make_run(tmp_path_factory.mktemp("report") / "whole", 60, strategy="bohb")


# --- facts


@pytest.fixture(scope="session")
def running(tmp_path_factory) -> Path:
    """A search that was cut off."""
    return make_run(tmp_path_factory.mktemp("report") / "running", 24, ended=False)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Path:
    """A search over pairs of texts."""
    return make_run(tmp_path_factory.mktemp("report") / "pairs", 20, pair=True)


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_the_facts_of_a_whole_search_have_every_section(whole):
    found = facts(whole)
    assert set(found) == {"schema", *SECTIONS}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["headline"].startswith("A reliable gain")
    assert len(found["trials"]) == 60 and {row["trial"] for row in found["trials"]} == set(range(60))
    assert [row["score"] for row in found["trials"][:2]] == sorted([row["score"] for row in found["trials"][:2]])[::-1]
    assert found["winner"]["trial"] == found["trials"][0]["trial"]
    assert found["load"]["lines"][1] == f'model = headhunt.load("{(whole / "model").as_posix()}")'
    assert [stage["stage"] for stage in found["winner"]["stages"]][:2] == ["tokens", "encoder"]


def test_a_search_under_way_is_told_from_held_out_rows(running):
    found = facts(running)
    assert not found["run"]["over"] and "verdict" not in found and "load" not in found and "ablation" not in found
    assert "so far" in found["headline"] and "not tested" in found["headline"]
    assert found["scores"]["on"] == found["confusion"]["on"] == "held-out rows"
    assert set(found["confusion"]["models"]) == {"model", "plain"}
    assert all(row["label"] != row["model"] for row in found["mistakes"]["items"])
    assert "not over" in render(found)


@pytest.mark.parametrize("name", ["result.json", "ablation.json", "importance.json", "predictions", "environment.json"])
def test_what_is_missing_is_left_out(copy, name):
    before = facts(copy)
    shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    after = facts(copy)
    gone = {"ablation.json": {"ablation"}, "importance.json": {"importance"}}.get(name)
    assert set(after) <= set(before) and (gone is None or set(before) - set(after) == gone)
    for section in set(before) - set(after):
        assert f'<section id="{section}"' not in render(after)
    assert "<h1>" in render(after)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": None, "test": {}, "confusion": {}, "calibration": {}, "mistakes": [], "finalists": [], "cost": {}},
        {"verdict": {"sentence": "No reliable gain.", "claim": "no gain", "delivered": "plain"}, "best": None},
        {"finalists": [{"trial": 3, "scores": [0.9]}, {"trial": 999, "scores": [0.9]}, {"trial": 4, "scores": []}]},
        {"calibration": {"temperature": None}, "confusion": {"model": [[1, 2], [3, 4]]}, "mistakes": [{"text": "x"}]},
        {"best": None, "plain": {"trial": 0, "rung": None, "score": None}},
        {"test": {"model": {"accuracy": {"value": 0.9, "low": 0.9, "high": 0.9}}}},
    ],
)
def test_a_result_with_less_in_it_still_makes_a_page(copy, change):
    put(copy, "result.json", json.loads((copy / "result.json").read_text()) | change)
    check_html(write(copy).read_text(encoding="utf-8"))


def test_a_search_that_went_on_says_that_its_verdict_is_old(copy):
    put(copy, "result.json", json.loads((copy / "result.json").read_text()) | {"results": 3})
    assert facts(copy)["run"]["stale"]
    assert "gone on since" in render(facts(copy))


@pytest.mark.parametrize("records", [1, 2])
def test_a_search_that_has_just_begun_has_a_page(copy, records):
    for name in ("result.json", "predictions"):
        shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    lines = (copy / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "ledger.jsonl").write_bytes(b"".join(lines[:records]))
    found = facts(copy)
    assert found["headline"].startswith("No candidate has a score yet")
    check_html(render(found))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(HeadhuntError):
        write(tmp_path)


def test_a_candidate_of_pairs_is_drawn_twice_until_it_compares(pairs):
    spec = Spec.from_dict(
        {"encoder": ENCODER, "head": {"siamese": "cosine", "pooling": "mean"}, "recipe": {"freeze": 4}}
    )
    drawn = stages(spec, 6, True, "single_label_classification", 2)
    assert [stage["stage"] for stage in drawn] == ["tokens", "encoder", "layers", "pooling", "comparison", "output"]
    assert [stage.get("twice", False) for stage in drawn] == [True] * 4 + [False] * 2
    picture = charts.diagram(drawn)
    assert picture.count('class="layer frozen"') == 2 * 5 and picture.count('class="layer trained"') == 2 * 2
    assert 'model.predict("one text", "another")' in facts(pairs)["load"]["lines"][2]


def test_a_number_has_scores_and_no_classes(tmp_path):
    found = facts(make_run(tmp_path / "run", 12, problem_type="regression", ended=False))
    assert list(found["scores"]["metrics"]) == ["spearman", "mse", "pearson"]
    assert not {"confusion", "mistakes", "calibration"} & set(found) and "counts" not in found["data"]
    assert found["winner"]["stages"][-1]["title"] == "a number"
    check_html(render(found))


def test_a_front_holds_what_nothing_beats():
    items = [
        {"trial": i, "score": s, "ms": m}
        for i, (s, m) in enumerate([(0.9, 5), (0.8, 3), (0.85, 6), (0.8, 4), (0.7, None)])
    ]
    assert front(items, "ms") == [1, 0]


def test_leaves_are_named_and_marked():
    assert leaf_words("head.mlp.width") == "MLP width" and leaf_words("recipe.layer_decay") == "layer decay"
    assert [words for _, words in ticks(Choice((None, False, "mean")))] == ["off", "no", "mean"]
    assert [words for _, words in ticks(Int(1, 2))] == ["1", "2"]
    assert [words for _, words in ticks(Log(1e-5, 1e-3))] == ["1e-05", "0.0001", "0.001"]


def test_parts_that_are_off_have_no_place(whole):
    found = facts(whole)["space"]
    names = [leaf["path"] for leaf in found["leaves"]]
    for row in found["trials"]:
        on = row["places"][names.index("head.mlp")] > 0.5
        assert (row["places"][names.index("head.mlp.width")] is not None) == on


def test_the_command_to_repeat_is_one_the_program_takes(whole):
    from typer.main import get_command

    from headhunt.cli import app

    words = shlex.split(" ".join(facts(whole)["repeat"]["command"]))
    command = get_command(app).commands["search"]
    taken = command.make_context("search", words[2:], resilient_parsing=False).params
    assert taken["encoder"] == ENCODER and taken["trials"] == 60 and taken["text"] == "review"


def test_the_report_loads_no_torch(whole):
    heavy = "[name for name in ('torch', 'transformers') if name in sys.modules]"
    code = f"import sys, headhunt.report as report; report.facts({str(whole)!r}); print({heavy})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- the page as text


class Checker(HTMLParser):
    """Collects tags, holds that they are closed, and that nothing leads out of the page."""

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


def test_the_page_is_sound_and_says_what_data_says_as_text(whole):
    path = write(whole)
    page = path.read_text(encoding="utf-8")
    check_html(page)
    assert page.count("<section") == 15 and NASTY not in page and "&lt;b&gt;question&lt;/b&gt;" in page
    assert json.loads((whole / "report.json").read_text(encoding="utf-8")) == facts(whole)
    assert "http" not in page.replace(
        NASTY.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;"), ""
    ).replace('http-equiv="Content-Security-Policy"', "")


def test_many_classes_become_a_list():
    labels = [f"class {i}" for i in range(40)]
    matrix = [[int(i != j) * (i + 2 * j) for j in range(40)] for i in range(40)]
    shown = _confusion({"confusion": {"on": "test rows", "rows": 9, "labels": labels, "models": {"model": matrix}}})
    assert "<svg" not in shown and "class 39" in shown


def test_five_hundred_trials_stay_small(tmp_path):
    path = write(make_run(tmp_path / "many", 500))
    assert 300_000 < path.stat().st_size < 6_000_000
    assert (tmp_path / "many" / "report.json").stat().st_size < 6_000_000


# --- the page in a browser


def test_trouble_is_seen(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("no"); undefined.x</script>')
    browser.open(page, 400, False)
    told = json.dumps(browser.trouble())
    assert "127.0.0.1:9" in told and '"no"' in told and "TypeError" in told


def test_a_foreign_script_is_not_run(browser, whole, tmp_path):
    page = write(whole).read_text(encoding="utf-8")
    path = tmp_path / "page.html"
    path.write_text(page.replace("<main>", '<main><script>document.title = "owned"</script>'), encoding="utf-8")
    browser.open(path, 400, False)
    assert browser.run("document.title") == "task · headhunt"
    assert "Content Security Policy" in json.dumps(browser.trouble())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_opens_without_trouble(browser, whole, width, dark):
    browser.open(write(whole), width, dark)
    assert browser.trouble() == []
    assert browser.run("document.title") == "task · headhunt"
    assert browser.run("document.documentElement.scrollWidth") <= width  # nothing sticks out
    paper = browser.run("getComputedStyle(document.documentElement).backgroundColor")
    light = [int(part) for part in re.findall(r"\d+", paper)[:3]]
    assert (max(light) < 60) if dark else (min(light) > 200)
    shown = browser.run(
        "[...document.querySelectorAll('section svg')].filter(one => one.getClientRects().length)"
        ".every(one => one.getBoundingClientRect().width > 100)"
    )
    assert shown
    hidden = browser.run("getComputedStyle(document.querySelector('#progress svg.wide')).display === 'none'")
    assert hidden == (width == 400)


def column(browser, number: int) -> list:
    script = (
        "[...document.querySelectorAll('#trials .tall tbody tr')].filter(row => !row.hidden)"
        f".map(row => row.cells[{number}]).map(cell => cell.dataset.value ?? cell.textContent)"
    )
    return browser.run(script)


@pytest.mark.parametrize("width", [1400, 400])
def test_a_click_sorts(browser, whole, width):
    browser.open(write(whole), width, False)
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


def test_typing_filters(browser, whole):
    browser.open(write(whole), 1400, False)
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


def test_the_button_turns_light_to_dark_and_is_remembered(browser, whole):
    page = write(whole)
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


def test_it_prints_in_black_on_white_with_every_row(browser, whole):
    browser.open(write(whole), 718, True)
    browser("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.querySelector('.tall')).maxHeight") == "none"
    assert browser.run("getComputedStyle(document.getElementById('theme')).display") == "none"
    assert max(int(part) for part in re.findall(r"\d+", browser.run("getComputedStyle(document.body).color"))[:3]) < 80
    browser("Emulation.setEmulatedMedia", media="")


def test_an_unfinished_search_opens_without_trouble(browser, running, pairs):
    for folder in (running, pairs):
        browser.open(write(folder), 400, False)
        assert browser.trouble() == [] and browser.run("document.documentElement.scrollWidth") <= 400
