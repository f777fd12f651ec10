"""Charts and the diagram of an architecture as SVG."""

from __future__ import annotations

from headhunt.report.charts import bars, differences, whiskers
from headhunt.report.diagram import draw_diagram
from headhunt.report.svg import clock_ticks, compact, make_axis, number, percent, shorten, signed
from headhunt.spec import Spec, stages


def test_draw_diagram_shows_siamese_encoder_twice_until_comparison():
    head = {"siamese": "cosine", "pooling": "mean"}
    spec = Spec.from_dict({"encoder": "encoder", "head": head, "recipe": {"freeze": 4}})
    drawn = stages(spec, 6, True, "single_label_classification", 2)
    assert [stage["stage"] for stage in drawn] == ["tokens", "encoder", "layers", "pooling", "comparison", "output"]
    assert [stage.get("twice", False) for stage in drawn] == [True] * 4 + [False] * 2
    picture = draw_diagram(drawn)
    assert picture.count('class="layer frozen"') == 2 * 5 and picture.count('class="layer trained"') == 2 * 2


def test_whiskers_mark_plain_head_by_dashed_line_and_describe_values():
    rows = [
        {"role": "winner", "name": "winner (#3)", "value": 0.9, "low": 0.88, "high": 0.92},
        {"role": "plain", "name": "plain head", "value": 0.8, "low": 0.78, "high": 0.82},
    ]
    picture = whiskers(rows, "accuracy")
    assert picture.count('class="reference"') == 1 and picture.count("dot accent") == 1
    assert 'aria-label="accuracy with 95 % intervals: winner (#3) 0.9000 [0.8800, 0.9200]; plain head' in picture


def test_differences_highlight_only_significant_items():
    item = {"difference": -0.03, "low": -0.05, "high": -0.01}
    items = [{"name": "a", **item, "significant": True}, {"name": "b", **item, "significant": False}]
    picture = differences(items, "accuracy")
    assert picture.count("bar accent") == 1 and picture.count("bar neutral") == 1


def test_bars_escape_names():
    picture = bars([("<b>x</b>", 0.5)], "Importance", percent)
    assert "<b>" not in picture and "&lt;b&gt;" in picture


def test_numbers_use_minus_sign_and_units():
    assert number(-0.5, 2) == "−0.50" and number(None) == "–" and signed(0.25, 2) == "+0.25"
    assert (compact(22_700_000), compact(1240), compact(12.34)) == ("22.7 M", "1,240", "12.3")
    assert percent(0.125, 1) == "12.5\N{NO-BREAK SPACE}%" and shorten("abcdef", 4) == "abc…"


def test_make_axis_puts_ticks_at_round_numbers():
    ticks, scale = make_axis(0.8, 0.9, 0, 100, 5)
    assert [label for _, label in ticks] == ["0.80", "0.82", "0.84", "0.86", "0.88", "0.90"]
    assert scale(0.8) == 0 and abs(scale(0.9) - 100) < 1e-9
    assert make_axis(1.0, 1.0, 0, 100, 4)[0], "a single value has an axis too"


def test_clock_ticks_use_round_units():
    assert clock_ticks(95, 4) == [0, 30, 60, 90] and clock_ticks(7200, 4) == [0, 1800, 3600, 5400, 7200]
