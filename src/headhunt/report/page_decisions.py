"""Sections of the report about calibration, sizes of errors and rejected texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headhunt.report import charts
from headhunt.report.markup import description_list
from headhunt.report.svg import number, percent

Facts = Mapping[str, Any]


def calibration(found: Facts) -> str:
    """Return accuracy against confidence."""
    data = found["calibration"]
    terms = {
        "expected calibration error": percent(data["error"], 1),
        "temperature": None
        if data["temperature"] is None
        else f"{number(data['temperature'], 2)}, fitted on validation rows; 1 changes nothing",
    }
    what = (
        "share of rows that have a label, at each level of its probability"
        if data.get("several")
        else ("accuracy at each level of confidence")
    )
    text = f"On {data['on']}: {what}. On the dashed line the model is calibrated; below it, the model is overconfident."
    return f'<p>{text}</p><div class="two">{charts.calibration(data)}<div>{description_list(terms)}</div></div>'


def errors(found: Facts) -> str:
    """Return the size of the errors of predicted numbers."""
    data = found["errors"]
    return (
        f"<p>{percent(data['level'])} of the validation rows have an error of at most {number(data['error'])}; so have "
        f"{percent(data['coverage'], 1)} of the {data['on']}.</p>"
    )


def rejection(found: Facts) -> str:
    """Return coverage and accuracy of a model that rejects texts."""
    data = found["rejection"]
    asked = "" if data["asked"] is None else f" to answer {percent(data['asked'])}"
    terms = {
        "threshold": f"{number(data['threshold'])}, fitted on validation rows{asked}",
        "answered": percent(data["coverage"], 1),
        "accuracy of the answers": percent(data["accuracy"], 1),
        "accuracy without rejecting": percent(data["accuracy_of_all"], 1),
    }
    if data["label"] is not None and data["outside_rejected"] is not None:
        rejected = percent(data["outside_rejected"], 1)
        terms[f"rejected of class {data['label']}"] = f"{rejected} of {data['outside_rows']:,} rows"
    text = f"On {data['on']}: the model does not answer texts whose best class has a probability below the threshold."
    return f"<p>{text}</p>{description_list(terms)}"
