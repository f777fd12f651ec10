"""Commands that learn from texts without labels: further pretraining and distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headhunt.cli import options as opt
from headhunt.cli.output import format_score, print_json

TextsFile = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="Texts without labels: CSV, TSV, JSONL, Parquet, or .txt with one text per line."
    ),
]
Epochs = Annotated[float, typer.Option(metavar="N", help="Passes over the texts.")]


@opt.expand
def pretrain(
    *,
    encoder: Annotated[
        str, typer.Argument(metavar="ENCODER", callback=opt.complete_encoder, help="Hugging Face name or folder.")
    ],
    texts: TextsFile,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the new encoder.")],
    columns: opt.TextColumn,
    epochs: Epochs = 3.0,
    time: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time limit, such as 10m: fewer epochs then.", show_default="none"),
    ] = None,
    json_: opt.Json = False,
    training: opt.Pretraining,
) -> None:
    """Train an encoder further on texts without labels, by masked tokens, and save it as a new encoder.

    The result is kept in the cache. After Ctrl-C, the same command continues.
    """
    opt.check_out(out)
    from headhunt.engine import api
    from headhunt.report.terminal import training_bar

    with training_bar("training") as show:
        done = api.pretrain(
            encoder,
            texts,
            out=out,
            epochs=epochs,
            time=time,
            on_report=show,
            **columns,
            **training,
        )
    if json_:
        from headhunt.run.schema import dump

        print_json({"out": str(out), **dump(done)})
        return
    print(f"{done.texts:,} texts, {done.epochs:g} epochs, {done.steps:,} steps{' (from the cache)' * done.cached}")
    if done.first_loss is not None:
        print(f"loss {done.first_loss:.3f} at first, {done.last_loss:.3f} at the end")
    print(f"saved in {out}: try  headhunt search DATA --encoder {encoder},{out}")


@opt.expand
def distil(
    *,
    model: opt.Model,
    texts: TextsFile,
    encoder: Annotated[
        str,
        typer.Option(
            metavar="ENCODER",
            callback=opt.complete_encoder,
            help="Encoder of the student: Hugging Face name or folder.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to save the student in.")],
    test: Annotated[str | None, typer.Option(metavar="FILE", help="Labelled rows to score both models on.")] = None,
    columns: opt.Columns,
    epochs: Epochs = 3.0,
    json_: opt.Json = False,
    training: opt.Training,
) -> None:
    """Train a student with a smaller encoder to predict what a saved model predicts, and measure both."""
    opt.check_out(out)
    from headhunt.engine.distillation import distil as run
    from headhunt.report.terminal import training_bar

    with training_bar("training") as show:
        done = run(
            model, texts, encoder=encoder, out=out, test=test, epochs=epochs, on_report=show, **columns, **training
        )
    if json_:
        print_json({"out": str(out), **done.to_dict()})
        return
    for name, each in (("teacher", done.teacher), ("student", done.student)):
        print(f"{name}: {each.cost.latency['1'].p50_ms:.1f} ms per text, {each.cost.megabytes:.0f} MB")
        for metric, score in each.scores.items():
            print(f"  {metric:12} {format_score(score.value, score.low, score.high)}")
    print(f"they agree on {done.agreement:.1%} of texts that the student has not seen")
    print(f"saved in {out}: try  headhunt predict {out}")
