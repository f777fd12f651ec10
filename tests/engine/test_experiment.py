"""Experiments: the grid of a file, searches that continue after a kill, tables with intervals, the page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import refuse, succeed
from conftest import sentences
from searches import QUICK

import headhunt
from headhunt.engine.experiment import compare_cells, list_cells
from headhunt.evaluation.comparison import adjust_p_values, resample
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state

FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_experiment_file_can_be_listed(file, tmp_path):
    lines = succeed("experiment", file, "--dry-run", "--out", tmp_path).splitlines()
    assert len(FILES) >= 4 and len(lines) >= 3 and lines[-1].startswith(f"{len(lines) - 1} searches")


def write_rows(folder: Path, name: str, count: int, seed: int) -> None:
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(*sentences(count, seed), strict=True)])


def test_experiment_continues_after_a_kill_and_compares_what_it_delivers(tmp_path, encoders):
    write_rows(tmp_path, "train.csv", 120, 0)
    write_rows(tmp_path, "test.csv", 80, 1)
    space = QUICK.to_dict()
    definition = {"sets": {"words": {"train": "train.csv", "test": "test.csv"}}, "encoders": {"tiny": encoders()}}
    definition |= {"strategies": ["random", "bohb"], "budgets": ["none"], "spaces": {"quick": space}}
    definition |= {"rows": 60, "trials": 5, "workers": 0, "known_recipes": False, "solved": False}
    out, calls = tmp_path / "out", []

    def kill_at_the_second(line):
        calls.append(line)
        if len(calls) == 2:
            raise SystemExit

    options = {"out": out, "data": tmp_path}
    assert [row["strategy"] for row in headhunt.experiment(definition, **options, dry_run=True)] == ["random", "bohb"]
    with pytest.raises(SystemExit):
        headhunt.experiment(definition, **options, progress=kill_at_the_second)
    first, second = (RunDirectory(cell.folder) for cell in list_cells(definition, tmp_path, out))
    assert first.result.exists() and not second.path.exists() and calls[0].startswith("1/2 words tiny quick random")
    before = first.ledger.read_bytes()
    rows = headhunt.experiment(definition, **options)
    assert first.ledger.read_bytes() == before and second.result.exists()
    trials = len(read_state(second).settled)
    second.result.unlink()  # as after a kill in the last second
    again = headhunt.experiment(definition, **options)
    assert {trial.origin for trial in read_state(second).trials}.isdisjoint({"solved", "words"})
    assert second.result.exists() and trials == len(read_state(second).settled) > 4
    assert [row["score"] for row in again] == [row["score"] for row in rows]
    assert again == [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert all(row["train_rows"] == 60 and row["test_rows"] == 80 and row["seed"] == 0 for row in rows)
    table = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    assert [(row["setting"], row["against"]) for row in table] == [
        ("random", "plain head"),
        ("bohb", "plain head"),
        ("bohb", "random"),
    ]
    compared = compare_cells(list_cells(definition, tmp_path, out))
    for row, found in zip(compared, rows, strict=False):
        assert row["score"] - row["reference"] == pytest.approx(row["gain"], abs=1e-9)
        assert row["low"] <= row["gain"] <= row["high"] and row["p"] <= row["p_holm"]
        assert row["reference"] == pytest.approx(found["plain"], abs=0.2)
    page = (out / "report.html").read_text()
    assert (
        page.count("<svg") == 2
        and "bohb against random" in page
        and "| words | bohb |" in (out / "table.md").read_text()
    )


def test_experiment_refuses_what_it_cannot_run(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[sets.a]\ntrain = 'a.csv'\n")
    refuse("experiment", file, "--out", tmp_path / "out", fragments=["must exist", "a.csv"])
    refuse("experiment", file, "--only", "set=b", "--dry-run", fragments=["none has set=b"])


def test_seeds_and_rows_both_widen_the_interval():
    rng = np.random.default_rng(0)
    rows = np.concatenate([[0.0], rng.normal(0, 0.01, 1000)])
    alike, unlike = np.stack([rows, rows, rows]), np.stack([rows - 0.05, rows, rows + 0.05])
    found = [resample(gains) for gains in (alike, unlike)]
    assert [each[0] for each in found] == pytest.approx([0.0, 0.0])
    assert np.std(found[0][1:]) == pytest.approx(0.01, rel=0.1)
    # The standard error of a mean of three is the standard deviation / sqrt(3), here with all three known.
    assert np.std(found[1][1:]) == pytest.approx(np.hypot(0.01, 0.05 / np.sqrt(3)), rel=0.1)


def test_holm_adjusts_in_order_of_p_values():
    assert adjust_p_values([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust_p_values([]).tolist() == []
