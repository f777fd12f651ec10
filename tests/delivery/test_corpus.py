"""Labelling a corpus gives the predictions of the model: every row once, in order, even if processes are killed."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from conftest import sentences

from headhunt.delivery.corpus import label_corpus
from headhunt.delivery.corpus.manifest import MANIFEST, SUCCESS
from headhunt.delivery.corpus.output import OutputDirectory
from headhunt.delivery.corpus.shards import MAX_ATTEMPTS, Labeller
from headhunt.engine import api
from headhunt.engine.ensemble import join
from headhunt.errors import DataError, HeadhuntError, ModelError
from headhunt.modeling.architecture import Head
from headhunt.predictor import Predictor
from headhunt.spec import Recipe, Spec, solved
from headhunt.storage import PARTIAL

SHARD = 32  # rows of a shard in these tests


@pytest.fixture(scope="module")
def models(encoders, tmp_path_factory):
    """Return the folder of a tiny model and its predictor, by problem type."""
    made: dict[str, tuple[Path, object]] = {}
    texts, labels = sentences(40)
    several = [[label, "long"] if len(text) > 20 else [label] for text, label in zip(texts, labels, strict=True)]
    data = {
        "single_label_classification": {"text": texts, "label": labels},
        "multi_label_classification": {"text": texts, "label": several},
        "regression": {"text": texts, "label": [len(text) / 7 for text in texts]},
        "pair": {"text": texts, "text_b": texts[::-1], "label": labels},
        "solved": {"text": texts, "label": several},  # a solved head for several labels
        "windows": {"text": texts, "label": labels},
    }

    def get(problem_type: str = "single_label_classification"):
        if problem_type not in made:
            folder = tmp_path_factory.mktemp("models") / problem_type
            spec = Spec(encoder=encoders(), recipe=Recipe(learning_rate=1e-3, epochs=2, batch_size=8, max_length=16))
            spec = solved(encoders()) if problem_type == "solved" else spec
            if problem_type == "windows":
                head = Head(pooling="mean", windows="attention")
                spec = replace(spec, head=head, recipe=replace(spec.recipe, max_length=8))
            if problem_type == "ensemble":
                members = [
                    api.load(get()[0], device="cpu", precision="fp32"),
                    api.fit(data["single_label_classification"], spec=solved(encoders()), precision="fp32"),
                ]
                join(members).save(folder)
                made[problem_type] = folder, api.load(folder, device="cpu", precision="fp32")
                return made[problem_type]
            made[problem_type] = folder, api.fit(data[problem_type], spec=spec, out=folder, precision="fp32")
        return made[problem_type]

    return get


def corpus(rows: int, seed: int = 1, first: int = 0) -> pa.Table:
    texts, _ = sentences(rows, seed)
    return pa.table({"id": [f"r{first + i}" for i in range(rows)], "text": texts})


def write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=50)
    elif path.suffix == ".csv":
        pacsv.write_csv(table, path)
    else:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
        path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())


def label(model: Path, source: object, out: object, **options):
    options = {"workers": 0, "precision": "fp32", "device": "cpu", "shard_rows": SHARD, **options}
    return label_corpus(model, str(source), str(out), **options)


def read(out: Path) -> list[dict]:
    """Read all shards as any reader of Parquet folders does."""
    return pq.read_table(out).to_pylist()


def check_rows(rows: list[dict], predictor, table: pa.Table) -> None:
    texts_b = table["text_b"].to_pylist() if "text_b" in table.column_names else None
    expected = predictor.predict(table["text"].to_pylist(), texts_b)
    assert [row["id"] for row in rows] == table["id"].to_pylist()
    assert [row["text"] for row in rows] == table["text"].to_pylist()
    for row, prediction in zip(rows, expected, strict=True):
        assert row["problem"] is None
        if isinstance(prediction.label, float):
            assert row["label"] == pytest.approx(prediction.label, abs=1e-4) and row["probability"] is None
            continue
        assert row["label"] == prediction.label
        if prediction.probability is None:
            assert row["probability"] is None
        else:
            assert row["probability"] == pytest.approx(prediction.probability, abs=1e-5)
        if "probabilities" in row:
            assert row["probabilities"] == pytest.approx(prediction.probabilities, abs=1e-5)


@pytest.mark.parametrize(
    "problem_type",
    [
        "single_label_classification",
        "multi_label_classification",
        "regression",
        "pair",
        "solved",
        "windows",
        "ensemble",
    ],
)
def test_label_corpus_gives_the_predictions_of_the_model(tmp_path, models, problem_type):
    model, predictor = models(problem_type)
    table = corpus(150)
    if problem_type == "pair":
        table = table.append_column("text_b", pa.array(corpus(150, 7)["text"].to_pylist()))
    write(table, tmp_path / "in" / "a.parquet")
    summary = label(model, tmp_path / "in", tmp_path / "out", probabilities=problem_type != "regression")
    assert (summary.rows, summary.labelled, summary.shards, summary.problems, summary.complete) == (
        150,
        150,
        5,
        {},
        True,
    )
    rows = read(tmp_path / "out")
    check_rows(rows, predictor, table)
    assert [row["row"] for row in rows] == list(range(1, 151))
    assert {row["source"] for row in rows} == {str(tmp_path / "in" / "a.parquet")}
    assert json.loads((tmp_path / "out" / SUCCESS).read_text())["rows"] == 150


def test_label_corpus_decides_by_the_thresholds_of_the_model(tmp_path, models):
    model, _ = models("multi_label_classification")
    predictor = api.load(model, device="cpu", precision="fp32")
    table = corpus(60)
    at_half = [row.label for row in predictor.predict(table["text"].to_pylist())]
    # Between outputs, so that rounding does not decide.
    ordered = np.sort(predictor.outputs(table["text"].to_pylist()), axis=0)
    places = np.diff(ordered, axis=0).argmax(0)
    predictor.thresholds = [(ordered[at, i] + ordered[at + 1, i]) / 2 for i, at in enumerate(places.tolist())]
    predictor.save(tmp_path / "model")
    assert at_half != [row.label for row in predictor.predict(table["text"].to_pylist())]
    write(table, tmp_path / "a.parquet")
    label(tmp_path / "model", tmp_path / "a.parquet", tmp_path / "out", probabilities=True)
    check_rows(read(tmp_path / "out"), predictor, table)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl", ".jsonl.gz"])
def test_label_corpus_reads_every_format(tmp_path, models, ending):
    model, predictor = models()
    write(corpus(70), tmp_path / f"a{ending}")
    label(model, tmp_path / f"a{ending}", tmp_path / "out")
    check_rows(read(tmp_path / "out"), predictor, corpus(70))


def test_label_corpus_keeps_the_requested_columns(tmp_path, models):
    model, _ = models()
    table = corpus(5).append_column("label", pa.array(["x"] * 5)).append_column("input_label", pa.array([1] * 5))
    write(table, tmp_path / "a.parquet")
    label(model, tmp_path / "a.parquet", tmp_path / "all")
    ours = ["source", "row", "label", "probability", "problem"]
    assert pq.read_table(tmp_path / "all").column_names == ["id", "text", "input_input_label", "input_label", *ours]
    assert pq.read_table(tmp_path / "all")["input_input_label"].to_pylist() == ["x"] * 5
    label(model, tmp_path / "a.parquet", tmp_path / "some", keep=["id"])
    assert pq.read_table(tmp_path / "some").column_names == ["id", *ours]
    label(model, tmp_path / "a.parquet", tmp_path / "none", keep=[])
    assert pq.read_table(tmp_path / "none").column_names == ours


def test_label_corpus_reports_the_problem_of_each_bad_row(tmp_path, models):
    model, predictor = models()
    texts = ["a good movie", None, "bad", "   ", "x" * (2 << 20), "great", ""]
    raw = [None if text is None else text.encode() for text in [*texts, "plot"]]
    raw[5] = b"\xff\xfe great"
    buffers = pa.array(raw, pa.binary())
    column = pa.StringArray.from_buffers(len(raw), buffers.buffers()[1], buffers.buffers()[2], buffers.buffers()[0])
    pq.write_table(pa.table({"id": range(8), "text": column}), tmp_path / "a.parquet")
    summary = label(model, tmp_path / "a.parquet", tmp_path / "out", keep=["id"])
    rows = read(tmp_path / "out")
    expected = [None, "no text", None, "no text", "more than 1 MB of text", "not UTF-8", "no text", None]
    assert [row["problem"] for row in rows] == expected
    assert [row["label"] is None for row in rows] == [problem is not None for problem in expected]
    good = [prediction.label for prediction in predictor.predict(["a good movie", "bad", "plot"])]
    assert [row["label"] for row in rows if row["label"]] == good
    assert summary.problems == {"no text": 3, "more than 1 MB of text": 1, "not UTF-8": 1}
    assert (summary.rows, summary.labelled, summary.complete) == (8, 3, True)


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_label_corpus_handles_bad_rows_of_other_problem_types(tmp_path, models, problem_type):
    model, predictor = models(problem_type)
    pq.write_table(pa.table({"text": ["a good movie", None, "bad"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": pa.nulls(3, pa.string())}), tmp_path / "b.parquet")
    label(model, tmp_path / "*.parquet", tmp_path / "out", probabilities=True, text="text")
    rows = read(tmp_path / "out")
    first, last = predictor.predict(["a good movie", "bad"])
    want = [first.label, None, last.label, None, None, None]
    assert [row["label"] for row in rows] == (pytest.approx(want, abs=1e-4) if problem_type == "regression" else want)
    if problem_type == "multi_label_classification":
        assert [row["probabilities"] is None for row in rows] == [False, True, False, True, True, True]


def test_label_corpus_numbers_unreadable_lines(tmp_path, models):
    model, _ = models()
    (tmp_path / "a.csv").write_text("id,text\n1,good movie\n2,bad,film,again\n3,great\n4,\n")
    lines = ['{"id": 1, "text": "good"}', "{broken", '{"id": 3, "text": 17}', "", '{"id": 4, "text": "bad"}', "[1]"]
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n")
    summary = label(model, tmp_path / "[ab].*", tmp_path / "out", text="text")
    rows = read(tmp_path / "out")
    assert [(row["row"], row["problem"]) for row in rows] == [
        (1, None),
        (2, "not readable"),
        (3, None),
        (4, "no text"),
        (1, None),
        (2, "not readable"),
        (3, "not text"),
        (4, None),
        (5, "not readable"),
    ]
    assert summary.problems == {"not readable": 3, "no text": 1, "not text": 1}


def test_label_corpus_lists_unreadable_files_and_labels_the_rest(tmp_path, models):
    model, predictor = models()
    write(corpus(40), tmp_path / "b.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 this is not one")
    (tmp_path / "c.csv").write_bytes(b"id,text\n1,caf\xe9\n")
    write(pa.table({"other": ["x"]}), tmp_path / "d.parquet")
    write(pa.table({"id": [1], "text": [5]}), tmp_path / "e.parquet")
    write(corpus(2000), tmp_path / "f.parquet")
    damaged = bytearray((tmp_path / "f.parquet").read_bytes())
    at = len(damaged) // 2
    damaged[at : at + 200] = b"\xff" * 200
    (tmp_path / "f.parquet").write_bytes(damaged)
    summary = label(model, tmp_path / "*.*", tmp_path / "out", shard_rows=100)
    reasons = {Path(path).name: reason for path, reason in summary.unreadable.items()}
    assert sorted(reasons) == ["a.parquet", "c.csv", "d.parquet", "e.parquet", "f.parquet"]
    assert "UTF-8" in reasons["c.csv"] and "not text" in reasons["e.parquet"]
    assert "no column 'text'" in reasons["d.parquet"]
    assert reasons["f.parquet"].startswith("rows ")
    check_rows([row for row in read(tmp_path / "out") if row["source"].endswith("b.parquet")], predictor, corpus(40))
    assert 40 < summary.rows < 2040 and not summary.complete
    assert not (tmp_path / "out" / SUCCESS).exists()
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["result"]["unreadable"] == summary.unreadable


def test_label_corpus_refuses_an_input_without_readable_file(tmp_path, models):
    (tmp_path / "a.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match="No file of the input can be read"):
        label(models()[0], tmp_path / "*.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("problem_type", ["single_label_classification", "pair"])
def test_label_corpus_with_an_onnx_export(tmp_path, models, problem_type):
    pytest.importorskip("onnxruntime")
    from headhunt.delivery.onnx.export import export

    model, predictor = models(problem_type)
    export(model, tmp_path / "onnx")
    table = corpus(70)
    if problem_type == "pair":
        table = table.append_column("text_b", pa.array(corpus(70, 7)["text"].to_pylist()))
    write(table, tmp_path / "a.parquet")
    label(tmp_path / "onnx", tmp_path / "a.parquet", tmp_path / "out", probabilities=True)
    check_rows(read(tmp_path / "out"), predictor, table)


def test_rows_view_logs_speed_and_remaining_time(capsys, monkeypatch):
    from headhunt.report import terminal as progress

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    view = progress.RowsView()
    view.begin(1000, 200)
    for clock.now in (50.0, 60.0, 100.0):
        view.advance(100)
    view.end()
    assert capsys.readouterr().err.splitlines() == [
        "200 of 1,000 rows are labelled already; continuing",
        "400 of 1,000 rows, 10 rows/s, 1:00 left",
        "500 of 1,000 rows, 4 rows/s, 2:05 left",  # of late: the first report is where counting began
    ]


def test_second_job_makes_only_missing_shards(tmp_path, models):
    model, predictor = models()
    write(corpus(150), tmp_path / "a.parquet")
    label(model, tmp_path / "a.parquet", tmp_path / "out")
    shards = sorted((tmp_path / "out").glob("part-*"))
    before = {path: path.stat().st_mtime_ns for path in shards}
    shards[1].unlink()
    shards[2].write_bytes(b"damaged")
    (tmp_path / "out" / ".part-x.partial").write_bytes(b"of a worker that was killed")
    summary = label(model, tmp_path / "a.parquet", tmp_path / "out")
    assert (summary.rows, summary.earlier) == (150, 150 - 2 * SHARD)
    after = {path: path.stat().st_mtime_ns for path in shards}
    assert [path for path in shards if before[path] != after[path]] == shards[1:3]
    check_rows(read(tmp_path / "out"), predictor, corpus(150))
    assert not (tmp_path / "out" / ".part-x.partial").exists()


def test_second_job_at_the_same_time_is_refused(tmp_path, models):
    model, _ = models()
    write(corpus(40), tmp_path / "in" / "a.parquet")
    with OutputDirectory(str(tmp_path / "out")).lock():
        before = sorted(path.name for path in (tmp_path / "out").iterdir())
        with pytest.raises(HeadhuntError, match="Only one job may write to a folder; another is writing"):
            label(model, tmp_path / "in", tmp_path / "out")
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before, "nothing is touched"
    assert label(model, tmp_path / "in", tmp_path / "out").labelled == 40


def test_leftovers_of_a_killed_job_are_removed_and_do_not_block(tmp_path, models):
    model, _ = models()
    write(corpus(40), tmp_path / "in" / "a.parquet")
    out = tmp_path / "out"
    out.mkdir()
    leftovers = [f"._manifest.json.0123{PARTIAL}", f".part-000000-000000000000.parquet.4567{PARTIAL}", ".headhunt.lock"]
    for name in [*leftovers, ".attempts-part-000000-000000000000.parquet"]:
        (out / name).write_text("cut")
    assert label(model, tmp_path / "in", out).labelled == 40
    assert not list(out.glob(".*")), "nothing hidden is left, not even the lock"


def test_folder_with_other_files_is_refused_and_left_alone(tmp_path, models):
    model, _ = models()
    write(corpus(40), tmp_path / "in" / "a.parquet")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.docx").touch()
    with pytest.raises(HeadhuntError, match="has other files"):
        label(model, tmp_path / "in", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.docx"]


def test_shard_that_kills_its_workers_is_listed_as_failed(tmp_path, models, monkeypatch):
    model, _ = models()
    write(corpus(3 * SHARD), tmp_path / "in" / "a.parquet")
    real, deaths = Labeller._write, []

    def die(self, shard):
        while shard.start == SHARD:  # as a worker that is restarted after each death
            deaths.append(shard.name)
            if len(deaths) > 50:
                raise AssertionError("the shard is tried for ever")
            result = self.make(shard)
            raise RestartedError(result)
        return real(self, shard)

    class RestartedError(Exception):
        pass

    make = Labeller.make

    def restart(self, shard):
        try:
            return make(self, shard)
        except RestartedError as death:
            return death.args[0]

    monkeypatch.setattr(Labeller, "_write", die)
    monkeypatch.setattr(Labeller, "make", restart)
    summary = label(model, tmp_path / "in", tmp_path / "out")
    assert len(deaths) == MAX_ATTEMPTS and summary.labelled == 2 * SHARD and not summary.complete
    assert "rows 33 to 64: 5 workers died while they labelled them" in "".join(summary.unreadable.values())
    monkeypatch.undo()
    assert label(model, tmp_path / "in", tmp_path / "out").complete, "the next job tries again"


def test_different_job_into_the_same_folder_is_refused(tmp_path, models):
    model, _ = models()
    write(corpus(40), tmp_path / "in" / "a.parquet")
    source, out = tmp_path / "in" / "*.parquet", tmp_path / "out"
    label(model, source, out)
    for options, message in (
        ({"keep": ["id"]}, r"keep= was None and is \['id'\]"),
        ({"probabilities": True}, "probabilities= was False and is True"),
        ({"shard_rows": 7}, "shard_rows= was 32 and is 7"),
    ):
        with pytest.raises(HeadhuntError, match=message):
            label(model, source, out, **options)
    with pytest.raises(HeadhuntError, match="the model differs"):
        label(models("multi_label_classification")[0], source, out)
    write(corpus(40), tmp_path / "in" / "b.parquet")
    with pytest.raises(HeadhuntError, match=r"1 input file added \('b.parquet'\)"):
        label(model, source, out)
    (tmp_path / "in" / "b.parquet").unlink()
    write(corpus(41), tmp_path / "in" / "a.parquet")
    with pytest.raises(HeadhuntError, match="1 input file changed"):
        label(model, source, out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.doc").write_text("mine")
    with pytest.raises(HeadhuntError, match="has other files"):
        label(model, source, tmp_path / "other")
    with pytest.raises(ModelError, match="must be a saved model"):
        label(tmp_path, source, tmp_path / "new")


@pytest.mark.parametrize(("when", "rows"), [("begin", 0), ("advance", SHARD)])
def test_label_corpus_reports_a_file_that_changes_meanwhile(tmp_path, models, when, rows):
    model, _ = models()
    write(corpus(100), tmp_path / "a.parquet")

    def change(*_):
        write(corpus(100, 9), tmp_path / "a.parquet")

    view = {"begin": lambda *_: None, "advance": lambda *_: None, "end": lambda: None, when: change}
    summary = label(model, tmp_path / "a.parquet", tmp_path / "out", view=SimpleNamespace(**view))
    assert summary.rows == rows
    assert "changed or removed meanwhile" in summary.unreadable[str(tmp_path / "a.parquet")]


def test_label_corpus_refuses_ambiguous_or_missing_columns(tmp_path, models):
    write(pa.table({"one": ["a b c d"] * 3, "two": ["e f g h"] * 3}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="Set text to 'one' or 'two'"):
        label(models()[0], tmp_path / "a.parquet", tmp_path / "out")
    with pytest.raises(DataError, match="no column 'three'"):
        label(models()[0], tmp_path / "a.parquet", tmp_path / "out", text="three")
    with pytest.raises(DataError, match="no column 'id'"):
        label(models()[0], tmp_path / "a.parquet", tmp_path / "out", text="one", keep=["id"])
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def store():
    """Return an object store with the S3 protocol on this machine, and the options of its URLs."""
    pytest.importorskip("moto.server")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")
    from pyarrow.fs import S3FileSystem

    made = S3FileSystem(
        endpoint_override=f"{host}:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
    )
    made.create_dir("texts")
    yield made, f"?endpoint_override={host}:{port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    os.environ.clear()
    os.environ.update(before)
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_label_corpus_from_and_to_an_object_store(tmp_path, models, store, ending, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    model, predictor = models()
    made, query = store
    for name, seed in (("a", 1), ("b", 2)):
        write(corpus(50, seed), tmp_path / f"{name}{ending}")
        with made.open_output_stream(f"texts/in/{name}{ending}") as file:
            file.write((tmp_path / f"{name}{ending}").read_bytes())
    out = f"s3://texts/out{ending[1:]}"
    summary = label(model, f"s3://texts/in/*{ending}{query}", out + query)
    assert (summary.rows, summary.complete) == (100, True)
    rows = pq.read_table(out.removeprefix("s3://"), filesystem=made).to_pylist()
    check_rows(rows, predictor, pa.concat_tables([corpus(50, 1), corpus(50, 2)]))
    assert rows[0]["source"] == f"s3://texts/in/a{ending}"
    made.delete_file(f"{out.removeprefix('s3://')}/part-000001-000000000032.parquet")
    again = label(model, f"s3://texts/in/*{ending}{query}", out + query)
    assert (again.rows, again.earlier) == (100, 82)


# A shell that runs the tests in the background makes their children ignore SIGINT.
SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from headhunt.cli import main
sys.argv = ["headhunt", *sys.argv[1:]]
main()
"""


