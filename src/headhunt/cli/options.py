"""Arguments and options that several commands share, and the checks of their values."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headhunt.cli.flags import RENAMED_PROBLEM_TYPES
from headhunt.errors import HeadhuntError

DATA, SEARCH, LIMITS, TRAINING, COMPUTE = "Data", "Search", "Model limits", "Training", "Compute"
COMPARISON = "Comparison of strategies"
"""Headings of the help. Options without one are listed first, under "Options"."""

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


class Precision(StrEnum):
    """Floating-point precision of training."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class Strategy(StrEnum):
    """Search strategy."""

    prior = "prior"
    bohb = "bohb"
    random = "random"
    grid = "grid"
    evolution = "evolution"
    tpe = "tpe"
    gp = "gp"
    reinforce = "reinforce"


def check_problem_type(value: str | None) -> str | None:
    """Refuse an unknown problem type; name the new word for an old one."""
    if value is None or value in PROBLEM_TYPES:
        return value
    if value in RENAMED_PROBLEM_TYPES:
        raise typer.BadParameter(f"{value!r} has been renamed. Use {RENAMED_PROBLEM_TYPES[value]}.")
    raise typer.BadParameter(f"{value!r} is not one of {', '.join(PROBLEM_TYPES)}.")


def check_out(out: Path, flag: str = "--out") -> None:
    """Refuse a folder that is not empty or cannot be written, before any work is done.

    Args:
        out: The folder.
        flag: The flag that named it.

    Raises:
        HeadhuntError: If the folder cannot be used.
    """
    from headhunt.storage import find_obstacle

    if (obstacle := find_obstacle(out)) is not None:
        raise HeadhuntError(f"{flag} must be a new or empty folder; {obstacle}. Use another.")


DataFile = Annotated[
    str,
    typer.Argument(metavar="DATA", help="CSV, TSV, JSONL or Parquet file, or a folder with train, dev and test files."),
]
SearchedData = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="CSV, TSV, JSONL or Parquet file, or a folder with train, dev and test files; or give --tasks.",
        show_default=False,
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option(
        metavar="TASKS",
        help="Several tasks for one model: a TOML file with a table for each, or a folder of data files.",
        rich_help_panel=DATA,
    ),
]
TaskName = Annotated[
    str | None, typer.Option("--task", metavar="NAME", help="Name of the task, for a model of several tasks.")
]
TaskNames = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="NAME", help="Name of a task, for a model of several tasks; may be repeated."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a saved model.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of a search.")]

