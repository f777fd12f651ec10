"""Thin commands: each parses, calls one function, prints. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from headhunt.errors import HeadhuntError
from headhunt.spec import DEFAULT_ENCODER

if TYPE_CHECKING:
    from headhunt.engine.search import Search
    from headhunt.evaluation import Evaluation
    from headhunt.predictor import Ensemble, Prediction, Predictor
    from headhunt.spec import Space


class Commands(TyperGroup):
    """Turns what ends a command early into an exit code: 2 the user can mend it, 130 stopped by the user.

    Anything else that is raised is a bug of ours: its traceback is shown and the code is 1.
    """

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except HeadhuntError as error:
            say(f"error: {error}")
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            say("stopped")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader has seen enough; there is nobody left to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        return result


app = typer.Typer(
    name="headhunt",
    cls=Commands,
    help="Find the right head for your encoder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class ProblemType(StrEnum):
    """What is to be predicted."""

    single_label_classification = "single_label_classification"
    multi_label_classification = "multi_label_classification"
    regression = "regression"


class Precision(StrEnum):
    """How precisely to compute."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class Strategy(StrEnum):
    """How candidates are chosen."""

    bohb = "bohb"
    random = "random"
    grid = "grid"
    evolution = "evolution"
    tpe = "tpe"
    gp = "gp"
    reinforce = "reinforce"


Data = Annotated[str, typer.Argument(help="CSV, TSV, JSONL or Parquet file, or a folder of train, dev and test.")]
Model = Annotated[Path, typer.Argument(help="A folder that Headhunt saved.")]
RunFolder = Annotated[Path, typer.Argument(help="The run directory of a search.")]
Text = Annotated[str | None, typer.Option(help="Column with the text; found by itself where that is plain.")]
TextB = Annotated[str | None, typer.Option(help="Column with the second text of a pair.")]
Label = Annotated[str | None, typer.Option(help="Column with the label.")]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Tokens read of a text; the rest is cut.", show_default="128, or what the spec or space says"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str | None, typer.Option(help="cuda, mps or cpu; the fastest there is unless given.")]


