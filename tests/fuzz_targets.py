"""The fuzz targets: data files, files of a run, spaces, tasks, model folders and requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from bad_inputs import GOOD, as_csv, as_jsonl, good_objects
from conftest import make_encoder
from fuzzing import BrokenPromiseError, Target
from hypothesis import strategies as st
from model_folders import make_predictor
from multitask import make_predictor as make_tasks_predictor
from mutations import BYTES, NAMES, TEXTS, damaged_bytes, damaged_json, damaged_values, odd_tables, to_json, to_toml
from report_runs import make_run
from serving import MALFORMED, WordCounter, make_export
from typer.testing import CliRunner

from headhunt.cli import app
from headhunt.data import Task, load_tasks
from headhunt.data.columns import find_faults
from headhunt.data.inputs import UnreadableInputError, choose_columns, find_inputs, open_rows
from headhunt.data.loading import load_texts
from headhunt.engine.earlier_runs import learn
from headhunt.errors import HeadhuntError
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import LedgerWriter
from headhunt.run.plan import Plan
from headhunt.run.task import open_task
from headhunt.spec import Space, Spec

Read = Callable[[Any], object]
TEXT_FILES = ("data.csv", "data.tsv", "data.jsonl", "data.json")
TABLE_FILES = ("data.parquet", "data.arrow", "data.feather")


# ---------------------------------------------------------------------------------------------- data files


def _text_file(name: str) -> bytes:
    if name.endswith(".tsv"):
        return as_csv(mark="\t", header="text\tlabel").encode()
    if name.endswith(".jsonl"):
        return as_jsonl(good_objects()).encode()
    return json.dumps(good_objects()).encode() if name.endswith(".json") else as_csv().encode()


def _text_files(name: str) -> st.SearchStrategy[bytes]:
    content = _text_file(name)
    damaged = damaged_bytes(content)
    if name.endswith(".jsonl"):
        values = damaged_values(good_objects()).map(
            lambda rows: b"\n".join(map(to_json, rows if isinstance(rows, list) else [rows]))
        )
        return st.one_of(damaged, values)
    if name.endswith(".json"):
        return st.one_of(damaged, damaged_values(good_objects()).map(to_json))
    cell = st.sampled_from([*TEXTS, *NAMES, '"', '""', "a,b", "\r", "1e400", "nan"]).map(str)
    rows = st.lists(st.lists(cell, max_size=4), max_size=20)
    mark = "\t" if name.endswith(".tsv") else ","
    odd = rows.map(
        lambda rows: as_csv([*GOOD, *rows], mark=mark, header=f"text{mark}label").encode("utf-8", "surrogatepass")
    )
    return st.one_of(damaged, odd)


def _write_table(table: pa.Table, path: Path) -> bytes:
    try:
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        elif path.suffix == ".feather":
            feather.write_feather(table, path, compression="zstd")
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
    except (pa.ArrowException, ValueError):  # this format has no such type
        return b""
    return path.read_bytes()


def _table_files(name: str, folder: Path) -> st.SearchStrategy[bytes]:
    path = folder / f"valid-{name}"
    valid = pa.table({"text": [text for text, _ in GOOD], "label": [label for _, label in GOOD]})
    content = _write_table(valid, path)
    odd = odd_tables().map(lambda table: _write_table(table, path))
    return st.one_of(damaged_bytes(content), odd, odd.flatmap(damaged_bytes))


def _read_data(path: Path) -> Read:
    def read(content: bytes) -> None:
        path.write_bytes(content)
        refusals = []
        for load in (_load_task, _load_texts, _load_corpus):
            try:
                load(path)
            except HeadhuntError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    return read


def _load_task(path: Path) -> None:
    task = Task.load(path, seed=0)
    for split in task.splits.values():
        split.texts()


def _load_texts(path: Path) -> None:
    load_texts(path, pair=False, text="text").texts()


def _load_corpus(path: Path) -> None:
    """Read the rows of a corpus as its workers do."""
    try:
        root, (file,) = find_inputs(str(path))
        rows = open_rows(root, file, ["text"])
        columns = choose_columns(rows, path.name, pair=False, text=None, text_b=None)
        for table, codes in rows.read(0, rows.rows):
            find_faults(table[columns.text], np.zeros(len(table), np.int8) if codes is None else codes).to_pylist()
    except (UnreadableInputError, OSError, pa.ArrowException) as error:  # as the worker does
        raise HeadhuntError(f"the shard is listed as failed: {error}") from None


def _data_target(name: str, packed: bool = False) -> Target:
    def prepare(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
        files = _text_files(name) if name in TEXT_FILES else _table_files(name, folder)
        if packed:
            zipped = files.map(lambda content: gzip.compress(content, 1, mtime=0))
            files = st.one_of(zipped, damaged_bytes(gzip.compress(_text_file(name), 1, mtime=0)))
        return files, _read_data(folder / (f"{name}.gz" if packed else name))

    return Target(f"{name}.gz" if packed else name, prepare)


# ---------------------------------------------------------------------------------------------- runs


def _run_command(*words: object) -> None:
    """Run a command in this process; exit code 2 is an error for the user, and others are bugs."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exit_code == 2:
        raise HeadhuntError(done.output[-500:] or "no message")
    if done.exit_code:
        raise BrokenPromiseError(f"{words[0]} ended with {done.exit_code}: {done.exception!r}") from done.exception


