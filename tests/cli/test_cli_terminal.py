"""Labels, file names and messages cannot move the cursor of a terminal, forge a line or become formulas."""

from __future__ import annotations

import csv
import io

import pytest

from headhunt.cli.output import log, print_corpus, print_evaluation, say
from headhunt.cli.prediction import PredictionWriter
from headhunt.delivery.corpus import Summary
from headhunt.errors import visible
from headhunt.evaluation import Prediction
from headhunt.evaluation.metrics import ClassScores, Evaluation

HOSTILE = "good\nRESULT   100.0 % right\x1b[2J\x9b1A\u202e\t"


def test_visible_shows_control_characters_and_keeps_all_else():
    assert visible(HOSTILE) == r"good\nRESULT   100.0 % right\x1b[2J\x9b1A\u202e\t"
    assert visible("Größe 10 €, 好, 👩‍🚀", keep="\n") == "Größe 10 €, 好, 👩‍🚀"
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def check(printed: str) -> None:
    assert not set("\x1b\x9b\u202e\r") & set(printed), printed
    assert not any(line.startswith("RESULT") for line in printed.splitlines()), printed


def test_no_printed_name_moves_the_cursor_or_forges_a_line(capsys):
    summary = Summary("out", 1, 1, {}, {HOSTILE: HOSTILE}, 1, 0)
    print_corpus(summary, "out", as_json=False)
    classes = [ClassScores(HOSTILE, 5, 0.5, 0.5, 0.5), ClassScores("bad", 5, 0.5, 0.5, 0.5)]
    evaluation = Evaluation("single_label_classification", 10, {}, classes, [[5, 0], [0, 5]])
    print_evaluation(evaluation, [HOSTILE, "bad"], as_json=False)
    for text in (f"error: {visible(HOSTILE)}", "\x1b[2J"):
        log(text)
        say(text)
    stream = io.StringIO()
    writer = PredictionWriter(stream, "plain")
    writer.write({"text": ["a"]}, [Prediction(HOSTILE, 0.5, {HOSTILE: 0.5})])
    assert stream.getvalue().count("\n") == 1 and stream.getvalue().count("\t") == 1
    printed = capsys.readouterr()
    check(printed.out + printed.err + stream.getvalue())


@pytest.mark.parametrize("escape", [False, True])
def test_formulas_are_escaped_in_csv_if_asked_for(escape):
    stream = io.StringIO(newline="")
    writer = PredictionWriter(stream, "csv")
    writer.escape_formulas = escape
    cells = ["=1+1", "+1", "-1", "@a", "\ta", "a=1", -1.5]
    writer.write({"=text": cells}, [Prediction("=label", 0.5, {"=label": 0.5})] * len(cells))
    rows = list(csv.reader(io.StringIO(stream.getvalue(), newline="")))
    mark = "'" if escape else ""
    assert [row[0] for row in rows] == [*(f"{mark}{cell}" for cell in ("=text", *cells[:5])), "a=1", "-1.5"]
    assert rows[1][1] == f"{mark}=label"
