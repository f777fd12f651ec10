"""Commands that learn from texts without labels: further pretraining and distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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


def pretrain(
    encoder: Annotated[str, typer.Argument(metavar="ENCODER", help="Hugging Face name or folder.")],
    texts: TextsFile,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the new encoder.")],
    text: opt.Text = None,
    epochs: Epochs = 3.0,
    time: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time limit, such as 10m: fewer epochs then.", show_default="none"),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum number of tokens per text; longer texts are truncated.", show_default="128"
        ),
    ] = None,
    seed: opt.Seed = 0,
    precision: opt.PrecisionOption = opt.Precision.auto,
    trust_remote_code: opt.TrustRemoteCode = False,
    json_: opt.Json = False,
    device: opt.Device = None,
) -> None:
    """Train an encoder further on texts without labels, by masked tokens, and save it as a new encoder.

    The result is kept in the cache. After Ctrl-C, the same command continues.
    """
    opt.check_out(out)
    from headhunt.engine import api
    from headhunt.report.terminal import training_bar

    options: dict[str, Any] = {"text": text, "epochs": epochs, "time": time, "max_length": max_length, "seed": seed}
    options |= {"precision": precision.value, "trust_remote_code": trust_remote_code, "device": device}
    with training_bar("training") as show:
        done = api.pretrain(encoder, texts, out=out, on_report=show, **options)
    if json_:
        from headhunt.run.schema import dump

        print_json({"out": str(out), **dump(done)})
        return
    print(f"{done.texts:,} texts, {done.epochs:g} epochs, {done.steps:,} steps{' (from the cache)' * done.cached}")
    if done.first_loss is not None:
        print(f"loss {done.first_loss:.3f} at first, {done.last_loss:.3f} at the end")
    print(f"saved in {out}: try  headhunt search DATA --encoder {encoder},{out}")


def distil(
    model: opt.Model,
    texts: TextsFile,
    encoder: Annotated[
        str, typer.Option(metavar="ENCODER", help="Encoder of the student: Hugging Face name or folder.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to save the student in.")],
    test: Annotated[str | None, typer.Option(metavar="FILE", help="Labelled rows to score both models on.")] = None,
    text: opt.Text = None,
    text_b: opt.TextB = None,
    label: opt.Label = None,
    epochs: Epochs = 3.0,
    seed: opt.Seed = 0,
    precision: opt.PrecisionOption = opt.Precision.auto,
    trust_remote_code: opt.TrustRemoteCode = False,
    json_: opt.Json = False,
    device: opt.Device = None,
) -> None:
    """Train a student with a smaller encoder to predict what a saved model predicts, and measure both."""
    opt.check_out(out)
    from headhunt.engine.distillation import distil as run
    from headhunt.report.terminal import training_bar

    options: dict[str, Any] = {"text": text, "text_b": text_b, "label": label, "epochs": epochs, "seed": seed}
    options |= {"precision": precision.value, "trust_remote_code": trust_remote_code, "device": device}
    with training_bar("training") as show:
        done = run(model, texts, encoder=encoder, out=out, test=test, on_report=show, **options)
    if json_:
        print_json({"out": str(out), **done.to_dict()})
        return
    for name, each in (("teacher", done.teacher), ("student", done.student)):
        print(f"{name}: {each.cost.latency['1'].p50_ms:.1f} ms per text, {each.cost.megabytes:.0f} MB")
        for metric, score in each.scores.items():
            print(f"  {metric:12} {format_score(score.value, score.low, score.high)}")
    print(f"they agree on {done.agreement:.1%} of texts that the student has not seen")
    print(f"saved in {out}: try  headhunt predict {out}")