Text = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Text column (detected if unambiguous).", rich_help_panel=DATA),
]
TextB = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Second text column, for pairs of texts.", rich_help_panel=DATA)
]
Label = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Label column (detected if unambiguous).", rich_help_panel=DATA),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of groups, such as users: rows of a group stay in one split.",
        rich_help_panel=DATA,
    ),
]
Order = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of numbers, dates or times: the last rows are the test rows, those before them the "
        "validation rows of a search.",
        rich_help_panel=DATA,
    ),
]
ProblemType = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        callback=check_problem_type,
        help="single_label_classification, multi_label_classification or regression "
        "(detected from the labels if not given).",
        rich_help_panel=DATA,
    ),
]
Test = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Test rows (a fifth of the data is split off if not given).", rich_help_panel=DATA
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(metavar="N", help="Maximum number of training rows, sampled with the seed.", rich_help_panel=DATA),
]
Unlabelled = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Texts without labels (CSV, TSV, JSONL, Parquet, or .txt with one per line). Texts of test rows are "
        "left out.",
        rich_help_panel=DATA,
    ),
]
Pretrain = Annotated[
    bool | None,
    typer.Option(
        "--pretrain/--no-pretrain",
        help="Also try the encoder after further pretraining on masked tokens of the training texts and the "
        "unlabelled ones.",
        show_default="if --unlabelled is given",
        rich_help_panel=TRAINING,
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        metavar="ENCODER",
        help="Encoder: Hugging Face name or folder.",
        show_default="the one in the spec or space, or all-MiniLM-L6-v2",
        rich_help_panel=TRAINING,
    ),
]
Encoders = Annotated[
    list[str] | None,
    typer.Option(
        "--encoder",
        metavar="ENCODER",
        help="Encoder: Hugging Face name or folder. Several, separated by commas or given one by one, are compared; "
        "auto compares known ones that suit the texts and the hardware.",
        show_default="the one in the space, or all-MiniLM-L6-v2",
        rich_help_panel=TRAINING,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Maximum number of tokens per text; longer texts are truncated.",
        show_default="128, or the value in the spec or space",
        rich_help_panel=TRAINING,
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed.", rich_help_panel=TRAINING)]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        metavar="NAME",
        help="Floating-point precision: auto, fp32 or bf16. auto uses bf16 where it is faster.",
        rich_help_panel=TRAINING,
    ),
]
Calibrate = Annotated[
    bool,
    typer.Option("--calibrate", help="Calibrate probabilities with temperature scaling.", rich_help_panel=TRAINING),
]
Reject = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Answer only this share of the texts, such as 0.9: predictions with a low probability are rejected.",
        show_default="answer all",
        rich_help_panel=TRAINING,
    ),
]
RejectLabel = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS",
        help="Class of texts that fit no other class. They are rejected; --reject is then 0.9 by default.",
        rich_help_panel=TRAINING,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Allow Python code from the encoder's repository to run.", rich_help_panel=TRAINING
    ),
]
RunTrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Allow Python code from the encoder's repository to run."),
]
"""For commands on a run, which does not store the permission."""
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help="cuda, mps or cpu.", show_default="the fastest available", rich_help_panel=COMPUTE
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of worker processes; 0 trains in this process.",
        show_default="one per core or GPU",
        rich_help_panel=COMPUTE,
    ),
]
RunWorkers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of worker processes; 0 trains in this process.",
        show_default="as in the search",
        rich_help_panel=COMPUTE,
    ),
]
Ray = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address of a Ray cluster, or local.", rich_help_panel=COMPUTE)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Time = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Total time limit, such as 90s, 10m, 1h30m or none. Includes loading and the final training.",
        rich_help_panel=SEARCH,
    ),
]
StepTime = Annotated[str | None, typer.Option(metavar="DURATION", help="Time limit, such as 10m.", show_default="none")]
Trials = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Maximum number of trials, with the first ones: plain heads and a solved head per encoder.",
        rich_help_panel=SEARCH,
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        metavar="SCORE",
        help="Stop when a trial reaches this score, such as 0.9. For mse give its negative, such as -0.1.",
        rich_help_panel=SEARCH,
    ),
]
SpaceName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Search space: default, paper, encoder, or a TOML or JSON file.", rich_help_panel=SEARCH
    ),
]
StrategyOption = Annotated[
    Strategy,
    typer.Option(metavar="NAME", help=f"Search strategy: {', '.join(Strategy)}.", rich_help_panel=SEARCH),
]
KnownRecipes = Annotated[
    bool,
    typer.Option(
        "--known-recipes/--no-known-recipes",
        help="Begin with recipes that performed well on other tasks.",
        rich_help_panel=COMPARISON,
    ),
]
LearnFrom = Annotated[
    list[str] | None,
    typer.Option(
        "--learn-from",
        metavar="RUN",
        help="Directory of an earlier search on similar data, whose best candidates are tried early. May be repeated.",
        rich_help_panel=SEARCH,
    ),
]
RungsOption = Annotated[
    bool,
    typer.Option(
        "--rungs/--no-rungs",
        help="Compare candidates on less than full training first, and promote the best.",
        rich_help_panel=COMPARISON,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Metric to optimize, by problem type."
        "\n\nsingle_label_classification: accuracy, macro_f1, weighted_f1, mcc"
        "\n\nmulti_label_classification: accuracy, macro_f1, weighted_f1, micro_f1"
        "\n\nregression: mse, pearson, spearman",
        show_default="accuracy, micro_f1 or spearman",
        rich_help_panel=SEARCH,
    ),
]
MaxLatency = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Maximum median latency for one text on one CPU thread, such as 20ms.",
        rich_help_panel=LIMITS,
    ),
]
MaxSize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Maximum size of the model's weights, such as 60MB.",
        rich_help_panel=LIMITS,
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Maximum memory of a worker process, such as 4GB.", rich_help_panel=LIMITS),
]
Deliver = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="Model to deliver: best (the winner, or the plain head if that is better on validation rows), ensemble "
        "(also the mean of several models if that is better, within --max-latency and --max-size), or "
        "plain-unless-proven (the plain head, unless the test rows prove that the winner is better).",
        rich_help_panel=SEARCH,
    ),
]