def start(folder: Path, model: Path, *more: str) -> subprocess.Popen:
    words = ["predict", str(model), "--input", "in/*.parquet", "--out", "out", "--device", "cpu", *more]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_shards(folder: Path, process: subprocess.Popen, count: int, limit: float = 300) -> int:
    deadline = time.time() + limit
    while len(shards := list((folder / "out").glob("part-*"))) < count:
        assert process.poll() is None and time.time() < deadline, process.communicate()[0]
        time.sleep(0.02)
    return len(shards)


def workers_of(process: subprocess.Popen) -> list[int]:
    """Return the process ids of the actors of this driver that label."""
    import psutil

    workers = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "MapBatches(Labeller)" in " ".join(child.cmdline()):
                workers.append(child.pid)
    return workers


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_every_row_is_labelled_once_though_driver_and_workers_are_killed(tmp_path, models):
    model, predictor = models()
    tables = [corpus(1600, seed, seed * 1600) for seed in range(3)]
    for number, table in enumerate(tables):
        write(table, tmp_path / "in" / f"{number}.parquet")
    words = ("--workers", "2", "--shard-rows", "40")
    process = start(tmp_path, model, *words)
    wait_for_shards(tmp_path, process, 3)
    process.kill()
    process.wait()
    process.stdout.close()
    time.sleep(1)
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert 3 <= len(kept) < 120 and not (tmp_path / "out" / SUCCESS).exists()

    process = start(tmp_path, model, *words)
    wait_for_shards(tmp_path, process, len(kept) + 3)
    victims = workers_of(process)
    assert victims
    os.kill(victims[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    assert "rows are labelled already" in out and "4,800 of 4,800 rows labelled" in out
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == at for name, at in kept.items())
    rows = read(tmp_path / "out")
    table = pa.concat_tables(tables)
    assert [row["id"] for row in rows] == table["id"].to_pylist()
    expected = predictor.predict(table["text"].to_pylist())
    probability = np.array([prediction.probability for prediction in expected])
    assert (
        np.abs(np.array([row["probability"] for row in rows]) - probability).max() < 0.02
    )  # the command may use 16 bits
    assert (tmp_path / "out" / SUCCESS).exists() and not list((tmp_path / "out").glob(".*"))


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_ctrl_c_keeps_finished_shards(tmp_path, models):
    model, _ = models()
    write(corpus(9000), tmp_path / "in" / "a.parquet")
    process = start(tmp_path, model, "--workers", "1", "--shard-rows", "40")
    wait_for_shards(tmp_path, process, 2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on" in out and "Traceback" not in out
    summary = label(model, tmp_path / "in" / "*.parquet", tmp_path / "out", shard_rows=40)
    assert summary.rows == 9000 and summary.earlier >= 80


def test_predict_command_labels_a_corpus(tmp_path, models):
    model, _ = models()
    write(corpus(40), tmp_path / "in" / "a.parquet")
    done = start(tmp_path, model, "--workers", "0", "--json")
    out, _ = done.communicate(timeout=120)
    assert done.returncode == 0, out
    assert json.loads(out.splitlines()[-1])["labelled"] == 40
    (tmp_path / "in" / "b.parquet").write_bytes(b"no")
    words = [sys.executable, "-m", "headhunt.cli", "predict", model, "--input", "in", "--out", "two", "--workers", "0"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3 and "not read: " in done.stderr and "40 of 40 rows" in done.stdout
    for more, message in (
        (["--out", "x.parquet"], "--out must end in .csv or .jsonl, or be a folder"),
        (["--out", "x.csv", "--workers", "2"], "give --out FOLDER"),
    ):
        done = subprocess.run([*words[:5], "--input", "in", *more], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize("root", ["", "store"])
def test_attempts_survive_a_job_that_is_killed_and_end_with_one_that_ends(tmp_path, root):
    from pyarrow.fs import LocalFileSystem

    output = OutputDirectory(str(tmp_path))
    output._root, output._path, output._filesystem = root, str(tmp_path), LocalFileSystem()
    for count in range(5):
        assert output.begin_attempt("part") == count
    with output.lock():
        assert output.begin_attempt("part") == 5
    with output.lock():
        assert output.begin_attempt("part") == 0


class Panic(BaseException):
    """Stand for a panic of a library in Rust, which is no `Exception`."""


@pytest.mark.parametrize("error", [Panic, ValueError])
def test_text_on_which_the_model_fails_is_listed_and_the_rest_labelled(tmp_path, models, monkeypatch, error):
    model, predictor = models("pair")
    real = Predictor.outputs
    panics = {"text 5", "text 6", "text 40"}

    def outputs(self, texts, *more, **options):
        if panics & set(texts) or ("every text" in panics and "text" in "".join(texts)):
            raise error
        return real(self, texts, *more, **options)

    monkeypatch.setattr(Predictor, "outputs", outputs)
    texts = [f"text {number}" for number in range(200)]
    pq.write_table(pa.table({"text": texts, "text_b": texts[::-1]}), tmp_path / "a.parquet")
    summary = label(model, tmp_path / "a.parquet", tmp_path / "out", shard_rows=200)
    assert summary.complete and summary.labelled == 197 and summary.problems == {"the model fails on it": 3}
    rows = read(tmp_path / "out")
    assert {row["text"] for row in rows if row["label"] is None} == panics
    monkeypatch.undo()
    right = predictor.predict(texts, texts[::-1])
    assert all(row["label"] in (None, wanted.label) for row, wanted in zip(rows, right, strict=True))
    monkeypatch.setattr(Predictor, "outputs", outputs)
    panics.add("every text")
    with pytest.raises(ModelError, match="fails on many texts"):
        label(model, tmp_path / "a.parquet", tmp_path / "other", shard_rows=200)