PLAN = Plan(
    *(240, 200, 240, 240, 240, 48),
    epochs=10.0,
    folds=3,
    encoders=("a", "b"),
    costs=(1.0, 2.5),
    rows_per_second=10.0,
    examples_per_second=3.0,
    seconds=600.0,
)


def _run_target(name: str) -> Target:
    def prepare(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
        run = make_run(folder / "run", 6)
        path = run / name
        if name == "plan.json":
            RunDirectory(run).write(PLAN)
        task = open_task(RunDirectory(run).task)
        content = path.read_bytes()
        files = _ledgers(content) if name == "ledger.jsonl" else damaged_json(json.loads(content))

        def read(content: bytes) -> None:
            path.write_bytes(content)
            refused = None
            for command in ("status", "report"):
                try:
                    _run_command(command, run)
                except HeadhuntError as error:
                    refused = error
            if name == "search.json":
                settings = RunDirectory(run).read_settings()
                Space.from_dict(settings.space).draw(0, encoder=settings.encoder)
                [Spec.from_dict(spec) for spec in settings.learned]
            if name == "ledger.jsonl":
                LedgerWriter(RunDirectory(run)).close()
                learn([run], task)
            if refused:
                raise refused

        return files, read

    return Target(name, prepare)


def _ledgers(content: bytes) -> st.SearchStrategy[bytes]:
    """Return ledgers with damaged bytes, or with damaged records that have a valid checksum."""
    lines = content.splitlines(keepends=True)
    records = [json.loads(line) for line in lines]

    @st.composite
    def damaged(draw: Callable[..., Any]) -> bytes:
        number = draw(st.integers(0, len(lines) - 1))
        record = draw(damaged_values({key: value for key, value in records[number].items() if key != "crc"}))
        body = to_json(record)[1:]
        line = b'{"crc":"%08x",' % crc32(body) + body + b"\n"
        order = [*lines[:number], line, *lines[number + 1 :]]
        if draw(st.booleans()):
            moved = order.pop(draw(st.integers(0, len(order) - 1)))
            order.insert(draw(st.integers(0, len(order))), moved)
        return b"".join(order)

    return st.one_of(damaged(), damaged(), damaged_bytes(content))


# ---------------------------------------------------------------------------------------------- spaces and specs


def _space_target(suffix: str) -> Target:
    def prepare(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
        write = to_json if suffix == ".json" else to_toml
        path = folder / f"space{suffix}"

        def read(content: bytes) -> None:
            path.write_bytes(content)
            space = Space.load(path)
            for number in range(3):
                space.draw(number, encoder="any").to_json()
            _run_command("space", path)
            _run_command("space", path, "--json")

        return damaged_json(Space.load("default").to_dict(), write), read

    return Target(f"space{suffix}", prepare)


def _prepare_tasks(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    path = folder / "tasks.toml"
    rows = [f"{letter * 3} {letter},{number % 2}" for number, letter in enumerate("abcdefghijklmnop")]
    for name in ("first.csv", "second.csv"):
        (folder / name).write_text("\n".join(["text,label", *rows]) + "\n")
    tasks = {
        "first": {"data": "first.csv", "text": "text", "label": "label", "limit": 12},
        "second": {"data": "second.csv", "problem_type": "regression", "metric": "pearson"},
    }

    def read(content: bytes) -> None:
        path.write_bytes(content)
        load_tasks(path)

    return damaged_json(tasks, to_toml), read


def _prepare_spec(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    path = folder / "spec.json"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        spec = Spec.read(path)
        spec.to_json()
        assert len(spec.hash) == 16

    return damaged_json(Space.load("default").draw(3, encoder="any").to_dict()), read


# ---------------------------------------------------------------------------------------------- model folders

ATTACK = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nraise SystemExit('code of the folder ran')\n"


def _model_target(name: str, several: bool = False) -> Target:
    """Return the target of a file of a model folder, of one task or of several."""

    def prepare(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
        from headhunt.delivery.corpus.shards import ModelInfo
        from headhunt.delivery.serve.launch import tasks_of
        from headhunt.predictor import Predictor

        encoder = make_encoder("bert", folder / "encoder")
        if several:
            made = make_tasks_predictor(encoder, ("mood", "length"), task_layers=1).save(folder / "model")
        else:
            made = make_predictor(encoder, "conv-blocks")[0].save(folder / "model")
        for code in made.glob("*.py"):
            code.write_text(ATTACK)
        document = json.loads((made / name).read_text())
        path = made / name
        task = "mood" if several else None
        Predictor.load(made).predict(["a good film"], task=task)  # imports what it needs before anything is watched

        def read(content: bytes) -> None:
            path.write_bytes(content)
            refused = None
            try:
                if several:
                    assert all(isinstance(name, str) for name in tasks_of(made))
                else:
                    assert all(isinstance(label, str) for label in ModelInfo.read(made).labels)
            except HeadhuntError as error:
                refused = error
            Predictor.load(made).predict(["a good film"], task=task)
            if refused:
                raise refused

        if not several:
            return damaged_json(document), read
        tasks = {key: document.pop(key) for key in ("tasks", "task_layers") if key in document}
        own = damaged_values(tasks).map(lambda part: to_json({**document, **part} if isinstance(part, dict) else part))
        return st.one_of(own, own, damaged_json({**document, **tasks})), read

    return Target(f"tasks/{name}" if several else name, prepare)


def _prepare_export(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    from headhunt.delivery.serve.launch import load_model
    from headhunt.delivery.serve.service import Service

    export = make_export(make_encoder("bert", folder / "encoder"), folder)
    shutil.rmtree(folder / "saved")
    path = export / "headhunt.json"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        model = load_model(export, 1, lambda message: None)
        Service(model)
        model.predict(["a good film"], ["a bad film"] if model.pair else None)

    return damaged_json(json.loads(path.read_text())), read


# ---------------------------------------------------------------------------------------------- requests


@st.composite
def _requests(draw: Callable[..., Any]) -> dict[str, Any]:
    valid = [{"text": "a good film"}, {"texts": ["a good film", "a bad one"]}]
    body = draw(
        st.one_of(*map(damaged_json, valid), st.sampled_from([body for _, body in MALFORMED]), st.binary(max_size=64))
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
    name = st.one_of(
        st.sampled_from(
            [b"content-type", b"content-length", b"authorization", b"host", b"accept", b"range", b"cookie"]
        ),
        st.binary(max_size=12),
    )
    value = st.one_of(
        st.sampled_from([b"application/json", b"-1", b"1e3", b"9" * 5000, b"Bearer x", b"*/*", *BYTES]),
        st.binary(max_size=24),
    )
    headers = [(b"content-type", b"application/json")] if draw(st.integers(0, 3)) else []
    headers += [(b"authorization", b"Bearer x")] if draw(st.integers(0, 3)) else []
    path = st.sampled_from(
        ["/predict", "/predict", "/predict", "/", "/health", "/metrics", "/openapi.json", "/../x", "/%00", "//"]
    )
    return {
        "method": draw(st.sampled_from(["POST", "POST", "POST", "GET", "PUT", "OPTIONS", "HEAD", "X" * 50])),
        "path": draw(st.one_of(path, st.text(max_size=20).map(lambda text: "/" + text))),
        "headers": headers + draw(st.lists(st.tuples(name, value), max_size=3)),
        "query_string": draw(st.binary(max_size=10)),
        "chunks": [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)],
        "token": draw(st.booleans()),
        "leaves": draw(st.integers(0, 9)) == 0,
    }


def _prepare_requests(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    from headhunt.delivery.serve.limits import Limits
    from headhunt.delivery.serve.service import Service

    limits = Limits(max_characters=500, max_texts=16, max_body=1_000_000)
    loop = asyncio.new_event_loop()

    async def start(token: str | None) -> Service:
        service = Service(WordCounter(), limits=limits, token=token)
        service.batcher.start()
        return service

    services = [loop.run_until_complete(start(token)) for token in (None, "x")]

    def read(request: dict[str, Any]) -> None:
        loop.run_until_complete(_send(services[request["token"]], request))

    return _requests(), read


async def _send(service: Any, request: dict[str, Any]) -> None:
    """Send one request to the application and check that the response is complete and not a failure."""
    chunks = list(request["chunks"])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if chunks:
            more = len(chunks) > 1 or request["leaves"]
            return {"type": "http.request", "body": chunks.pop(0), "more_body": more}
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
        **{name: request[name] for name in ("method", "path", "headers", "query_string")},
        "raw_path": request["path"].encode("utf-8", "replace"),
    }
    await asyncio.wait_for(service(scope, receive, send), 10)
    if not sent:
        if not request["leaves"]:
            raise BrokenPromiseError("there was no response")
        return
    status = sent[0]["status"]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    if status >= 500 or sent[-1].get("more_body"):
        raise BrokenPromiseError(f"status {status}: {body[:200]!r}")
    headers = dict(sent[0]["headers"])
    if status >= 400 and request["method"] != "HEAD":
        assert headers[b"content-type"] == b"application/json" and json.loads(body)["error"]
    if status >= 400:
        raise HeadhuntError(f"refused with status {status}")


TARGETS = {
    target.name: target
    for target in (
        *map(_data_target, (*TEXT_FILES, *TABLE_FILES)),
        *(_data_target(name, packed=True) for name in ("data.csv", "data.jsonl")),
        *map(
            _run_target, ("ledger.jsonl", "search.json", "plan.json", "result.json", "task/task.json", "ablation.json")
        ),
        *map(_space_target, (".json", ".toml")),
        Target("spec.json", _prepare_spec),
        Target("tasks.toml", _prepare_tasks),
        *map(_model_target, ("headhunt.json", "config.json", "tokenizer_config.json")),
        _model_target("config.json", several=True),
        Target("export", _prepare_export),
        Target("requests", _prepare_requests),
    )
}
