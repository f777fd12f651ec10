"""The options of a search, each declared once: for the command line, `headhunt.search`, search.json and the docs."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from headhunt.errors import HeadhuntError, did_you_mean
from headhunt.run import schema

if TYPE_CHECKING:
    from headhunt.evaluation import RejectionRule
    from headhunt.run.task import TaskInfo

DATA, SEARCH, LIMITS, TRAINING, COMPUTE = "Data", "Search", "Model limits", "Training", "Compute"
COMPARISON = "Comparison of strategies"
"""Headings of the help."""
DELIVER = {
    "single": "the model that is best on validation rows",
    "ensemble": "the mean of up to three unlike models, if it is better on validation rows and within the limits",
}
STRATEGIES = {
    "prior": "variations of known recipes and of the best results so far, random draws, and the model of bohb",
    "bohb": "Bayesian optimization with kernel densities of the highest rung that has enough results",
    "random": "random search",
    "grid": "grid of at most three values per parameter, in random order",
    "evolution": "regularized evolution: change one choice of the best among a few recent candidates",
    "tpe": "Bayesian optimization (TPE)",
    "gp": "Bayesian optimization with a Gaussian process",
    "reinforce": "policy gradient: one distribution per parameter, moved towards scores above average",
}
PRECISIONS = ("auto", "fp32", "bf16")
NUMBER = r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
DURATION = re.compile(rf"(?:{NUMBER}h)?(?:{NUMBER}m)?(?:{NUMBER}s)?")
MILLISECONDS = {"ms": 1.0, "s": 1000.0}
MEGABYTES = {"mb": 1.0, "gb": 1000.0, "kb": 0.001}


def parse_duration(time: str | float | None, argument: str = "time") -> float | None:
    """Return seconds from "90s", "10m", "1h30m" or a number of seconds; None for "none".

    Raises:
        HeadhuntError: If it is none of these.
    """
    if time is None or time == "none":
        return None
    text = str(time).strip().lower()
    text = f"{text}s" if re.fullmatch(NUMBER, text) else text  # a bare number is in seconds
    match = DURATION.fullmatch(text)
    parts = [float(part or 0) for part in match.groups()] if match and text else []
    if not parts or not (sum(parts) > 0 and math.isfinite(sum(parts))):
        short = re.sub(r"\s*([hms])[a-z]*\W*", r"\1", text)  # "3 min" becomes "3m"
        hint = f" Did you mean {short!r}?" if short != text and DURATION.fullmatch(short) else ""
        raise HeadhuntError(f"must be a duration such as 90s, 10m or 1h30m; found {time!r}.{hint}", argument)
    return parts[0] * 3600 + parts[1] * 60 + parts[2]


def parse_quantity(value: str | float | None, argument: str, units: Mapping[str, float], example: str) -> float | None:
    """Return a positive number in the first of the units.

    Args:
        value: A number, or a number with its unit.
        argument: Name of the argument, for messages.
        units: Factor of each unit.
        example: A valid value, for messages.

    Raises:
        HeadhuntError: If it is not one.
    """
    if value is None:
        return None
    match = re.fullmatch(rf"{NUMBER}\s*([a-z]*)", str(value).strip().lower())
    number = float(match[1]) * units.get(match[2] or next(iter(units)), 0.0) if match else 0.0
    if not (number > 0 and math.isfinite(number)):
        units_text = ", ".join(units)
        raise HeadhuntError(f"must be above 0, such as {example} (units: {units_text}); found {value!r}.", argument)
    return number


def check_name(value: Any, argument: str, known: Iterable[str]) -> Any:
    """Return a value that is one of the known names; refuse any other."""
    if value not in known:
        raise HeadhuntError(f"must be one of {', '.join(known)}; found {value!r}.", argument)
    return value


def check_number(value: Any, argument: str, least: float, most: float = math.inf) -> Any:
    """Return a number, or None, that is in a range; refuse any other."""
    if value is not None and not least <= value <= most:
        expected = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise HeadhuntError(f"must be {expected}; found {value}.", argument)
    return value


def option(
    default: Any,
    about: str,
    metavar: str = "N",
    heading: str = SEARCH,
    *,
    shown: str | None = None,
    unit: str = "",
    kind: Any = None,
    check: Callable[[Any, str], Any] | None = None,
) -> Any:
    """Declare an option.

    Args:
        default: Its default.
        about: Its help.
        metavar: Word for its value in the help.
        heading: Heading of the help that lists it.
        shown: Words for its default.
        unit: Unit of a stored number.
        kind: Type of its value on the command line; by default that of the field.
        check: Returns the value to store from a value and the name, or raises `HeadhuntError`.
    """
    return field(
        default=default,
        metadata={
            "about": about,
            "metavar": metavar,
            "heading": heading,
            "shown": shown or (str(default) if type(default) in (int, str) else ""),
            "unit": unit,
            "kind": kind or (str if unit else None),
            "check": check,
        },
    )


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The options of a file of labelled texts, as for `Task.load`."""

    text: str | None = option(None, "Text column (detected if unambiguous).", "COLUMN", DATA)
    text_b: str | None = option(None, "Second text column, for pairs of texts.", "COLUMN", DATA)
    label: str | None = option(None, "Label column (detected if unambiguous).", "COLUMN", DATA)
    group: str | None = option(
        None, "Column of groups, such as users: rows of a group stay in one split.", "COLUMN", DATA
    )
    order: str | None = option(
        None,
        "Column of numbers, dates or times: the last rows are the test rows, those before them the validation rows "
        "of a search.",
        "COLUMN",
        DATA,
    )
    problem_type: str | None = option(
        None,
        "single_label_classification, multi_label_classification or regression (detected from the labels if not "
        "given).",
        "TYPE",
        DATA,
    )
    test: str | None = option(None, "Test rows (a fifth of the data is split off if not given).", "FILE", DATA)
    limit: int | None = option(None, "Maximum number of training rows, sampled with the seed.", "N", DATA)


