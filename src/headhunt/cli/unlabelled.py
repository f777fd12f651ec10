"""Commands that learn from texts without labels: further pretraining and distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headhunt.cli import options as opt
from headhunt.cli.output import score_text, show

TextsFile = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="Texts without labels: CSV, TSV, JSONL, Parquet, or .txt with one text per line."
    ),
]


@opt.expand
def pretrain(
    *,
    encoder: Annotated[
        str, typer.Argument(metavar="ENCODER", callback=opt.complete_encoder, help="Hugging Face name or folder.")
    ],
    texts: TextsFile,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the new encoder.")],
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
    from headhunt.run.schema import dump

    with training_bar("training") as follow:
        done = api.pretrain(encoder, texts, out=out, time=time, on_report=follow, **training)
    losses = (
        [] if done.first_loss is None else [f"loss {done.first_loss:.3f} at first, {done.last_loss:.3f} at the end"]
    )
    show(
        json_,
        {"out": str(out), **dump(done)},
        f"{done.texts:,} texts, {done.epochs:g} epochs, {done.steps:,} steps{' (from the cache)' * done.cached}",
        *losses,
        f"saved in {out}: try  headhunt search DATA --encoder {encoder},{out}",
    )


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
    json_: opt.Json = False,
    training: opt.Distilling,
) -> None:
    """Train a student with a smaller encoder to predict what a saved model predicts, and measure both."""
    opt.check_out(out)
    from headhunt.engine.distillation import distil as run
    from headhunt.report.terminal import training_bar

    with training_bar("training") as follow:
        done = run(model, texts, encoder=encoder, out=out, test=test, on_report=follow, **training)
    lines = []
    for name, each in (("teacher", done.teacher), ("student", done.student)):
        lines.append(f"{name}: {each.cost.latency['1'].p50_ms:.1f} ms per text, {each.cost.megabytes:.0f} MB")
        lines += [f"  {metric:12} {score_text(score)}" for metric, score in each.scores.items()]
    show(
        json_,
        {"out": str(out), **done.to_dict()},
        *lines,
        f"they agree on {done.agreement:.1%} of texts that the student has not seen",
        f"saved in {out}: try  headhunt predict {out}",
    )
