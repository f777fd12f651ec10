"""Damaged files and hostile requests are accepted or refused with a message, never with a traceback.

The fuzz targets run with few inputs here and with many in `benchmarks/faults_fuzz.py`. Each bug found has a test below.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_inputs import GOOD, as_jsonl, good_objects
from fuzz_targets import TARGETS
from fuzzing import BrokenPromiseError, Guard, Target, fuzz
from hypothesis import strategies as st
from model_folders import make_predictor
from report_runs import make_run

from headhunt.data import Task
from headhunt.delivery.onnx.runtime import Metadata
from headhunt.errors import DataError, HeadhuntError, ModelError, SpecError
from headhunt.predictor import Predictor
from headhunt.run.directory import RunDirectory
from headhunt.run.events import TrialStarted, decode, encode
from headhunt.run.ledger import read_state
from headhunt.run.schema import RunError
from headhunt.spec import Space, Spec
from headhunt.storage import MAX_DEPTH, parse_json

pytestmark = pytest.mark.skipif(os.name == "nt", reason="timers and memory are read as on Unix")
SLOW = {"ledger.jsonl", "search.json", "plan.json", "result.json", "task/task.json", "ablation.json", "export"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW - {"ledger.jsonl"} else []) for name in TARGETS],
)
def test_damaged_inputs_are_accepted_or_refused(name, tmp_path):
    inputs = 8 if name in SLOW else 25
    tally = fuzz(TARGETS[name], tmp_path, inputs)
    assert tally.inputs >= inputs
    assert tally.results["refused"] > 0, "inputs that are always accepted are not damaged"


@pytest.mark.parametrize(
    "misdeed",
    [
        lambda folder: (folder.parent / "outside.txt").write_text("x"),
        lambda folder: os.rename(folder / "inside", folder.parent / "outside"),  # noqa: PTH104
        lambda folder: subprocess.run(["true"], check=True),  # noqa: S607
        lambda folder: exec(compile("1 + 1", str(folder / "model.py"), "exec")),  # noqa: S102
        lambda folder: 1 / 0,
    ],
    ids=["write outside", "rename outside", "run a program", "run code of the folder", "traceback"],
)
def test_fuzzing_notices_a_broken_promise(misdeed, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inside").touch()
    target = Target("broken", lambda folder: (st.just(0), lambda _: misdeed(folder)))
    with pytest.raises((BrokenPromiseError, ZeroDivisionError)):
        fuzz(target, folder, 1)


def test_fuzzing_notices_a_hang(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzzing.MAX_SECONDS", 0.2)

    def wait() -> None:
        while True:
            pass

    with pytest.raises(BrokenPromiseError, match="took more than"), Guard(tmp_path).watch():
        wait()


# ---------------------------------------------------------------------------------------------- bugs that it found


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 200 + "]" * 200, "9" * 5_000, '"\\ud800"'])
def test_parse_json_refuses_text_that_later_code_cannot_handle(text):
    with pytest.raises(ValueError, match=r"nesting|digits|surrogates"):
        parse_json(text)
    with pytest.raises(ValueError, match=r"nesting|digits|surrogates|Expecting"):
        parse_json(text.encode())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_not_finite_are_refused(number, tmp_path):
    with pytest.raises(ValueError, match="no finite number"):
        parse_json(f'{{"a": [1.5, {number}]}}')
    for name, text in (("a.jsonl", '{{"text": "a", "label": {}}}\n'), ("a.json", '[{{"text": "a", "label": {}}}]')):
        (tmp_path / name).write_text(
            text.format(0.5) + text.format(number) if name == "a.jsonl" else text.format(number)
        )
        with pytest.raises(DataError, match="not valid JSON"):
            Task.load(tmp_path / name)
    (tmp_path / "headhunt.json").write_text(f'{{"schema": 1, "special_tokens": {{}}, "facts": {number}}}')
    with pytest.raises(ValueError, match="not JSON compliant"):
        Metadata.read(tmp_path / "headhunt.json")


def test_parse_json_accepts_ordinary_nesting():
    document = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json('{"a": [1, 2.5, "é", null]}') == {"a": [1, 2.5, "é", None]}
    with pytest.raises(ValueError, match="nesting"):
        parse_json(f"[{document}]")


def test_deeply_nested_jsonl_does_not_end_the_process(tmp_path):
    # Arrow's parser recurses without limit and overflows the stack.
    openings = ["[", '{"a":', "[\n", '"x", [', "[{}, ", '{"a":\n']
    for place, opening in enumerate(openings):
        content = as_jsonl(good_objects()) + '{"text": ' + opening * 50_000 + "\n"
        (tmp_path / f"{place}.jsonl").write_text(content)
    code = """
import sys
from pathlib import Path
from headhunt.data import Task
from headhunt.errors import DataError
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        Task.load(path)
    except DataError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert done.stdout.split() == ["refused"] * len(openings), (done.returncode, done.stderr[-300:])