@dataclass(frozen=True)
class Resources:
    """The cluster a search runs on and its permissions; given with every call, never stored."""

    ray: str | None = option(None, "Address of a Ray cluster; local starts Ray on this machine.", "ADDRESS", COMPUTE)
    trust_remote_code: bool = option(False, "Allow Python code from the encoder's repository to run.", heading=COMPUTE)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of a search, as the user gives them. Values are checked, and quantities become numbers."""

    unlabelled: Any = option(
        None,
        "Texts without labels (CSV, TSV, JSONL, Parquet, or .txt with one per line). Texts of test rows are left out.",
        "FILE",
        DATA,
        kind=str,
    )
    time: float | None = option(
        600.0,
        "Total time limit, such as 90s, 10m, 1h30m or none. Includes loading and the final training.",
        "DURATION",
        shown="10m",
        unit="s",
        check=parse_duration,
    )
    trials: int | None = option(
        None,
        "Maximum number of trials, with the first ones: plain heads and a solved head per encoder.",
        check=partial(check_number, least=1),
    )
    target: float | None = option(
        None, "Stop when a trial reaches this score, such as 0.9. For mse give its negative, such as -0.1.", "SCORE"
    )
    space: Any = option("default", "Search space: default, paper, encoder, or a TOML or JSON file.", "NAME", kind=str)
    strategy: str = option(
        "prior", f"Search strategy: {', '.join(STRATEGIES)}.", "NAME", check=partial(check_name, known=STRATEGIES)
    )
    learn_from: Any = option(
        (),
        "Directory of an earlier search on similar data, whose best candidates are tried early. May be repeated.",
        "RUN",
        kind=list[str],
    )
    metric: str | None = option(
        None,
        "Metric to optimize, by problem type."
        "\n\nsingle_label_classification: accuracy, macro_f1, weighted_f1, mcc"
        "\n\nmulti_label_classification: accuracy, macro_f1, weighted_f1, micro_f1"
        "\n\nregression: mse, pearson, spearman",
        "NAME",
        shown="accuracy, micro_f1 or spearman",
    )
    deliver: str = option(
        "single",
        "Model to deliver: single (the best on validation rows) or ensemble (the mean of up to three unlike models, "
        "if that is better, within --max-latency and --max-size).",
        "RULE",
        check=partial(check_name, known=DELIVER),
    )
    known_recipes: bool = option(True, "Begin with recipes that performed well on other tasks.", heading=COMPARISON)
    solved: bool = option(
        True, "Let heads take part that are solved on the frozen encoder, or start from there.", heading=COMPARISON
    )
    rungs: int = option(
        2,
        "Number of rungs: candidates are compared on less than full training first, and the best go on. 1 trains each "
        "in full.",
        heading=COMPARISON,
        check=partial(check_number, least=1, most=8),
    )
    eta: int = option(
        3,
        "Reduction factor of Hyperband: the best 1/N of a rung go on, with N times as much training.",
        heading=COMPARISON,
        check=partial(check_number, least=2, most=10),
    )
    brackets: int = option(1, "Number of Hyperband's brackets, which begin at different rungs.", heading=COMPARISON)
    max_latency: float | None = option(
        None,
        "Maximum median latency for one text on one CPU thread, such as 20ms.",
        "DURATION",
        LIMITS,
        unit="ms",
        check=partial(parse_quantity, units=MILLISECONDS, example="20ms"),
    )
    max_size: float | None = option(
        None,
        "Maximum size of the model's weights, such as 60MB.",
        "SIZE",
        LIMITS,
        unit="MB",
        check=partial(parse_quantity, units=MEGABYTES, example="60MB"),
    )
    max_memory: float | None = option(
        None,
        "Maximum memory of a worker process, such as 4GB.",
        "SIZE",
        LIMITS,
        unit="MB",
        check=partial(parse_quantity, units=MEGABYTES, example="4GB"),
    )
    encoder: Any = option(
        None,
        "Encoder: Hugging Face name or folder. Several, separated by commas or given one by one, are compared; auto "
        "compares known ones that suit the texts and the hardware.",
        "ENCODER",
        TRAINING,
        shown="the one in the space, or all-MiniLM-L6-v2",
        kind=list[str],
    )
    epochs: float | None = option(
        None,
        "Epochs of every candidate.",
        heading=TRAINING,
        shown="those of its recipe, as far as the time goes",
        check=partial(check_number, least=0.001, most=1000),
    )
    max_length: int | None = option(
        None,
        "Maximum number of tokens per text; longer texts are truncated.",
        heading=TRAINING,
        shown="128, or the value in the spec or space",
    )
    pretrain: bool | None = option(
        None,
        "Also try the encoder after further pretraining on masked tokens of the training texts and the unlabelled "
        "ones.",
        heading=TRAINING,
        shown="if --unlabelled is given",
    )
    seed: int = option(0, "Random seed.", heading=TRAINING)
    precision: str = option(
        "auto",
        "Floating-point precision: auto, fp32 or bf16. auto uses bf16 where it is faster.",
        "NAME",
        TRAINING,
        check=partial(check_name, known=PRECISIONS),
    )
    calibrate: bool = option(False, "Calibrate probabilities with temperature scaling.", heading=TRAINING)
    reject: float | None = option(
        None,
        "Answer only this share of the texts, such as 0.9: predictions with a low probability are rejected.",
        "SHARE",
        TRAINING,
        shown="answer all",
    )
    reject_label: str | None = option(
        None,
        "Class of texts that fit no other class. They are rejected; --reject is then 0.9 by default.",
        "CLASS",
        TRAINING,
    )
    workers: int | None = option(
        None,
        "Number of worker processes; 0 trains in this process.",
        heading=COMPUTE,
        shown="one per core or GPU",
        check=partial(check_number, least=0),
    )
    device: str | None = option(None, "cuda, mps or cpu.", "DEVICE", COMPUTE, shown="the fastest available")

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            value, check = getattr(self, each.name), each.metadata.get("check")
            if not each.metadata.get("unit"):  # quantities are given in several ways
                try:
                    value = schema.convert(hints[each.name], value, "")
                except ValueError as error:
                    raise HeadhuntError(str(error).strip(), each.name) from None
            object.__setattr__(self, each.name, check(value, each.name) if check else value)
        check_number(self.brackets, "brackets", 1, self.rungs)


@dataclass(frozen=True, kw_only=True)
class SearchSettings(SearchOptions):
    """The options of a search with all that follows from the data, stored so that it can be resumed and repeated."""

    encoder: str
    """Encoder of the plain head."""
    space: dict[str, Any]
    """The search space as plain data."""
    metric: str = "accuracy"
    unlabelled: bool = False
    """Whether the user gave unlabelled texts; they are stored with the task."""
    pretrain: bool = False
    learn_from: tuple[str, ...] = ()
    learned: tuple[dict[str, Any], ...] = ()
    """Candidates of earlier searches that are tried early, as plain data."""
    encoders: tuple[str, ...] = ()
    """Encoders to choose from, the one of the plain head first; empty if there is no choice."""

    def __post_init__(self) -> None:
        from headhunt.evaluation import find_metric  # loads numpy, which the help of a command must not

        super().__post_init__()
        find_metric(self.metric)

    @property
    def rejection(self) -> RejectionRule | None:
        """The rule for rejecting texts; None if all are answered."""
        if self.reject is None and self.reject_label is None:
            return None
        from headhunt.evaluation import RejectionRule

        coverage = RejectionRule.coverage if self.reject is None else self.reject
        return RejectionRule(coverage, self.reject_label)

    def command(self, task: TaskInfo, space: str) -> list[str]:
        """Return the command that repeats the search, option by option; DATA and TEST stand for the user's files.

        Args:
            task: Description of the data.
            space: Name of the space, or of a file that holds it.
        """
        given: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(SearchOptions)}
        given |= {"limit": task.limit, "space": space, "encoder": ",".join(self.encoders) or self.encoder}
        given |= {"unlabelled": "UNLABELLED" if self.unlabelled else None, "learn_from": "RUN" if self.learned else ()}
        given["pretrain"] = None if self.pretrain == self.unlabelled else self.pretrain
        if task.tasks:
            given |= {"tasks": "TASKS", "metric": None}
        else:
            columns = {name: getattr(task.columns, name) for name in ("text", "text_b", "label", "group", "order")}
            given |= {**columns, "problem_type": task.problem_type, "test": "TEST" if task.test_given else None}
        defaults = {each.name: each.default for each in fields(SearchOptions)}
        words = ["headhunt search" if task.tasks else "headhunt search DATA"]
        for name, value in given.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool) and value != defaults[name]:
                words.append(f"--{flag}" if value else f"--no-{flag}")
            elif name == "time" or value not in (None, defaults.get(name)):
                words.append(f"--{flag} {shlex.quote(to_text(name, value))}")
        return words


OPTIONS = {each.name: each for each in (*fields(DataOptions), *fields(SearchOptions))}
"""Options that a file of options may have. It can give no permission."""


def to_text(name: str, value: Any) -> str:
    """Return the value of an option as the command line takes it."""
    unit = OPTIONS[name].metadata["unit"] if name in OPTIONS else ""
    return "none" if value is None else f"{value:g}{unit}" if isinstance(value, float) else str(value)


def refuse_unknown(names: Iterable[str], known: Iterable[str], where: str = "") -> None:
    """Refuse options that do not exist, with the nearest one that does."""
    for name in names:
        if name not in known:
            raise HeadhuntError(f"{where}{name!r} is not an option of a search.{did_you_mean(name, known)}")


def read_config(path: Path) -> dict[str, Any]:
    """Read the options of a search from a TOML file.

    Raises:
        HeadhuntError: If the file cannot be read, or names an option that does not exist.
    """
    import tomllib

    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HeadhuntError(f"must be a TOML file; {path}: {error}.", "config") from None
    refuse_unknown(given, OPTIONS, f"{path}: ")
    return given


def write_config(given: Mapping[str, Any]) -> str:
    """Return the options of a search as TOML; options without a value are comments."""
    lines = []
    for name, each in OPTIONS.items():
        value = given.get(name, each.default)
        text = to_text(name, value) if each.metadata["unit"] and (value is not None or name == "time") else value
        lines.append(f"# {name} =" if text is None else f"{name} = {json.dumps(text, ensure_ascii=False)}")
    return "\n".join(lines)
