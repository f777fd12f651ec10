"""Commands that train, evaluate and use one model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headhunt.cli import options as opt
from headhunt.cli import prediction
from headhunt.cli.output import predict_example, print_evaluation, print_notes, score_text, show
from headhunt.errors import HeadhuntError


@opt.expand
def fit(
    *,
    data: opt.DataFile,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to save the model in.")],
    spec: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file of a spec.", show_default="a solved head")
    ] = None,
    fine_tune: Annotated[
        bool, typer.Option("--fine-tune", help="Train the plain head and the encoder: minutes, not seconds.")
    ] = False,
    json_: opt.Json = False,
    table: opt.Table,
    training: opt.Fitting,
) -> None:
    """Train one model without a search and save it.

    Without --spec and --fine-tune, the head is solved on the frozen encoder, in seconds.
    """
    if spec is not None and fine_tune:
        raise HeadhuntError("--spec says how the model is trained. Leave --fine-tune out.")
    from headhunt.data import Task
    from headhunt.spec import Spec

    opt.check_out(out)
    candidate = Spec.read(spec, training.get("encoder")) if spec else None
    # No candidates are compared, so all rows are trained on.
    task = Task.load(data, seed=training.get("seed", 0), validation_share=0, **table)
    print_notes(task)

    # Only now: importing torch takes seconds, which a mistake in the data need not wait for.
    from headhunt.engine import api
    from headhunt.evaluation import Score
    from headhunt.report.terminal import training_bar

    with training_bar("training") as follow:
        predictor = api.fit(task, spec=candidate, fine_tune=fine_tune, out=out, on_report=follow, **training)
    scores = predictor.facts.get("test", {}).get("scores", {})
    show(
        json_,
        {"out": str(out), **predictor.facts},
        *(f"{name:12} {score_text(Score(**score))}" for name, score in scores.items()),
        f"saved in {out}: try  {predict_example(f'headhunt predict {out}', task.pair)}",
    )


@opt.expand
def evaluate(
    *,
    model: opt.Model,
    data: opt.DataFile,
    json_: opt.Json = False,
    task: opt.TaskName = None,
    columns: opt.Columns,
    compute: opt.Device,
) -> None:
    """Evaluate a saved model on labelled rows."""
    opt.check_file(data)
    from headhunt.data import load_labelled
    from headhunt.engine import api
    from headhunt.report.terminal import counting_bar

    predictor = api.load(model, **compute).for_task(task)
    rows = load_labelled(
        data,
        problem_type=predictor.problem_type,  # type: ignore[arg-type]
        labels=predictor.labels,
        pair=predictor.pair,
        **columns,
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


@opt.expand
def predict(
    *,
    model: opt.Model,
    texts: Texts = None,
    source: Input = None,
    out: PredictionsOut = None,
    json_: opt.Json = False,
    given: Annotated[opt.Given, [*opt.PREDICTING, *opt.flags(prediction.Style)]],
    corpus: Annotated[opt.Given, opt.flags(prediction.CorpusOptions)],
) -> None:
    """Predict labels for texts: arguments, the lines of a pipe, a file or a corpus.

    Each line of a pipe is one text. For pairs it is two texts, separated by a tab.
    """
    check_source(texts, source)
    task, device = given.pop("task", None), given.pop("device", None)
    columns: opt.Given = {name: given.pop(name) for name in ("text", "text_b") if name in given}
    style = prediction.Style(**given)
    if out and prediction.is_folder(out):
        if task is not None:
            raise HeadhuntError(
                f"A corpus is labelled by the model of one task. Save it with  headhunt export {model} --task {task} "
                "--out FOLDER  and give that folder without --task."
            )
        options = {**columns, **corpus, "device": device, "probabilities": style.probabilities}
        prediction.predict_corpus(model, source, out, json_, options)
    elif corpus:
        raise HeadhuntError("--workers, --ray, --keep and --shard-rows need a corpus: give --out FOLDER.")
    elif style.probabilities and not out and not json_:
        raise HeadhuntError("--probabilities needs a file or folder: give --out FILE.csv.")
    else:
        from headhunt.study.fork_server import without_collection

        with without_collection():
            from headhunt.engine import api
        predictor = api.load(model, device=device).for_task(task)
        with prediction.open_writer(predictor, Path(out) if out else None, json_, style) as writer:
            prediction.predict(predictor, texts, source, columns, writer)


def check_source(texts: list[str] | None, source: str | None) -> None:
    """Refuse texts from two places, or from none."""
    if texts and source:
        raise HeadhuntError("Give texts or --input, not both.")
    if not texts and not source and sys.stdin.isatty():
        raise HeadhuntError("Give texts, or --input FILE, or pipe them in, one per line.")
    opt.check_file(source)
