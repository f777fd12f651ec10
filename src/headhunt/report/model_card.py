"""The model card: README.md of a model folder, for people who have never heard of the search behind it.

Hides how facts become Markdown and the metadata that the Hugging Face Hub reads. Takes plain data only: what
`headhunt.json` holds and, where there was a search, what its data said of itself and what it ended with. Whatever is
not known is left out. Of the data it tells counts, column and label names and scores, never a text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headhunt.modeling.architecture import from_dict
from headhunt.report.legacy import result_data, task_data
from headhunt.run.results import SearchResult
from headhunt.run.task import TaskInfo
from headhunt.spec import Recipe, Spec, plain, recipe_words, stages

FILE = "README.md"
MOST_LABELS = 40  # label names that are listed, and classes in the table
# What the Hub calls our metrics, and how people write them.
METRICS = {
    "accuracy": ("accuracy", "accuracy"),
    "macro_f1": ("f1", "macro F1"),
    "weighted_f1": ("f1", "weighted F1"),
    "micro_f1": ("f1", "micro F1"),
    "mcc": ("matthews_correlation", "Matthews correlation"),
    "mse": ("mse", "mean squared error"),
    "pearson": ("pearsonr", "Pearson's r"),
    "spearman": ("spearmanr", "Spearman's ρ"),
}
TAGS = {
    "single_label_classification": [],
    "multi_label_classification": ["multi-label-classification"],
    "regression": ["regression"],
}

Facts = Mapping[str, Any]


def write(
    folder: Path, *, task: TaskInfo | None = None, result: SearchResult | None = None, command: str | None = None
) -> Path:
    """Writes the card of a saved model into its folder, whole or not at all.

    Args:
        folder: With `headhunt.json` and the weights.
        task: Description of the data, where that is known from a run.
        result: What the search ended with.
        command: The command that produced this model.
    """
    facts = json.loads((folder / "headhunt.json").read_text(encoding="utf-8"))
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    about = task_data(task) if task is not None else None
    text = render(facts, folder=folder.name, about=about, result=result_data(result), command=command, size=size)
    # A new file in place of the old one: models in a run may share their files by hard links.
    partial = folder / f"{FILE}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(folder / FILE)
    return folder / FILE


def render(
    facts: Facts,
    *,
    folder: str = "model",
    about: Facts | None = None,
    result: Facts | None = None,
    command: str | None = None,
    size: int = 0,
) -> str:
    """The card as text.

    Args:
        facts: What `headhunt.json` holds.
        folder: The folder's name, for the examples.
        about: What the data says of itself; else what the facts hold of it.
        result: What the search ended with.
        command: What was typed to get this model.
        size: Bytes of weights.
    """
    card = _Card(facts, folder, about or facts.get("task") or {}, result or {}, command, size)
    parts = [
        f"---\n{card.metadata()}\n---",
        f"# {_plain(card.name)}",
        card.summary(),
        *_section("How to load it", card.loading()),
        *_section("Scores", card.scoring()),
        *_section("Data", card.data()),
        *_section("Architecture", card.architecture()),
        *_section("Training", card.training()),
        *_section("Limits", card.limits()),
        *_section("Versions", card.made_with()),
    ]
    return "\n\n".join(parts) + "\n"


def hub_name(encoder: str) -> str | None:
    """The encoder's name on the Hub; None for a folder on disk."""
    named = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", encoder, re.ASCII) and not encoder.startswith(".")
    return encoder if named and not Path(encoder).exists() else None


