"""Commands that export, serve and publish a saved model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headhunt.cli import options as opt
from headhunt.cli.output import log, predict_example, show
from headhunt.delivery.serve.limits import Compute, Limits
from headhunt.errors import HeadhuntError, visible
from headhunt.run.settings import DATA, option

if TYPE_CHECKING:
    from headhunt.delivery.onnx.export import Export


@dataclass(frozen=True)
class ExportOptions:
    """The options of an ONNX export, as for `delivery.onnx.export`."""

    int8: bool = option(False, "Quantize the weights to 8 bits if the score stays within --max-loss.", heading="")
    max_loss: float = option(
        0.5, "Maximum loss of score by --int8, in percentage points.", "POINTS", heading="", shown="0.5"
    )
    data: str | None = option(
        None, "Labelled rows to measure --int8 on. Logits are compared on its texts too.", "FILE", DATA
    )


@opt.expand
def export(
    *,
    model: opt.Model,
    onnx: Annotated[Path | None, typer.Option(metavar="OUT", help="Folder to write the ONNX model to.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder to save the model of --task in, as one that transformers loads."),
    ] = None,
    task: opt.TaskNames = None,
    json_: opt.Json = False,
    options: Annotated[opt.Given, [*opt.flags(ExportOptions), *opt.LABELLED]],
) -> None:
    """Export a model to ONNX, with a predict.py that needs neither torch nor Headhunt.

    Of a model of several tasks, all tasks are exported to one graph if all take one text, or all take two; --task
    chooses some. With --out, the model of one task is saved as a folder of its own.
    """
    if (onnx is None) == (out is None):
        raise HeadhuntError("Give --onnx OUT to write an ONNX model, or --out FOLDER to save the model of --task.")
    if onnx is None:
        assert out is not None
        if task is None or len(task) != 1:
            raise HeadhuntError("--out saves the model of one of several tasks. Give --task NAME.")
        save_task(model, task[0], out, json_)
        return
    from headhunt.delivery.onnx.export import MAX_LOSS, export

    opt.check_out(onnx, "--onnx")
    exported = export(model, onnx, task=task, **options)
    show(json_, {**asdict(exported), "folder": str(exported.folder)}, *export_lines(exported, onnx))
    if exported.int8 and not exported.int8.accepted:
        most = options.get("max_loss", MAX_LOSS)
        raise HeadhuntError(
            f"8 bits must not cost more than {most:g} points; they cost {exported.int8.loss:.2f}. "
            f"The graph in {onnx} is the one in 32 bits."
        )


def save_task(model: Path, task: str, out: Path, as_json: bool) -> None:
    """Save the model of one of several tasks in a folder of its own."""
    from headhunt.engine import api

    opt.check_out(out)
    predictor = api.load(model, device="cpu").for_task(task)
    predictor.save(out)
    facts = {"task": task, "folder": str(out), "labels": list(predictor.labels), "pair": predictor.pair}
    example = predict_example(f"headhunt predict {out}", predictor.pair)
    show(as_json, facts, f"the model of {task} is in {out}: try  {example}")


def export_lines(exported: Export, out: Path) -> Iterator[str]:
    """Yield how exact an exported model is and how large."""
    relative = "of the largest logit, or of 1"
    yield f"logits differ from torch's by at most {exported.difference:.1e} {relative}, over {exported.texts} texts"
    if exported.int8:
        scores = f"{100 * exported.int8.int8:.2f} in 8 bits, {100 * exported.int8.fp32:.2f} before"
        yield f"{exported.int8.metric} {scores}, on {exported.int8.rows:,} rows ({exported.int8.source})"
    example = predict_example(f"python {out / 'predict.py'}", exported.pair)
    yield f"{exported.bytes / 1e6:.1f} MB in {out}: try  {example}"


Host = Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option(metavar="PORT", help="Port to listen on; 0 picks a free one.")]
Token = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        envvar="HEADHUNT_TOKEN",
        help="Bearer token that clients must send. Prefer the environment variable.",
    ),
]


@opt.expand
def serve(
    *,
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", callback=opt.check_model, help="Folder of an ONNX export or of a saved model."),
    ],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    compute: Annotated[opt.Given, opt.flags(Compute)],
    limits: Annotated[opt.Given, opt.flags(Limits)],
) -> None:
    """Serve a model over HTTP: /predict, /health, /metrics and a demo page at /.

    On SIGTERM the server finishes the queued requests, then stops.
    """
    from headhunt.delivery import serve as service

    if token is None and os.environ.get("HEADHUNT_TOKEN") is not None:
        token = ""  # set, and empty: refused, where typer would serve without a token
    allowed, cores = Limits(**limits), Compute(**compute)
    service.serve(model, host=host, port=port, token=token, compute=cores, limits=allowed, notify=log)


def push(
    model: opt.Model,
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Repository, as name or user/name; created if missing.")],
    private: Annotated[bool, typer.Option("--private/--public", help="Visibility of a new repository.")] = True,
    message: Annotated[str | None, typer.Option(metavar="TEXT", help="Commit message.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files without uploading; needs no network.")
    ] = False,
    json_: opt.Json = False,
) -> None:
    """Upload a saved model and its model card to the Hugging Face Hub."""
    from headhunt.delivery import hub

    hub.check_repo(repo)
    plan = hub.plan_upload(model)
    url = None if dry_run else hub.push(plan, repo, private=private, message=message)
    visibility = "private" if private else "public"
    end = url or f"nothing was sent: without --dry-run this goes to {repo}, {visibility}"
    facts = {"repo": repo, "url": url, "private": private, "files": plan.files, "bytes": plan.size}
    files = [f"{size:14,}  {visible(name)}" for name, size in plan.files.items()]
    show(
        json_,
        {**facts, "left": plan.skipped, "notes": plan.notes},
        *files,
        f"{plan.size:14,}  bytes in {len(plan.files)} files",
        end,
    )
    if not json_:
        for line in (
            *(f"stays here: {visible(name)}" for name in plan.skipped),
            *(f"note: {note}" for note in plan.notes),
        ):
            log(line)
