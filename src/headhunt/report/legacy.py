"""Present typed results as plain data, until every section of the report reads the types themselves."""

from __future__ import annotations

from typing import Any

from headhunt.run.results import SearchResult
from headhunt.run.schema import dump
from headhunt.run.task import TaskInfo

_MODELS = {"winner": "model", "plain": "plain", "ensemble": "mean"}


def task_data(task: TaskInfo) -> dict[str, Any]:
    """Return the description of the data as plain data."""
    return dict(dump(task))


def result_data(result: SearchResult | None) -> dict[str, Any]:
    """Return a result as plain data; empty if there is none."""
    if result is None:
        return {}
    data = dict(dump(result))
    test = data.pop("test") or {}
    data |= {"best": data.pop("winner"), "mean_of": data.pop("ensemble_members"), "judged_on": data["evaluated_on"]}
    data["cost"] = {name: data[name] for name in ("seconds", "trials", "examples")}
    data["finalists"] = [
        {"trial": one["trial"], "scores": one["scores"], **(one["cost"] or {})} for one in data["finalists"]
    ]
    if test:
        data["test_rows"] = test["rows"]
        data["test"] = {_MODELS[name]: scores for name, scores in test["scores"].items()}
        data["confusion"] = {_MODELS[name]: matrix for name, matrix in test["confusion"].items()}
        data["calibration"] = {"temperature": test["temperature"], "model": test["calibration"]}
        data["mistakes"] = [
            {
                **{key: one[key] for key in ("text", "text_b", "label", "confidence") if one[key] is not None},
                "model": one["prediction"],
                "plain": one["plain_prediction"],
            }
            for one in test["mistakes"]
        ]
    verdict = data["verdict"]
    data["verdict"] |= {"p": verdict["p_value"], "spread": verdict["training_std_error"]}
    data["verdict"]["trainings"] = verdict["training_runs"]
    return data
