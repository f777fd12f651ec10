"""`headhunt predict` on texts, files and pipes."""

from __future__ import annotations

import csv
import json
import subprocess

import pytest
from command_line import COMMAND, read_texts, refuse, saved_models, succeed, write_csv

from headhunt.predictor import Predictor


@pytest.fixture(scope="module")
def models(encoders, tmp_path_factory):
    return saved_models(encoders, tmp_path_factory)


def test_predict_gives_same_output_for_texts_file_and_pipe(models, tmp_path):
    folder, test, _ = models()
    texts = read_texts(test)
    predictions = Predictor.load(folder).predict(texts)
    expected = [f"{row.label}\t{row.probability:.4f}" for row in predictions]
    assert len({row.label for row in predictions}) == 2
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts) + "\n")
    piped = "\n".join(texts).encode()
    assert succeed("predict", folder, *texts[:5]).splitlines() == expected[:5]
    assert succeed("predict", folder, "--input", test).splitlines() == expected
    assert succeed("predict", folder, "--input", lines).splitlines() == expected
    assert succeed("predict", folder, stdin=piped).splitlines() == expected
    assert succeed("predict", folder, "--input", "-", stdin=piped.replace(b"\n", b"\r\n")).splitlines() == expected
    assert succeed("predict", folder, stdin=b"") == ""


def test_predict_writes_csv_and_json_lines(models, tmp_path):
    folder, test, _ = models()
    texts = read_texts(test)
    predictions = Predictor.load(folder).predict(texts)
    assert succeed("predict", folder, "--input", test, "--out", tmp_path / "a.csv") == ""
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["text", "input_label", "label", "probability"]  # its own label column keeps its cells
    assert [row["text"] for row in rows] == texts and [row["label"] for row in rows] == [
        row.label for row in predictions
    ]
    assert [float(row["probability"]) for row in rows] == pytest.approx(
        [row.probability for row in predictions], abs=1e-5
    )
    succeed("predict", folder, "--input", test, "--out", tmp_path / "a.jsonl")
    printed = succeed("predict", folder, "--input", test, "--json")
    assert (tmp_path / "a.jsonl").read_text() == printed
    first = json.loads(printed.splitlines()[0])
    assert first["text"] == texts[0] and first["probabilities"].keys() == {"bad", "good"}
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "a.jsonl"}


def test_predict_keeps_all_columns_of_file(models, tmp_path):
    folder, _, _ = models()
    data = write_csv(tmp_path / "new.csv", "id,review,probability", [("007", "a good film", "x, y"), ("8", "bad", "")])
    succeed("predict", folder, "--input", data, "--text", "review", "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "review", "input_probability", "label", "probability"]
    assert [(row["id"], row["review"], row["input_probability"]) for row in rows] == [
        ("007", "a good film", "x, y"),
        ("8", "bad", ""),
    ]
    printed = succeed("predict", folder, "--input", data, "--text", "review", "--json")
    first = json.loads(printed.splitlines()[0])
    assert list(first) == ["id", "review", "input_probability", "label", "probability", "probabilities"]
    succeed("predict", folder, "--out", tmp_path / "none.csv", stdin=b"")
    assert (tmp_path / "none.csv").read_text().strip() == "text,label,probability"


def test_predict_pairs_from_texts_file_and_pipe(models, tmp_path):
    folder, test, _ = models("pair")
    with test.open(newline="") as file:
        rows = list(csv.DictReader(file))
    first, second = [row["text"] for row in rows], [row["text_b"] for row in rows]
    expected = [f"{row.label}\t{row.probability:.4f}" for row in Predictor.load(folder).predict(first, second)]
    assert succeed("predict", folder, first[0], second[0], first[1], second[1]).splitlines() == expected[:2]
    assert succeed("predict", folder, "--input", test).splitlines() == expected
    piped = "\n".join(map("\t".join, zip(first, second, strict=True))).encode()
    assert succeed("predict", folder, stdin=piped).splitlines() == expected
    succeed("predict", folder, "--input", test, "--out", tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().startswith("text,text_b,input_label,label,probability")
    refuse("predict", folder, "one", "two", "three", fragments=["even number", "found 3"])
    refuse("predict", folder, fragments=["one tab between", "line 2 has 1"], stdin=b"a\tb\nonly one\n")


def test_predict_regression_and_multi_label(models, tmp_path):
    folder, test, _ = models("regression")
    texts = read_texts(test)
    numbers = [float(line) for line in succeed("predict", folder, "--input", test).splitlines()]
    assert numbers == pytest.approx(Predictor.load(folder).outputs(texts).tolist(), abs=1e-5)
    folder, test, _ = models("multi_label_classification")
    rows = [json.loads(line) for line in succeed("predict", folder, "--input", test, "--json").splitlines()]
    assert all(row["label"] == [name for name, p in row["probabilities"].items() if p >= 0.5] for row in rows)
    succeed("predict", folder, "--input", test, "--probabilities", "--out", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    found = [{name: float(row[f"probability_{name}"]) for name in rows[0]["probabilities"]} for row in table]
    assert found == [row["probabilities"] for row in rows]
    plain = succeed("predict", folder, "--input", test).splitlines()
    assert [line.split("\t")[0] for line in plain] == ["|".join(row["label"]) for row in rows]
    assert any("|" in line for line in plain)


def test_predict_refuses_wrong_input_and_output(models, tmp_path):
    folder, test, _ = models()
    refuse("predict", folder, "text", "--input", test, fragments=["not both"])
    refuse("predict", folder, "text", "--probabilities", fragments=["--probabilities", "--out FILE.csv"])
    refuse("predict", folder, "text", "--out", tmp_path / "a.xlsx", fragments=[".csv or .jsonl", "a.xlsx"])
    refuse("predict", folder, "text", "--out", tmp_path / "no" / "a.csv", fragments=["--out", "does not exist"])
    refuse("predict", folder, "--input", tmp_path / "no.csv", "--out", tmp_path / "a.csv", fragments=["Check the path"])
    refuse("predict", folder, fragments=["UTF-8"], stdin=b"caf\xe9\n")
    assert not list(tmp_path.iterdir()), "a failed run leaves nothing behind"


def test_predict_to_closed_pipe_exits_0(models, tmp_path):
    folder, test, _ = models()
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(read_texts(test) * 80))
    with (
        lines.open("rb") as source,
        subprocess.Popen(
            [*COMMAND, "predict", str(folder), "--json"], stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        first = process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(60) == 0, err
    assert json.loads(first)["text"] == read_texts(test)[0]
    assert err == ""


def test_json_has_no_nan(models, tmp_path):
    """Issue: JSON has no NaN and no infinity, and other tools refused the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, _, _ = models()
    rows = {
        "text": ["a good film", "a bad film"],
        "price": [float("nan"), float("inf")],
        "parts": [[1.0], [float("nan")]],
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    succeed("predict", folder, "--input", tmp_path / "rows.parquet", "--text", "text", "--out", tmp_path / "out.jsonl")

    def refuse_constant(name: str) -> None:
        raise AssertionError(name)

    found = [
        json.loads(line, parse_constant=refuse_constant) for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    assert [row["price"] for row in found] == [None, None] and found[1]["parts"] == [None]