class _Card:
    """What is known of one model, section by section."""

    def __init__(self, facts: Facts, folder: str, about: Facts, result: Facts, command: str | None, size: int) -> None:
        self.facts, self.folder, self.about, self.result = facts, folder, about, result
        self.size, self.command = size, command
        self.problem_type, self.pair = str(facts["problem_type"]), bool(facts["pair"])
        self.labels = [str(label) for label in facts["labels"]]
        self.name = str(about.get("name") or folder)
        self.recipe = from_dict(Recipe, facts["recipe"])
        self.spec = Spec.from_dict(facts["spec"]) if facts.get("spec") else None
        self.verdict: Facts = result.get("verdict") or {}
        # Whose scores are this model's: the search tests the winner and the plain head, and delivers one of them.
        self.who = "plain" if self.verdict.get("delivered") == "plain" else "model"
        test = facts.get("test") or {}
        tested = result.get("test") or {}
        self.scores: dict[str, Facts] = tested.get(self.who) or test.get("scores") or {}
        others = {"plain": "plain head", "model": "best other candidate"}
        self.beside = {others[who]: found for who, found in tested.items() if who in others and who != self.who}
        self.test_rows = result.get("test_rows") if tested.get(self.who) else test.get("rows")
        self.classes: Sequence[Facts] = test.get("classes") or _per_class(
            (result.get("confusion") or {}).get(self.who) or [], self.labels
        )

    @property
    def base(self) -> str | None:
        """The encoder's name on the Hub."""
        return hub_name(self.spec.encoder) if self.spec else None

    def metadata(self) -> str:
        """What the Hub reads, as YAML."""
        from huggingface_hub import EvalResult, ModelCardData

        found = [
            EvalResult(
                task_type="text-classification",
                dataset_type="own-data",
                dataset_name=self.name,
                dataset_split="test",
                metric_type=METRICS[metric][0],
                metric_name=METRICS[metric][1],
                metric_value=round(score["value"], 4),
            )
            for metric, score in self._known(self.scores)
        ]
        data = ModelCardData(
            library_name="transformers",
            pipeline_tag="text-classification",
            base_model=self.base,
            tags=["headhunt", *TAGS[self.problem_type], *(["text-pair-classification"] if self.pair else [])],
            metrics=list(dict.fromkeys(METRICS[metric][0] for metric, _ in self._known(self.scores))) or None,
            model_name=self.name if found else None,
            eval_results=found or None,
        )
        return data.to_yaml()

    def summary(self) -> str:
        """What it does, and whether it is better than what everyone uses."""
        given = "a pair of texts" if self.pair else "a text"
        answer = {
            "single_label_classification": f"one of {len(self.labels)} classes",
            "multi_label_classification": f"any of {len(self.labels)} labels, each with a probability",
            "regression": "a number",
        }[self.problem_type]
        lines = [f"Answers {given} with {answer}" + (f": {self._label_list()}." if self.labels else ".")]
        encoder = self._encoder_words()
        if encoder:
            lines[0] += f" Made from {encoder} with Headhunt."
        if self.verdict.get("sentence"):
            what = {
                "winner": "This model is the winner of that search.",
                "plain": "This model is the plain head.",
                "best so far": "This model is the best there was when the time was over.",
            }.get(str(self.verdict.get("delivered")), "")
            lines.append(f"> {_plain(self.verdict['sentence'])} {what}".rstrip())
        return "\n\n".join(lines)

    def _encoder_words(self) -> str:
        if self.spec is None:
            return ""
        if self.base:
            return f"[{_plain(self.base)}](https://huggingface.co/{self.base})"
        return f"an encoder of the author's own ({_code(Path(self.spec.encoder).name)})"

    def _label_list(self) -> str:
        more = len(self.labels) - MOST_LABELS
        return ", ".join(_code(label) for label in self.labels[:MOST_LABELS]) + (
            f" and {more:,} more" if more > 0 else ""
        )

    def loading(self) -> list[str]:
        """Three lines without Headhunt, three with it."""
        native = self.spec is not None and self.spec.head.plain
        where = json.dumps(self.folder, ensure_ascii=False)
        trust = "" if native else ", trust_remote_code=True"
        text = '{"text": "one text", "text_pair": "another"}' if self.pair else '"a text"'
        every = ", top_k=None" if self.problem_type == "multi_label_classification" else ""
        both = '"one text", "another"' if self.pair else '"a text"'
        code = (
            "The head is transformers' own: no code comes with the model."
            if native
            else "The head's code comes with the model, four short files: read them before you trust them."
        )
        return [
            f"With transformers alone; {_code(self.folder)} is this folder, or its name on the Hub. {code}",
            "```python\nfrom transformers import pipeline\n"
            f'classify = pipeline("text-classification", {where}{trust})\n'
            f"print(classify({text}, truncation=True{every}))\n```",
            "With Headhunt, which cuts long texts as in training and runs no code of the folder:",
            f"```python\nimport headhunt\nmodel = headhunt.load({where})\nprint(model.predict({both})[0])\n```",
        ]

    def scoring(self) -> list[str]:
        """Every metric with its interval, beside the plain head's where both were tested; then each class."""
        known = self._known(self.scores)
        if not known:
            return ["Not tested: there were no test rows, or no time."]
        rows = f"{self.test_rows:,} test rows" if self.test_rows else "The test rows"
        once = ", which took no part in choosing the model" if self.result else ""
        lead = f"{rows}{once}; 95 % intervals from resampling them."
        table = _table(
            ["metric", "this model", *self.beside],
            [
                [
                    METRICS[metric][1],
                    _interval(score),
                    *(_interval(found.get(metric)) for found in self.beside.values()),
                ]
                for metric, score in known
            ],
        )
        parts = [lead, table]
        if 0 < len(self.classes) <= MOST_LABELS:
            shown = [
                [
                    _code(row["label"], table=True),
                    f"{row['rows']:,}",
                    *(f"{row[x]:.3f}" for x in ("precision", "recall", "f1")),
                ]
                for row in self.classes
            ]
            parts.append(_table(["class", "rows", "precision", "recall", "F1"], shown))
        return parts

    def data(self) -> list[str]:
        """What it learned from: counts and names, no texts."""
        rows, columns = self.about.get("rows") or {}, self.about.get("columns") or {}
        trained = (self.facts.get("task") or {}).get("trained_on")
        items = [f"Name: {_plain(self.name)}"]
        if rows:
            items.append("Rows: " + ", ".join(f"{count:,} {_plain(split)}" for split, count in rows.items()))
        if trained:
            items.append(f"Trained on {_plain(trained)}")
        named = [f"{what.replace('_b', ', second')} {_code(name)}" for what, name in columns.items() if name]
        if named:
            items.append("Columns: " + "; ".join(named))
        warnings = self.about.get("warnings") or []
        items += [f"Odd: {_plain(warning)}" for warning in warnings]
        return [_list(items)]

    def architecture(self) -> list[str]:
        """From tokens to answer."""
        if self.spec is None:
            return []
        items = []
        for stage in stages(self.spec, None, self.pair, self.problem_type, len(self.labels)):
            title = " and ".join(_code(one) for one in stage["titles"]) if "titles" in stage else _plain(stage["title"])
            if stage["stage"] == "encoder":
                title = f"encoder, {self._encoder_words()}"
            each = " (each text alone)" if stage.get("twice") and stage["stage"] != "tokens" else ""
            items.append(f"{title}{each}: {_plain(stage['detail'])}")
        size = [f"{self.size / 1e6:,.1f} MB of weights."] if self.size else []
        return ["\n".join(f"{number}. {item}" for number, item in enumerate(items, 1)), *size]

    def training(self) -> list[str]:
        """How it was chosen and trained."""
        parts = []
        if self.result.get("trials"):
            trials, metric = self.result["trials"], METRICS.get(self.result.get("metric", ""), ("", ""))[1]
            judged = self.result.get("judged_on")
            chosen = f"Chosen among {trials:,} candidate{'s' if trials != 1 else ''}"
            chosen += f" by {metric}" if metric else ""
            chosen += f" ({_plain(judged)})" if judged else ""
            seconds = self.result.get("seconds")
            parts.append(chosen + (f", in {seconds:,.0f} s." if seconds else "."))
        recipe = {"epochs": f"{self.recipe.epochs:g}", "batch_size": str(self.recipe.batch_size)}
        told: dict[str, Any] = recipe_words(self.spec) if self.spec else recipe
        told |= {"seed": self.facts.get("seed"), "made": self.facts.get("created")}
        seconds = self.facts.get("seconds")
        told |= {"took": f"{seconds:,.0f} s" if seconds else None}
        return [*parts, _list(f"{name}: {_plain(value)}" for name, value in told.items() if value is not None)]

    def limits(self) -> list[str]:
        """What must not be expected of it."""
        length, cut = self.recipe.max_length, self.recipe.truncation
        siamese = self.spec is not None and self.spec.head.siamese is not None
        what = "of each text" if siamese else "of both texts together" if self.pair else "of a text"
        items = [
            "Language: what the encoder was pretrained on and the rows are written in; nothing else was tested.",
            f"Length: {length} tokens {what} are read, and longer ones are cut "
            + ("at the end." if cut == "end" else "in the middle.")
            + (" transformers alone cuts at the end." if cut == "middle" else "")
            + (f" transformers alone cuts both together to {length}." if siamese else ""),
        ]
        if self.problem_type != "regression":
            items.append(
                "Answers: the labels above and no others; a text that fits none of them gets one all the same."
            )
        if self.test_rows and self.test_rows < 1000:
            items.append(f"Test rows: {self.test_rows:,} are few; mind the intervals.")
        if self.scores:
            items.append("Scores hold for texts like the test rows; on others they may be lower.")
        items += self._calibration()
        return [_list(items)]

    def _calibration(self) -> list[str]:
        temperature = self.facts.get("temperature")
        if self.problem_type == "regression":
            return []
        bins = (self.result.get("calibration") or {}).get("model") if self.who == "model" else None
        measured = ""
        if bins:
            total = sum(one["rows"] for one in bins)
            error = sum(one["rows"] * abs(one["confidence"] - one["accuracy"]) for one in bins) / max(1, total)
            before = " before that" if temperature else ""
            measured = (
                f" On the test rows confidence and accuracy{before} were {error * 100:.1f} points apart on average."
            )
        if temperature:
            return [f"Probabilities: calibrated on held-out rows (temperature {temperature:g}).{measured}"]
        return ["Probabilities: not calibrated; what gets 0.9 need not be right nine times in ten." + measured]

    def made_with(self) -> list[str]:
        """What to install and what to type to get it again."""
        versions = self.facts.get("versions") or self.result.get("versions") or {}
        parts = [", ".join(f"{name} {_plain(value)}" for name, value in versions.items())] if versions else []
        command = self.command or self._fit_command()
        if command:
            parts.append(f"```console\n$ {command}\n```")
        return parts

    def _fit_command(self) -> str | None:
        """The command that trains this candidate again."""
        if self.spec is None or self.result:
            return None
        columns, rows = self.about.get("columns") or {}, (self.about.get("rows") or {}).get("train", 0)
        usual = plain(self.spec.encoder, rows)
        usual = replace(usual, recipe=replace(usual.recipe, max_length=self.recipe.max_length))
        own = self.spec.canonical() != usual.canonical()
        given = {
            "--out": self.folder,
            "--encoder": self.base or "ENCODER",
            "--spec": "spec.json" if own else None,
            "--text": columns.get("text"),
            "--text-b": columns.get("text_b"),
            "--label": columns.get("label"),
            "--problem-type": self.problem_type,
            "--seed": self.facts.get("seed"),
        }
        words = [f"{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None]
        return " ".join(["headhunt fit DATA", *words]) + ("   # spec.json: see headhunt.json" if own else "")

    def _known(self, scores: Facts) -> list[tuple[str, Facts]]:
        """Metrics with a value; what the search was after comes first."""
        known = [(metric, score) for metric, score in scores.items() if metric in METRICS]
        return sorted(known, key=lambda item: item[0] != self.result.get("metric"))


def _per_class(confusion: Sequence[Sequence[int]], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each class from how often (true, predicted) came up."""
    if len(confusion) != len(labels):
        return []
    rows = []
    for i, label in enumerate(labels):
        right, true, said = confusion[i][i], sum(confusion[i]), sum(row[i] for row in confusion)
        found = {
            "precision": right / max(1, said),
            "recall": right / max(1, true),
            "f1": 2 * right / max(1, true + said),
        }
        rows.append({"label": label, "rows": true, **found})
    return rows


def _section(title: str, parts: Sequence[str]) -> list[str]:
    return [f"## {title}", *parts] if parts else []


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(score: Facts | None) -> str:
    return f"{score['value']:.4f} ({score['low']:.4f} to {score['high']:.4f})" if score else "–"


def _plain(value: Any) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(str(value).split()))


def _code(value: Any, longest: int = 80, table: bool = False) -> str:
    """A name as it is, on one line; a fence longer than any run of backticks in it."""
    text = " ".join(str(value).split())
    text = f"{text[: longest - 1]}…" if len(text) > longest else text
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    text = text.replace("|", "\\|") if table else text
    return f"{fence}{space}{text}{space}{fence}" if text else "(empty)"