@app.command()
def fit(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder to save the model in.")],
    encoder: Annotated[
        str | None, typer.Option(help="Hugging Face name or folder.", show_default="the spec's, or all-MiniLM-L6-v2")
    ] = None,
    spec: Annotated[
        Path | None, typer.Option(help="JSON file with the candidate; the plain head unless given.")
    ] = None,
    max_length: MaxLength = None,
    text: Text = None,
    text_b: TextB = None,
    label: Label = None,
    problem_type: Annotated[
        ProblemType | None, typer.Option(help="What is predicted; seen from the labels unless given.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="File with test rows; a fifth is set aside unless given.")] = None,
    limit: Annotated[int | None, typer.Option(help="Train on this many rows, drawn by the seed.")] = None,
    seed: Annotated[int, typer.Option(help="For everything that is left to chance.")] = 0,
    device: Device = None,
    precision: Annotated[
        Precision, typer.Option(help="auto computes in 16 bits where that is faster.")
    ] = Precision.auto,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the encoder.")] = False,
    json_: Json = False,
) -> None:
    """Train one candidate, the plain head unless told otherwise, and save it."""
    from headhunt.data import Task
    from headhunt.spec import Spec

    check_out(out)
    candidate = Spec.read(spec, encoder) if spec else None
    task = Task.load(
        data,
        text=text,
        text_b=text_b,
        label=label,
        problem_type=problem_type.value if problem_type else None,
        test=test,
        limit=limit,
        seed=seed,
    )
    for line in [*task.notes, *(f"note: {warning}" for warning in task.warnings)]:
        say(line)

    from headhunt.engine import api
    from headhunt.report.terminal import training_bar

    with training_bar("training") as show:
        predictor = api.fit(
            task,
            encoder=encoder,
            spec=candidate,
            max_length=max_length,
            out=out,
            seed=seed,
            device=device,
            precision=precision.value,
            trust_remote_code=trust_remote_code,
            on_report=show,
        )
    if json_:
        print(json.dumps({"out": str(out), **predictor.facts}, ensure_ascii=False))
        return
    scores = predictor.facts.get("test", {}).get("scores", {})
    for name, value in scores.items():
        print(f"{name:12} {value['value']:.4f}  (95 % interval {value['low']:.4f} to {value['high']:.4f})")
    example = '"one text" "another"' if task.pair else '"some text"'
    print(f"saved in {out}: try  headhunt predict {out} {example}")


Time = Annotated[
    str | None, typer.Option(help="As 90s, 10m, 1h30m or none; all in: loading, searching, the last training.")
]
Workers = Annotated[
    int | None, typer.Option(help="Processes; 0 trains in this one.", show_default="one per core or GPU")
]
Metric = Annotated[
    str | None,
    typer.Option(
        help="What candidates are compared by. single_label_classification: accuracy, macro_f1, weighted_f1, mcc; "
        "multi_label_classification: accuracy, macro_f1, weighted_f1, micro_f1; regression: mse, pearson, spearman.",
        show_default="accuracy; micro_f1 for labels, spearman for a number",
    ),
]
Ray = Annotated[str | None, typer.Option(help="Address of a Ray cluster.")]


@app.command()
def search(
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Run directory.", show_default="a new one in runs/")] = None,
    encoder: Annotated[str, typer.Option(help="Hugging Face name or folder.")] = DEFAULT_ENCODER,
    time: Time = "10m",
    trials: Annotated[int | None, typer.Option(help="Candidates at most.")] = None,
    target: Annotated[float | None, typer.Option(help="A score that ends the search, as 0.9; for mse as -0.1.")] = None,
    max_length: MaxLength = None,
    text: Text = None,
    text_b: TextB = None,
    label: Label = None,
    problem_type: Annotated[
        ProblemType | None, typer.Option(help="What is predicted; seen from the labels unless given.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="File with test rows; a fifth is set aside unless given.")] = None,
    limit: Annotated[int | None, typer.Option(help="Train on this many rows, drawn by the seed.")] = None,
    space: Annotated[str, typer.Option(help="default, paper, or a TOML or JSON file.")] = "default",
    strategy: Annotated[Strategy, typer.Option(help="How candidates are chosen.")] = Strategy.bohb,
    metric: Metric = None,
    workers: Workers = None,
    ray: Ray = None,
    seed: Annotated[int, typer.Option(help="For everything that is left to chance.")] = 0,
    device: Device = None,
    precision: Annotated[
        Precision, typer.Option(help="auto computes in 16 bits where that is faster.")
    ] = Precision.auto,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the encoder.")] = False,
    max_latency: Annotated[str | None, typer.Option(help="As 20ms: what one text may take, on one CPU thread.")] = None,
    max_size: Annotated[str | None, typer.Option(help="As 60MB: weights a model may have.")] = None,
    calibrate: Annotated[bool, typer.Option(help="Set the model's probabilities right by a temperature.")] = False,
    json_: Json = False,
) -> None:
    """Find the best head and recipe, and end with a model. Ctrl-C once ends it with what was found, twice at once."""
    from headhunt.data import Task
    from headhunt.engine import search as hunt
    from headhunt.engine.options import parse_duration
    from headhunt.evaluation import DEFAULT_METRIC
    from headhunt.report.terminal import SearchView

    if out is not None:
        check_out(out)
    parse_duration(time)
    named = {
        "text": text,
        "text_b": text_b,
        "label": label,
        "problem_type": problem_type.value if problem_type else None,
    }
    task = Task.load(data, test=test, limit=limit, seed=seed, **named)  # type: ignore[arg-type]
    for line in [*task.notes, *(f"note: {warning}" for warning in task.warnings)]:
        say(line)
    found = hunt.search(
        task,
        out=out,
        encoder=encoder,
        time=time,
        trials=trials,
        target=target,
        space=space,
        strategy=strategy.value,
        metric=metric,
        workers=workers,
        ray=ray,
        seed=seed,
        device=device,
        precision=precision.value,
        trust_remote_code=trust_remote_code,
        max_latency=max_latency,
        max_size=max_size,
        calibrate=calibrate,
        max_length=max_length,
        view=SearchView(metric or DEFAULT_METRIC[task.problem_type]),
    )
    end_search(found, json_)


@app.command()
def resume(
    run: RunFolder,
    time: Annotated[
        str | None, typer.Option(help="How much longer, as 10m, or none.", show_default="what was left")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Candidates at most, those before included.")] = None,
    workers: Workers = None,
    ray: Ray = None,
    json_: Json = False,
) -> None:
    """Take a search up where it was left, after whatever stopped it."""
    from headhunt.engine import search as hunt
    from headhunt.report.terminal import SearchView

    view = SearchView(hunt.Search(run).settings.metric)
    end_search(hunt.resume(run, time=time, trials=trials, workers=workers, ray=ray, view=view), json_)


@app.command()
def verdict(
    run: RunFolder,
    seeds: Annotated[int, typer.Option(help="Trainings of the winner and of the plain head.")] = 3,
    time: Annotated[str | None, typer.Option(help="How long it may take.", show_default="as long as it takes")] = None,
    workers: Workers = None,
    json_: Json = False,
) -> None:
    """Compare the winner of a search with the plain head again, each trained with several seeds."""
    from headhunt.engine import search as hunt
    from headhunt.report.terminal import SearchView

    view = SearchView(hunt.Search(run).settings.metric)
    end_search(hunt.verdict(run, seeds=seeds, time=time, workers=workers, view=view), json_)


@app.command()
def ablate(
    run: RunFolder,
    seeds: Annotated[int, typer.Option(help="How often each variant is judged.")] = 1,
    time: Annotated[str | None, typer.Option(help="How long it may take.", show_default="as long as it takes")] = None,
    workers: Workers = None,
    json_: Json = False,
) -> None:
    """Find out why the winner won: take out each of its parts, put back each item of its recipe, judge again."""
    from headhunt.engine import search as hunt
    from headhunt.report.terminal import SearchView
    from headhunt.run.schema import dump

    view = SearchView(hunt.Search(run).settings.metric)
    found = hunt.ablate(run, seeds=seeds, time=time, workers=workers, view=view)
    if json_:
        print(json.dumps(dump(found), ensure_ascii=False))
        return
    print(f"winner: {found.metric} {found.base.value:.4f} on {found.rows:,} rows it was not trained on")
    print("change of the score when this is removed (95 % interval); below 0: it helped")
    for item in found.items:
        print(f"{item.difference:+.4f}  ({item.low:+.4f} to {item.high:+.4f})  {item.name}")
    for name in found.failed:
        print(f"not evaluated: {name}")
    report(run)


@app.command()
def report(run: RunFolder) -> None:
    """Write RUN/report.html, a page that opens from disk, and the same facts as RUN/report.json."""
    from headhunt.report import write

    print(f"report in {write(run)}")


@app.command()
def status(run: RunFolder, json_: Json = False) -> None:
    """Tell what is known of a search, under way or over."""
    from headhunt.engine import search as hunt

    show_search(hunt.Search(run), json_)


@app.command()
def evaluate(
    model: Model,
    data: Data,
    text: Text = None,
    text_b: TextB = None,
    label: Label = None,
    device: Device = None,
    json_: Json = False,
) -> None:
    """Score a saved model on labelled rows."""
    from headhunt.data import load_labelled
    from headhunt.engine import api
    from headhunt.report.terminal import counting_bar

    predictor = api.load(model, device=device)
    rows = load_labelled(
        data,
        problem_type=predictor.problem_type,  # type: ignore[arg-type]
        labels=predictor.labels,
        pair=predictor.pair,
        text=text,
        text_b=text_b,
        label=label,
    )
    with counting_bar("predicting", len(rows)) as advance:
        found = api.score(predictor, rows, advance)
    if json_:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        show_evaluation(found, predictor)


@app.command()
def predict(
    model: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; for pairs, two by two. None: read from a pipe.")
    ] = None,
    input_: Annotated[
        str | None, typer.Option("--input", help="Texts: a file; for a corpus also a folder, a 'pattern*' or a URL.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="A .csv or .jsonl file: all columns of the input, then label and probability (a column of the input "
            "that has such a name becomes input_label); or a folder or URL: a corpus, labelled shard by shard on Ray."
        ),
    ] = None,
    text: Text = None,
    text_b: TextB = None,
    device: Device = None,
    workers: Annotated[
        int | None, typer.Option(help="Corpus: processes; 0 labels in this one.", show_default="one per core or GPU")
    ] = None,
    ray: Ray = None,
    keep: Annotated[
        str | None, typer.Option(help="Corpus: columns to take over, as id,text; none for none.", show_default="all")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Corpus: write those of all labels.")] = False,
    shard_rows: Annotated[int, typer.Option(min=1, help="Corpus: rows of a shard.")] = 16384,
    json_: Json = False,
) -> None:
    """Label texts: given, in a file, from a pipe (one a line; two a line with a tab between for pairs), or a corpus."""
    if texts and input_:
        raise HeadhuntError("Give texts or --input, not both.")
    if not texts and not input_ and sys.stdin.isatty():
        raise HeadhuntError("Give texts, or --input FILE, or pipe them in, one a line.")
    if out and is_folder(out):
        if not input_ or input_ == "-":
            raise HeadhuntError("A corpus needs --input: a file, a folder, a 'pattern*' or a URL.")
        columns = None if keep is None else [] if keep == "none" else [name.strip() for name in keep.split(",")]
        options = {"text": text, "text_b": text_b, "keep": columns, "probabilities": probabilities, "device": device}
        predict_corpus(model, input_, out, json_, workers=workers, ray=ray, shard_rows=shard_rows, **options)
        return
    if workers is not None or ray or keep is not None or probabilities:
        raise HeadhuntError("--workers, --ray, --keep and --probabilities are for a corpus: give --out FOLDER.")
    from headhunt.engine import api

    predictor = api.load(model, device=device)
    with writer(predictor, Path(out) if out else None, json_) as write:
        if texts:
            for batch in given(texts, predictor.pair):
                write(named(*batch), predictor.predict(*batch))
        elif input_ and input_ != "-":
            predict_file(predictor, input_, text, text_b, write)
        else:
            for batch in piped(predictor.pair):
                write(named(*batch), predictor.predict(*batch))


@app.command()
def space(
    name: Annotated[str, typer.Argument(help="paper, default, or a TOML or JSON file.")],
    sample: Annotated[int, typer.Option(help="Draw this many candidates, one JSON a line; fit --spec takes each.")] = 0,
    seed: Annotated[int, typer.Option(help="For the draw.")] = 0,
    encoder: Annotated[str, typer.Option(help="Encoder of the candidates drawn.")] = DEFAULT_ENCODER,
    layers: Annotated[int, typer.Option(help="The encoder's layers: what may be frozen follows from it.")] = 6,
    pair: Annotated[bool, typer.Option("--pair", help="Draw for a task with two texts.")] = False,
    json_: Json = False,
) -> None:
    """Print what may be chosen and how many architectures that makes, or draw candidates."""
    from headhunt.spec import Space

    chosen = Space.load(name, layers)
    if sample:
        for number in range(sample):
            print(chosen.draw(seed * 1_000_003 + number, encoder=encoder, pair=pair).to_json())
    elif json_:
        print(json.dumps({**chosen.to_dict(), "architectures": chosen.size()}, ensure_ascii=False))
    else:
        show_space(chosen)


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="An ONNX export, or a folder that Headhunt saved.")],
    host: Annotated[str, typer.Option(help="Where to listen; this machine alone unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="HEADHUNT_TOKEN", help="What clients have to show; better in the environment.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Cores to compute with.", show_default="all")] = None,
    model_instances: Annotated[
        int | None,
        typer.Option(help="Forward passes at a time; 1 answers a lone text fastest.", show_default="threads"),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Texts of a forward pass.")] = 32,
    max_queue: Annotated[int, typer.Option(help="Texts that may wait; more are refused with 429.")] = 512,
    max_texts: Annotated[int, typer.Option(help="Texts of a request.")] = 256,
    max_characters: Annotated[int, typer.Option(help="Characters of a text.")] = 20_000,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 1_000_000,
    max_wait: Annotated[float, typer.Option(help="Seconds a request may wait for its answer.")] = 10.0,
    read_timeout: Annotated[float, typer.Option(help="Seconds a client may take to send a request.")] = 10.0,
    timeout_graceful_shutdown: Annotated[
        float, typer.Option(help="Seconds to finish what is queued when told to stop.")
    ] = 30.0,
) -> None:
    """Answer over HTTP: /predict, /health, /metrics, and a page to try it on at /. SIGTERM finishes what is queued."""
    from headhunt.delivery.serve import service as service
    from headhunt.delivery.serve.schemas import Limits

    limits = Limits(
        body=max_body,
        texts=max_texts,
        characters=max_characters,
        queue=max_queue,
        wait=max_wait,
        slow=read_timeout,
        drain=timeout_graceful_shutdown,
    )
    service.serve(
        model,
        host=host,
        port=port,
        token=token,
        threads=threads,
        model_instances=model_instances,
        max_batch=max_batch,
        limits=limits,
        say=say,
    )


def check_out(out: Path) -> None:
    """Refuses, before any work is done, a folder that cannot be written or has something in it."""
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise HeadhuntError(f"--out must be a new or empty folder; {out} has something in it.")
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise HeadhuntError(f"--out must be a folder that can be made; {nearest} cannot be written to.")


Batch = tuple[list[str], list[str] | None]


def given(texts: list[str], pair: bool) -> Iterator[Batch]:
    """Texts of the command line as one batch."""
    if not pair:
        yield texts, None
    elif len(texts) % 2:
        raise HeadhuntError(f"This model takes pairs: give an even number of texts; found {len(texts)}.")
    else:
        yield texts[::2], texts[1::2]


def named(texts: list[str], texts_b: list[str] | None) -> dict[str, list[Any]]:
    """Texts as columns."""
    return {"text": texts} if texts_b is None else {"text": texts, "text_b": texts_b}


def piped(pair: bool, most: int = 1024) -> Iterator[Batch]:
    """Lines of standard input in batches; the first ones are small, so that answers begin at once."""
    size, rows = 8, []
    try:
        for number, line in enumerate(io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig"), 1):
            row = line.rstrip("\r\n").split("\t") if pair else [line.rstrip("\r\n")]
            if pair and len(row) != 2:
                raise HeadhuntError(
                    f"Each line must hold two texts with one tab between; line {number} has {len(row)}."
                )
            rows.append(row)
            if len(rows) == size:
                yield [row[0] for row in rows], [row[1] for row in rows] if pair else None
                size, rows = min(most, size * 2), []
    except UnicodeDecodeError as error:
        raise HeadhuntError(f"The piped text must be UTF-8; found other bytes ({error.reason}).") from None
    if rows:
        yield [row[0] for row in rows], [row[1] for row in rows] if pair else None


def predict_file(
    predictor: Predictor | Ensemble, source: str, text: str | None, text_b: str | None, write: Any
) -> None:
    """Labels a file window by window, so that its size does not matter; all its columns are taken over."""
    from headhunt.data import load_texts
    from headhunt.predictor import WINDOW
    from headhunt.report.terminal import counting_bar

    rows = load_texts(source, pair=predictor.pair, text=text, text_b=text_b)
    with counting_bar("predicting", len(rows)) as advance:
        for start in range(0, len(rows), WINDOW):
            texts, second = rows.texts(start, start + WINDOW), rows.texts_b(start, start + WINDOW)
            found = predictor.outputs(texts, second, progress=advance)
            columns = {name: rows.rows.read(name, start, start + WINDOW) for name in rows.rows.table.column_names}
            write({name: cells.to_pylist() for name, cells in columns.items()}, map(predictor.prediction, found))


def is_folder(out: str) -> bool:
    """Whether an --out of `predict` names a folder: a URL, a folder that is there, or a name without an ending.

    Raises:
        HeadhuntError: If it ends like a file that is not written.
    """
    path = Path(out)
    if "://" in out or out.endswith("/") or path.is_dir() or not path.suffix:
        return True
    if path.suffix not in (".csv", ".jsonl"):
        raise HeadhuntError(f"--out must end in .csv or .jsonl, or be a folder for a corpus; found {path.name!r}.")
    return False


def predict_corpus(model: Path, source: str, out: str, as_json: bool, **options: Any) -> None:
    """Labels a corpus and tells what became of it; exit code 3 says that some files could not be read."""
    from dataclasses import asdict

    from headhunt.delivery.corpus.label import label_corpus
    from headhunt.report.terminal import RowsView

    try:
        found = label_corpus(model, source, out, view=RowsView(), **options)
    except KeyboardInterrupt:
        say("what is labelled stays; the same command goes on from there")
        raise
    if as_json:
        print(json.dumps(asdict(found), ensure_ascii=False))
    else:
        print(f"{found.labelled:,} of {found.rows:,} rows labelled in {found.seconds:,.0f} s, in {out}")
        for problem, rows in found.problems.items():
            print(f"without a label: {rows:,} rows, {problem}")
    for path, reason in found.unreadable.items():
        say(f"not read: {path}: {reason}")
    if not found.whole:
        raise typer.Exit(3)


@contextmanager
def writer(predictor: Predictor | Ensemble, out: Path | None, as_json: bool) -> Iterator[Any]:
    """A function that writes columns and their predictions: JSON lines, CSV, or `label<TAB>probability`.

    A column that has the name of one of ours becomes `input_NAME`, as in a corpus.
    """
    import csv

    as_json = as_json or bool(out and out.suffix == ".jsonl")
    partial = out.with_name(out.name + ".partial") if out else None
    try:
        stream = partial.open("w", encoding="utf-8", newline="") if partial else sys.stdout
    except OSError as error:
        raise HeadhuntError(f"--out must be a file that can be written; {out}: {error.strerror}.") from None
    table = csv.writer(stream)
    ours = ["label", "probability", *(["probabilities"] if as_json else [])]
    begun = False

    def write(columns: dict[str, list[Any]], found: Iterable[Prediction]) -> None:
        nonlocal begun
        names = beside(ours, list(columns))
        if out and not as_json and not begun:
            table.writerow([*names, *ours])
        begun = True
        for *cells, row in zip(*columns.values(), found, strict=True):
            words = "|".join(row.label) if isinstance(row.label, list) else row.label
            if as_json:
                answer = {"label": row.label, "probability": row.probability, "probabilities": row.probabilities}
                given = dict(zip(names, cells, strict=True))
                print(json.dumps({**given, **answer}, ensure_ascii=False, default=str), file=stream)
            elif out:
                table.writerow([*map(cell_words, cells), words, row.probability])
            else:
                print(words if row.probability is None else f"{words}\t{row.probability:.4f}", file=stream)
        stream.flush()

    try:
        yield write
        if not begun:  # no texts: a table of no rows
            write({name: [] for name in (("text", "text_b") if predictor.pair else ("text",))}, [])
    except BaseException:
        if partial:
            stream.close()
            partial.unlink()
        raise
    if partial and out:
        stream.close()
        partial.replace(out)


def beside(ours: list[str], theirs: list[str]) -> list[str]:
    """Names for the columns of the input that none of ours and no other of theirs has."""
    names: list[str] = []
    for name in theirs:
        new = name
        while new in ours or new in names or (new != name and new in theirs):
            new = f"input_{new}"
        names.append(new)
    return names


def cell_words(cell: Any) -> Any:
    """A cell as CSV can hold it."""
    return json.dumps(cell, ensure_ascii=False, default=str) if isinstance(cell, list | dict) else cell


def show_evaluation(found: Evaluation, predictor: Predictor | Ensemble) -> None:
    """Prints scores, the table per class and, while it is readable, the confusion matrix."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False)  # a label such as "[/b]" or ":smile:" is shown as it is
    scores = Table("metric", "value", "95 % interval", title=f"{found.rows:,} rows", title_justify="left")
    for name, score in found.scores.items():
        scores.add_row(name, f"{score.value:.4f}", f"{score.low:.4f} to {score.high:.4f}")
    console.print(scores)
    if found.classes:
        table = Table("class", "rows", "precision", "recall", "F1")
        for row in found.classes:
            table.add_row(row.label, str(row.rows), f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.f1:.3f}")
        console.print(table)
    if 0 < len(found.confusion) <= 12:
        table = Table("true \\ predicted", *predictor.labels)
        for label, counts in zip(predictor.labels, found.confusion, strict=True):
            table.add_row(label, *(str(count) for count in counts))
        console.print(table)


def end_search(found: Search, as_json: bool) -> None:
    """Prints what a search ended with and writes its report.

    Raises:
        HeadhuntError: If that is no model.
    """
    show_search(found, as_json)
    if not as_json:
        report(found.run_dir)
    if found.model_dir is None:
        raise HeadhuntError(f"{found.run_dir} has no model yet; continue: headhunt resume {found.run_dir} --time 10m")


def show_search(search: Search, as_json: bool) -> None:
    """Prints what a search has found so far, or at its end."""
    from rich.console import Console
    from rich.table import Table

    from headhunt.run.schema import dump
    from headhunt.spec import describe

    state, result, model = search.state, search.result, search.model_dir
    board = search.leaderboard()
    if as_json:
        rows = dump(board)
        known: dict[str, Any] = {
            "run": str(search.run_dir),
            "model": str(model) if model else None,
            "ended": state.ended,
        }
        known |= {"trials": len(state.trials), "results": len(state.settled), "running": len(state.running)}
        print(json.dumps({**known, "seconds": round(state.elapsed, 1), "leaderboard": rows, "result": dump(result)}))
        return
    console = Console(markup=False, emoji=False, highlight=False)
    table = Table("trial", search.settings.metric, "rung", "seconds", "candidate")
    plain = [row for row in board if row.trial == 0]
    for row in [*board[:10], *(row for row in plain if row not in board[:10])]:
        table.add_row(str(row.trial), f"{row.score:.4f}", str(row.rung), f"{row.seconds:.0f}", describe(row.spec))
    console.print(table)
    console.print(
        f"{len(state.trials)} candidates, {len(state.settled)} results in {state.elapsed:.0f} s; "
        + (f"ended: {state.ended}" if state.ended else f"{len(state.running)} running when last written")
    )
    if result is not None:
        console.print(result.verdict.sentence, style="bold")
        early = result.verdict.delivered == "best so far"
        names = {
            "winner": "the model that was ready in time" if early else "the winner",
            "plain": "the plain head",
            "ensemble": "the ensemble",
        }
        for name, scores in (result.test.scores if result.test else {}).items():
            score = scores[search.settings.metric]
            interval = f"95 % interval {score.low:.4f} to {score.high:.4f}"
            console.print(f"test rows, {names[name]}: {score.value:.4f} ({interval})")
        if result.test_evaluations > 1:
            console.print(f"the test rows were evaluated {result.test_evaluations} times in this run")
        if result.verdict.delivered == "plain" and result.winner_model:
            winner = search.directory.models / result.winner_model
            console.print(f"the best candidate all the same: {winner}", soft_wrap=True)
        if result.ensemble:
            console.print(f"the ensemble, as one model: {search.run_dir / result.ensemble}", soft_wrap=True)
    if model is not None:
        example = '"one text" "another"' if search.task.pair else '"some text"'
        console.print(f"model in {model}: try  headhunt predict {model} {example}", soft_wrap=True)
    else:
        console.print("no model yet")


def show_space(space: Space) -> None:
    """Prints the tree of a space with its ranges, what the names mean, and its size."""
    from rich.console import Console
    from rich.markup import escape
    from rich.tree import Tree

    from headhunt.spec import MEANINGS, Choice, Maybe

    def grow(branch: Tree, tree: dict[str, Any]) -> None:
        for key, node in tree.items():
            if isinstance(node, Maybe):
                grow(branch.add(f"[bold]{key}[/] [dim]may be off[/]"), node.tree)
            elif isinstance(node, dict):
                grow(branch.add(f"[bold]{key}[/]"), node)
            else:
                leaf = branch.add(f"{key}  [cyan]{node}[/]")
                options = node.options if isinstance(node, Choice) else ()
                for option in [option for option in options if option in MEANINGS.get(key, {})]:
                    leaf.add(f"[dim]{escape(f'{option}: {MEANINGS[key][option]}')}[/]")

    root = Tree(f"[bold]{space.name}[/]")
    grow(root, space.tree)
    console = Console(highlight=False)
    console.print(root)
    size = space.size()
    console.print(f"{size:,} architectures ({size:.2g}): heads and what is frozen, rates and other numbers not counted")


def say(message: str) -> None:
    """Prints what is worth knowing but not asked for."""
    print(message, file=sys.stderr)


@app.command()
def push(
    model: Model,
    repo: Annotated[str, typer.Argument(help="Where on the Hugging Face Hub: name or user/name; made if not there.")],
    private: Annotated[bool, typer.Option("--private/--public", help="Who can see a new repository.")] = True,
    message: Annotated[str | None, typer.Option(help="Of the commit.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be sent; needs no network.")] = False,
    json_: Json = False,
) -> None:
    """Send a saved model and its card to the Hugging Face Hub."""
    from headhunt.delivery import hub as huggingface

    huggingface.check_repo(repo)
    parcel = huggingface.pack(model)
    url = None if dry_run else huggingface.push(parcel, repo, private=private, message=message)
    if json_:
        sent = {"repo": repo, "url": url, "private": private, "files": parcel.files, "bytes": parcel.size}
        print(json.dumps({**sent, "left": parcel.left, "notes": parcel.notes}, ensure_ascii=False))
        return
    for name, size in parcel.files.items():
        print(f"{size:14,}  {name}")
    print(f"{parcel.size:14,}  bytes in {len(parcel.files)} files")
    for line in [*(f"stays here: {name}" for name in parcel.left), *(f"note: {note}" for note in parcel.notes)]:
        say(line)
    print(url or f"nothing was sent: without --dry-run this goes to {repo}, {'private' if private else 'public'}")


@app.command()
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option(metavar="OUT", help="Folder to write: the graph and all it takes to answer.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights in 8 bits, if that costs little of the score.")] = False,
    max_loss: Annotated[float, typer.Option(help="Points of the score that --int8 may cost.")] = 0.5,
    data: Annotated[
        str | None, typer.Option(help="Labelled rows to measure --int8 on; logits are compared on its texts.")
    ] = None,
    text: Text = None,
    text_b: TextB = None,
    label: Label = None,
    json_: Json = False,
) -> None:
    """Write a model as an ONNX graph with a predict.py that needs neither torch nor Headhunt."""
    from headhunt.delivery.onnx.export import export

    check_out(onnx)
    columns = {"text": text, "text_b": text_b, "label": label}
    done = export(model, onnx, data=data, int8=int8, max_loss=max_loss, **columns)
    if json_:
        print(json.dumps({**asdict(done), "folder": str(done.folder)}, ensure_ascii=False))
    else:
        print(f"logits differ from torch's by at most {done.difference:.1e}, over {done.texts} texts")
        if done.int8:
            words = f"{100 * done.int8.int8:.2f} in 8 bits, {100 * done.int8.fp32:.2f} before"
            print(f"{done.int8.metric} {words}, on {done.int8.rows:,} rows ({done.int8.source})")
        example = '"one text" "another"' if done.pair else '"some text"'
        print(f"{done.bytes / 1e6:.1f} MB in {onnx}: try  python {onnx / 'predict.py'} {example}")
    if done.int8 and not done.int8.accepted:
        raise HeadhuntError(
            f"8 bits must not cost more than {max_loss:g} points; they cost {done.int8.loss:.2f}. "
            f"The graph in {onnx} is the one in 32 bits."
        )


def main() -> None:
    """Runs the command line."""
    app(prog_name="headhunt")


if __name__ == "__main__":
    main()