def test_nested_rows_are_reported_and_brackets_in_texts_are_not(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = good_objects()
    rows[2]["text"] = "{[" * 500 + ' a "quoted" \\ text'
    path.write_text(as_jsonl(rows))
    assert len(Task.load(path).splits["train"]) > 0
    path.write_text(as_jsonl(rows) + '{"text": ' + "[" * 100 + "]" * 100 + ', "label": "good"}\n')
    with pytest.raises(DataError, match=r"nesting.*row 13"):
        Task.load(path)


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.date32(), 2**30), (pa.timestamp("s"), 2**62), (pa.duration("s"), 2**62)], ids=str
)
def test_times_that_python_cannot_hold_are_refused(tmp_path, kind, value):
    storage = pa.int32() if kind == pa.date32() else pa.int64()
    path = tmp_path / "data.arrow"
    table = pa.table({"text": pa.array([value] * 12, storage).cast(kind), "label": [label for _, label in GOOD]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError):
        Task.load(path)


def test_labels_of_unusual_arrow_types_are_read_or_refused(tmp_path):
    texts, labels = [text for text, _ in GOOD], [label for _, label in GOOD]
    columns = {
        "views": (pa.array(labels, pa.string_view()), None),
        "beyond 63 bits": (pa.array([2**64 - 1 - at % 2 for at in range(12)], pa.uint64()), None),
        "lists of lists": (pa.array([[[1]]] * 12), "holds list"),
        "not UTF-8": (pa.array([b"\xff", b"a"] * 6).view(pa.string()), "damaged"),
    }
    for name, (column, message) in columns.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"text": texts, "label": column}), path)
        if message is None:
            assert len(Task.load(path).labels) == 2, name
        else:
            with pytest.raises(DataError, match=message):
                Task.load(path)


def test_deeply_nested_label_cells_are_labels(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(
        "text,label\n" + "".join(f"{text},{'[' * (3_000 + at % 2)}]\n" for at, (text, _) in enumerate(GOOD))
    )
    assert len(Task.load(path).labels) == 2


@pytest.mark.parametrize(
    "document",
    [
        '{"head": {"layers": [1, {"a": 1}, 2]}}',
        '{"name": {}}',
        "[" * 9_999,
        '{"head": {"dropout": {"float": [0, 1e999]}}}',
    ],
)
def test_hostile_space_files_are_refused(tmp_path, document):
    path = tmp_path / "space.json"
    path.write_text(document)
    with pytest.raises(SpecError):
        Space.load(path)


def test_specs_refuse_numbers_that_are_not_finite():
    for value in (float("inf"), 10**400):
        with pytest.raises(SpecError, match="must be a number"):
            Spec.from_dict({"encoder": "any", "recipe": {"smart": {"radius": value}}})


def test_ledgers_refuse_rungs_that_no_ladder_has(tmp_path):
    run = RunDirectory(make_run(tmp_path / "run", 3))
    state = read_state(run)
    with pytest.raises(ValueError, match="rung"):
        TrialStarted(0, 2**31, 0)
    with run.ledger.open("ab") as file:
        file.write(encode(TrialStarted(0, 40, 0), 1e9))
        file.write(encode(TrialStarted(0, 0, 0), 1e9))
    with pytest.raises(RunError, match=f"the ladder has {len(state.started.fractions)} rungs; found rung 40"):
        read_state(run)


def test_ledgers_refuse_numbers_beyond_floats():
    line = encode(TrialStarted(0, 0, 0), 1.0)
    assert decode(line[:-1])[0] == 1.0
    with pytest.raises(ValueError, match="whole number"):
        TrialStarted(10**400, 0, 0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("headhunt.json", {"labels": ["good"]}),
        ("headhunt.json", {"labels": [1, 2, 3]}),
        ("headhunt.json", {"pair": None}),
        ("headhunt.json", {"problem_type": []}),
        ("tokenizer_config.json", {"model_input_names": None}),
    ],
)
def test_models_that_cannot_predict_are_refused_when_loaded(encoders, tmp_path, name, change):
    folder = make_predictor(encoders(), "conv-blocks")[0].save(tmp_path / "model")
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelError, match="cannot be loaded"):
        Predictor.load(folder)


@pytest.mark.parametrize("change", [{"labels": None}, {"labels": [1]}, {"max_length": "8"}, {"pair": 1}])
def test_exports_with_other_types_are_refused(tmp_path, change):
    data = {"problem_type": "regression", "labels": [], "pair": False, "max_length": 8, "truncation": "end"}
    data |= {"siamese": False, "inputs": [], "special_tokens": {"before": [], "between": [], "after": [], "pad": 0}}
    data |= {"tasks": [], "thresholds": None, "rejection": None}
    path = tmp_path / "headhunt.json"
    path.write_text(json.dumps({"schema": 1, **data}))
    assert Metadata.read(path).max_length == 8
    path.write_text(json.dumps({"schema": 1, **{name: value for name, value in data.items() if name != "tasks"}}))
    with pytest.raises(ValueError, match="export again"):
        Metadata.read(path)
    path.write_text(json.dumps({"schema": 1, **data, **change}))
    with pytest.raises(ValueError, match="another type"):
        Metadata.read(path)


def test_reports_survive_scores_that_are_not_numbers(tmp_path):
    from headhunt.report import write

    run = RunDirectory(make_run(tmp_path / "run", 3))
    for path in (run.result, run.ablation):
        document = json.loads(path.read_text())
        _replace_scores(document)
        path.write_text(json.dumps(document))
    assert write(run.path).is_file()


def _replace_scores(document):
    """Set values with intervals to null, as undefined correlations are stored."""
    for value in document.values() if isinstance(document, dict) else document:
        if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
            value.update(value=None, low=None, high=None)
        elif isinstance(value, dict | list):
            _replace_scores(value)


def test_reports_of_files_that_do_not_fit_each_other_are_refused(tmp_path, monkeypatch):
    from headhunt.report import page

    run = make_run(tmp_path / "run", 3)
    monkeypatch.setattr(page, "render", lambda found: found["no such key"])
    with pytest.raises(HeadhuntError, match="do not fit each other"):
        page.write(run)
