"""Commands that train, evaluate and use one model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headhunt.cli import options as opt
from headhunt.cli.output import print_evaluation, print_fit, print_notes
from headhunt.errors import HeadhuntError

CORPUS = "Corpus (if --out is a folder or URL)"


def fit(
    data: opt.DataFile,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to save the model in.")],
    spec: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file of a spec.", show_default="the plain head")
    ] = None,
    json_: opt.Json = False,
    text: opt.Text = None,
    text_b: opt.TextB = None,
    label: opt.Label = None,
    group: opt.Group = None,
    order: opt.Order = None,
    problem_type: opt.ProblemType = None,
    test: opt.Test = None,
    limit: opt.Limit = None,
    encoder: opt.Encoder = None,
    max_length: opt.MaxLength = None,
    seed: opt.Seed = 0,
    precision: opt.PrecisionOption = opt.Precision.auto,
    trust_remote_code: opt.TrustRemoteCode = False,
    device: opt.Device = None,
) -> None:
    """Train one head, the plain head unless --spec is given, and save the model."""
    from headhunt.data import Task
    from headhunt.spec import Spec

    opt.check_out(out)
    candidate = Spec.read(spec, encoder) if spec else None
    columns: dict[str, Any] = {"text": text, "text_b": text_b, "label": label, "problem_type": problem_type}
    columns |= {"group": group, "order": order, "validation_share": 0}  # fit compares no candidates
    task = Task.load(data, test=test, limit=limit, seed=seed, **columns)
    print_notes(task)

    # Only now: importing torch takes seconds, which a mistake in the data need not wait for.
    from headhunt.engine import api
    from headhunt.report.terminal import training_bar

    training: dict[str, Any] = {"encoder": encoder, "max_length": max_length, "seed": seed, "device": device}
    training |= {"precision": precision.value, "trust_remote_code": trust_remote_code}
    with training_bar("training") as show:
        predictor = api.fit(task, spec=candidate, out=out, on_report=show, **training)
    print_fit(predictor.facts, out, task.pair, json_)


def evaluate(
    model: opt.Model,
    data: opt.DataFile,
    json_: opt.Json = False,
    task: opt.TaskName = None,
    text: opt.Text = None,
    text_b: opt.TextB = None,
    label: opt.Label = None,
    device: opt.Device = None,
) -> None:
    """Evaluate a saved model on labelled rows."""
    from headhunt.data import load_labelled
    from headhunt.engine import api
    from headhunt.report.terminal import counting_bar

    predictor = api.load(model, device=device).for_task(task)
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
        evaluation, rejection = api.score_answers(predictor, rows, advance)
    print_evaluation(evaluation, list(predictor.labels), json_, rejection)


Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXTS", help="Texts. For pairs, the two texts of each pair in turn."),
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="File of texts, or - for standard input. For a corpus also a folder, a 'pattern*' or a URL.",
    ),
]
PredictionsOut = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="A .csv or .jsonl file: the columns of the input, then label and probability. An input column of "
        "the same name becomes input_label. A folder or URL: a corpus, labelled in shards.",
    ),
]
CorpusWorkers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of worker processes; 0 labels in this process.",
        show_default="one per core or GPU",
        rich_help_panel=CORPUS,
    ),
]
CorpusRay = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address of a Ray cluster.", rich_help_panel=CORPUS)
]
Keep = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS",
        help="Input columns to keep, such as id,text, or none.",
        show_default="all",
        rich_help_panel=CORPUS,
    ),
]
Probabilities = Annotated[
    bool,
    typer.Option("--probabilities", help="Write the probability of every label.", rich_help_panel=CORPUS),
]
ShardRows = Annotated[int, typer.Option(min=1, metavar="N", help="Number of rows per shard.", rich_help_panel=CORPUS)]


def predict(
    model: opt.Model,
    texts: Texts = None,
    input_: Input = None,
    out: PredictionsOut = None,
    json_: opt.Json = False,
    task: opt.TaskName = None,
    text: opt.Text = None,
    text_b: opt.TextB = None,
    device: opt.Device = None,
    workers: CorpusWorkers = None,
    ray: CorpusRay = None,
    keep: Keep = None,
    probabilities: Probabilities = False,
    shard_rows: ShardRows = 16384,
) -> None:
    """Predict labels for texts: arguments, the lines of a pipe, a file or a corpus.

    Each line of a pipe is one text. For pairs it is two texts, separated by a tab.
    """
    from headhunt.cli import prediction

    check_source(texts, input_)
    if out and prediction.is_folder(out):
        if task is not None:
            raise HeadhuntError(
                f"A corpus is labelled by the model of one task. Save it with  headhunt export {model} --task {task} "
                "--out FOLDER  and give that folder without --task."
            )
        options = {"text": text, "text_b": text_b, "keep": split_columns(keep), "probabilities": probabilities}
        compute = {"workers": workers, "ray": ray, "device": device, "shard_rows": shard_rows}
        prediction.predict_corpus(model, input_, out, json_, **options, **compute)
    elif workers is not None or ray or keep is not None or probabilities:
        raise HeadhuntError("--workers, --ray, --keep and --probabilities need a corpus: give --out FOLDER.")
    else:
        columns = {"text": text, "text_b": text_b}
        file = Path(out) if out else None
        prediction.predict(model, texts, input_, file, json_, device=device, task=task, **columns)


def check_source(texts: list[str] | None, source: str | None) -> None:
    """Refuse texts from two places, or from none."""
    if texts and source:
        raise HeadhuntError("Give texts or --input, not both.")
    if not texts and not source and sys.stdin.isatty():
        raise HeadhuntError("Give texts, or --input FILE, or pipe them in, one per line.")


def split_columns(keep: str | None) -> list[str] | None:
    """Return the names of `--keep`; None for all columns."""
    if keep is None:
        return None
    return [] if keep == "none" else [name.strip() for name in keep.split(",")]
