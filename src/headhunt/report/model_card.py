"""The model card: README.md of a model folder, for readers who do not know the search behind it.

The card states facts of `headhunt.json` and, after a search, of its data and result. Facts that are not known are left
out. It shows counts, names of columns and labels, and scores, but never a text of the data.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headhunt import storage
from headhunt.evaluation import METRICS, ClassScores, Score, class_scores, find_metric
from headhunt.modeling.architecture import from_dict
from headhunt.report.card_decisions import card_items
from headhunt.report.markdown import bullet_list, code, code_block, escape_text, interval, section, table
from headhunt.report.words import call_words, output_words
from headhunt.run.directory import MODEL_INFO
from headhunt.run.results import ENSEMBLE, PLAIN, WINNER, SearchResult
from headhunt.run.task import TaskInfo
from headhunt.spec import Recipe, Spec, describe, plain, recipe_words, solved, stages

FILE = "README.md"
MAX_LABELS = 40  # label names that are listed, and classes in the table
MAX_TASK_LABELS = 12  # label names that are listed for one of several tasks
TAGS = {
    "single_label_classification": [],
    "multi_label_classification": ["multi-label-classification"],
    "regression": ["regression"],
    "multi_task": ["multi-task"],
}
DELIVERED = {
    "winner": "This model is the winner of that search.",
    "plain": "This model is the plain head.",
    ENSEMBLE: "This model is the mean of the best unlike models of that search.",
}

OTHERS = {PLAIN: "plain head", WINNER: "best other candidate"}
"""Titles of the other tested models."""

Facts = Mapping[str, Any]


def write(
    folder: Path, *, task: TaskInfo | None = None, result: SearchResult | None = None, command: str | None = None
) -> Path:
    """Write the card of a saved model into its folder, atomically, and return its path.

    Args:
        folder: With `headhunt.json` and the weights.
        task: Description of the data, if the model is from a search.
        result: Result of the search.
        command: Command that produced the model.
    """
    facts = read_facts(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    # An atomic write makes a new file: models in a run may share their files by hard links.
    storage.write_text(
        folder / FILE, render(facts, folder=folder.name, task=task, result=result, command=command, size=size)
    )
    return folder / FILE


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what `render` needs to know of a saved model."""
    config = storage.read_json(folder / "config.json")
    settings = {name: config.get(name) for name in ("thresholds", "rejection", "tasks", "model_type")}
    return {**storage.read_json(folder / MODEL_INFO), **settings}


def render(
    facts: Facts,
    *,
    folder: str = "model",
    task: TaskInfo | None = None,
    result: SearchResult | None = None,
    command: str | None = None,
    size: int = 0,
) -> str:
    """Return the card as text.

    Args:
        facts: The contents of `headhunt.json`, and settings of `config.json`; see `read_facts`.
        folder: Name of the folder, for the examples.
        task: Description of the data; if None, the one in the facts.
        result: Result of the search.
        command: Command that produced the model.
        size: Bytes of weights.
    """
    data = {**(facts.get("task") or {}), **(_describe_task(task) if task else {})}
    card = _Card(facts, folder, data, result, command, size)
    parts = [
        f"---\n{card.metadata()}\n---",
        f"# {escape_text(card.name)}",
        card.summary(),
        *section("How to load it", card.usage()),
        *section("Scores", card.evaluation()),
        *section("Data", card.data_section()),
        *section("Architecture", card.architecture()),
        *section("Training", card.training()),
        *section("Limitations", card.limitations()),
        *section("Versions", card.reproduction()),
    ]
    return "\n\n".join(parts) + "\n"


def hub_name(encoder: str) -> str | None:
    """Return the encoder's name on the Hub; None for a local folder."""
    is_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", encoder, re.ASCII) and not encoder.startswith(".")
    return encoder if is_name and not Path(encoder).exists() else None


def _describe_task(task: TaskInfo) -> dict[str, Any]:
    """Return the training data of a search as `headhunt.json` has that of a fitted model, and a line for each task."""
    return {
        "name": task.name,
        "rows": task.rows,
        "columns": {} if task.tasks else asdict(task.columns),
        "warnings": task.warnings,
        "lines": [f"{code(each.name)}: {_count_rows(each.rows)}" for each in task.tasks],
    }


class _Card:
    """The sections of one model card."""

    def __init__(
        self, facts: Facts, folder: str, data: Facts, result: SearchResult | None, command: str | None, size: int
    ) -> None:
        self.facts, self.folder, self.data, self.result = facts, folder, data, result
        self.columns: Mapping[str, str | None] = data.get("columns") or {}
        self.size, self.command = size, command
        self.problem_type, self.pair = str(facts["problem_type"]), bool(facts["pair"])
        self.labels = [str(label) for label in facts["labels"]]
        self.tasks = list(facts.get("tasks") or ()) if self.problem_type == "multi_task" else []
        self.name = str(data.get("name") or folder)
        self.recipe = from_dict(Recipe, facts["recipe"])
        self.spec = Spec.from_dict(facts["spec"]) if facts.get("spec") else None
        self.members = [Spec.from_dict(member) for member in facts.get("members") or () if member]
        self.verdict = result.verdict if result else None
        # A search tests the winner, the plain head and the ensemble.
        self.role = PLAIN if self.verdict and self.verdict.delivered == "plain" else WINNER
        self.role = ENSEMBLE if self.members else self.role
        self._take_test_scores()

    def _take_test_scores(self) -> None:
        """Take the test scores of the search, or else those in `headhunt.json`."""
        stored = self.facts.get("test") or {}
        test = self.result.test if self.result else None
        tested = test.scores if test else {}
        self.scores = tested.get(self.role) or {
            name: Score(**score) for name, score in (stored.get("scores") or {}).items()
        }
        self.test_rows: int | None = test.rows if test and self.role in tested else stored.get("rows")
        self.other_scores = {role: tested[role] for role in OTHERS if role in tested and role != self.role}
        self.classes = [ClassScores(**row) for row in stored.get("classes") or ()]
        confusion = test.confusion.get(self.role, []) if test else []
        if confusion and not self.classes and len(confusion) == len(self.labels):
            self.classes = class_scores(confusion, self.labels)

    @property
    def encoders(self) -> list[str]:
        """The pretrained encoders of the model or of its members."""
        specs = [self.spec] if self.spec else self.members
        return list(dict.fromkeys(spec.encoder for spec in specs if not (spec.shape and spec.shape.is_random)))

    def metadata(self) -> str:
        """Return the metadata that the Hub reads, as YAML."""
        from huggingface_hub import EvalResult, ModelCardData

        known, names = self._known_scores(), [name for encoder in self.encoders if (name := hub_name(encoder))]
        results = [
            EvalResult(
                task_type="text-classification",
                dataset_type="own-data",
                dataset_name=self.name,
                dataset_split="test",
                metric_type=METRICS[metric].hub_name,
                metric_name=METRICS[metric].title,
                metric_value=round(score.value, 4),
            )
            for metric, score in known
        ]
        data = ModelCardData(
            library_name="transformers",
            pipeline_tag="text-classification",
            base_model=names if len(names) > 1 else next(iter(names), None),
            tags=["headhunt", *TAGS[self.problem_type], *(["text-pair-classification"] if self.pair else [])],
            metrics=list(dict.fromkeys(METRICS[metric].hub_name for metric, _ in known)) or None,
            model_name=self.name if results else None,
            eval_results=results or None,
        )
        return data.to_yaml()

    def summary(self) -> str:
        """Return inputs, outputs and origin of the model, and the verdict of the search."""
        inputs = "a pair of texts" if self.pair else "a text"
        output = output_words(self.problem_type, len(self.labels))
        each = ", each with a probability" if self.problem_type == "multi_label_classification" else ""
        more = len(self.labels) - MAX_LABELS
        names = _list_names(self.labels, MAX_LABELS) + (f" and {more:,} more" if more > 0 else "")
        lines = [f"Predicts {output}{each} for {inputs}" + (f": {names}." if names else ".")]
        if self.tasks:
            lines = [f"One model for {len(self.tasks)} tasks.", bullet_list(map(_task_item, self.tasks))]
        if self.encoders:
            lines[0] += f" Made from {' and '.join(map(_encoder_link, self.encoders))} with Headhunt."
        if self.members:
            lines[0] += f" The predictions are the mean of {len(self.members)} models."
        if self.verdict is not None and self.verdict.sentence:
            delivered = ENSEMBLE if self.members else self.verdict.delivered
            lines.append(f"> {escape_text(self.verdict.sentence.removesuffix('.'))}. {DELIVERED[delivered]}")
        return "\n\n".join(lines)

    def usage(self) -> list[str]:
        """Return three lines of code without Headhunt and three with it."""
        # A plain head on an encoder of ours, or of one of several tasks, is saved with its code.
        native = self.spec is not None and self.spec.head.plain
        native = native and not str(self.facts.get("model_type")).startswith("headhunt")
        where = json.dumps(self.folder, ensure_ascii=False)
        trust = "" if native else ", trust_remote_code=True"
        count = "six" if self.members or self.tasks else "five"
        source = f"The folder contains the model's code, {count} short files: read them before you trust them."
        text = '{"text": "one text", "text_pair": "another"}' if self.pair else '"a text"'
        every = ", top_k=None" if self.problem_type == "multi_label_classification" else ""
        example = (
            "from transformers import pipeline\n"
            f'classify = pipeline("text-classification", {where}{trust})\n'
            f"print(classify({text}, truncation=True{every}))"
        )
        arguments, more = call_words(self.pair), []
        if self.tasks:
            pair, name = bool(self.tasks[0]["pair"]), str(self.tasks[0]["name"])
            example = (
                "from transformers import AutoModelForSequenceClassification, AutoTokenizer\n"
                f"model = AutoModelForSequenceClassification.from_pretrained({where}{trust})\n"
                f"tokenizer = AutoTokenizer.from_pretrained({where}{trust})\n"
                f'inputs = tokenizer({call_words(pair)}, truncation=True, return_tensors="pt")\n'
                f"print(model(**inputs, task={json.dumps(name)}).logits)"
            )
            single = f"model.for_task({json.dumps(name)}).save({json.dumps(name)})"
            more = [
                "The model of one task as an ordinary folder, for pipelines and ONNX:",
                code_block(single, "python"),
            ]
            arguments = call_words(pair, name)
        if native:
            source = "The head is the one of transformers: the folder contains no code."
        own = f"import headhunt\nmodel = headhunt.load({where})\nprint(model.predict({arguments})[0])"
        return [
            f"With transformers alone; {code(self.folder)} is this folder, or its name on the Hub. {source}",
            code_block(example, "python"),
            "With Headhunt, which truncates long texts as in training and runs no code from the folder:",
            code_block(own, "python"),
            *more,
        ]

    def evaluation(self) -> list[str]:
        """Return every metric with its interval, beside the other tested models, and the scores of each class."""
        known, test = self._known_scores(), self.result.test if self.result else None
        if not known and not (test and test.tasks):
            tested = "Not tested: there were no test rows, or no time."
            return [tested if self.result else "No scores are stored with this model."]
        rows = f"{self.test_rows:,} test rows" if self.test_rows else "The test rows"
        unseen = ", which played no part in choosing the model" if self.result else ""
        parts = [f"{rows}{unseen}; 95 % intervals by bootstrap."]
        if self.result is not None and self.result.test_evaluations > 1:
            parts.append(f"The test rows were evaluated {self.result.test_evaluations} times.")
        others = self.other_scores
        if test is not None and test.tasks:
            roles = [self.role, *others]
            rows_of_tasks = [
                [code(task.name, in_table=True), f"{task.rows:,}", METRICS[task.metric].title]
                + [interval(task.scores.get(role, {}).get(task.metric)) for role in roles]
                for task in test.tasks
            ]
            means = [interval(next(iter(test.scores.get(role, {}).values()), None)) for role in roles]
            rows_of_tasks.append(["mean", f"{test.rows:,}", "", *means])
            names = [OTHERS[role] for role in others]
            return [*parts, table(["task", "rows", "metric", "this model", *names], rows_of_tasks)]
        cells = [
            [METRICS[metric].title, interval(score), *(interval(scores.get(metric)) for scores in others.values())]
            for metric, score in known
        ]
        parts.append(table(["metric", "this model", *(OTHERS[role] for role in others)], cells))
        if 0 < len(self.classes) <= MAX_LABELS:
            cells = [
                [code(row.label, in_table=True), f"{row.rows:,}"]
                + [f"{value:.3f}" for value in (row.precision, row.recall, row.f1)]
                for row in self.classes
            ]
            parts.append(table(["class", "rows", "precision", "recall", "F1"], cells))
        return parts

    def data_section(self) -> list[str]:
        """Return counts and names of the training data, but no texts."""
        rows, trained_on, runs = self.data.get("rows"), self.data.get("trained_on"), self.facts.get("averaged")
        average = f"; the weights are the mean of {runs} training runs" if isinstance(runs, int) else ""
        columns = [f"{role.replace('_b', ', second')} {code(name)}" for role, name in self.columns.items() if name]
        items = [
            f"Name: {escape_text(self.name)}",
            rows and f"Rows: {_count_rows(rows)}",
            trained_on and f"Trained on {escape_text(trained_on)}{average}",
            columns and "Columns: " + "; ".join(columns),
            *(self.data.get("lines") or ()),
            *(f"Warning: {escape_text(warning)}" for warning in self.data.get("warnings") or ()),
        ]
        return [bullet_list(filter(None, items))]

    def architecture(self) -> list[str]:
        """Return the stages from tokens to output, or the members of an ensemble."""
        size = [f"{self.size / 1e6:,.1f} MB of weights."] if self.size else []
        if self.spec is None:
            counts = Counter(describe(spec) for spec in self.members)
            items = [f"{count} × {escape_text(words)}" for words, count in counts.items()]
            return [bullet_list(items), *size] if items else []
        items = []
        outputs = len(self.tasks or self.labels)
        for stage in stages(self.spec, None, self.pair, self.problem_type, outputs):
            if stage["stage"] == "encoder":
                title = ", ".join(["encoder", *map(_encoder_link, self.encoders)])
            elif "titles" in stage:
                title = " and ".join(code(name) for name in stage["titles"])
            else:
                title = escape_text(stage["title"])
            each = " (each text alone)" if stage.get("twice") and stage["stage"] != "tokens" else ""
            items.append(f"{title}{each}: {escape_text(stage['detail'])}")
        return ["\n".join(f"{number}. {item}" for number, item in enumerate(items, 1)), *size]

    def training(self) -> list[str]:
        """Return how the model was chosen and trained."""
        parts = []
        if self.result is not None and self.result.trials:
            trials = self.result.trials
            metric = find_metric(self.result.metric).title
            chosen = f"Chosen among {trials:,} candidate{'s' if trials != 1 else ''} by {metric}"
            parts.append(f"{chosen} ({escape_text(self.result.evaluated_on)}), in {self.result.seconds:,.0f} s.")
        recipe = {"epochs": f"{self.recipe.epochs:g}", "batch size": str(self.recipe.batch_size)}
        items: dict[str, Any] = recipe_words(self.spec) if self.spec else {} if self.members else recipe
        seconds = self.facts.get("seconds")
        items |= {"seed": self.facts.get("seed"), "created": self.facts.get("created")}
        items |= {"training time": f"{seconds:,.0f} s" if seconds else None}
        known = [f"{name}: {escape_text(value)}" for name, value in items.items() if value is not None]
        return [*parts, *([bullet_list(known)] if known else [])]

    def limitations(self) -> list[str]:
        """Return the limits of the model."""
        recipes = [spec.recipe for spec in self.members] or [self.recipe]
        specs = [spec for spec in (self.spec, *self.members) if spec]
        length = max([spec.input_length for spec in specs] or [recipe.max_length for recipe in recipes])
        cuts = {"end": "at the end", "middle": "in the middle"}
        where = " or ".join(words for name, words in cuts.items() if name in {recipe.truncation for recipe in recipes})
        siamese = any(spec.head.siamese is not None for spec in [self.spec, *self.members] if spec)
        what = "of each text" if siamese else "of both texts together" if self.pair else "of a text"
        items = [
            "Language: that of the encoder's pretraining and of the training rows; no other was tested.",
            f"Length: {length} tokens {what} are read; longer texts are cut {where}."
            + (" transformers alone cuts at the end." if "middle" in where else "")
            + (f" transformers alone cuts both together to {length}." if siamese else ""),
        ]
        if self.problem_type != "regression":
            fits_none = "" if self.facts.get("rejection") else "; a text that fits none of them gets one nevertheless"
            items.append(f"Labels: the ones above and no others{fits_none}.")
        if self.test_rows and self.test_rows < 1000:
            items.append(f"Test rows: only {self.test_rows:,}; mind the intervals.")
        if self.scores:
            items.append("Scores hold for texts like the test rows; on others they may be lower.")
        test = self.result.test if self.result else None
        delivered = self.verdict is None or (self.verdict.delivered == ENSEMBLE) == (self.role == ENSEMBLE)
        items += card_items(self.problem_type, self.role, self.facts, test, delivered)
        return [bullet_list(items)]

    def reproduction(self) -> list[str]:
        """Return library versions and the command that produces the model again."""
        versions = self.facts.get("versions") or (self.result.versions if self.result else {})
        parts = [", ".join(f"{name} {escape_text(value)}" for name, value in versions.items())] if versions else []
        command = self.command or self._fit_command()
        if command:
            parts.append(code_block(f"$ {command}", "console"))
        return parts

    def _fit_command(self) -> str | None:
        """Return the command that trains this candidate again."""
        if self.spec is None or self.result or self.tasks or "from_tasks" in self.facts:
            return None
        fair = plain(self.spec.encoder, (self.data.get("rows") or {}).get("train", 0))
        tuned, quick = (
            replace(spec, recipe=replace(spec.recipe, max_length=self.recipe.max_length)).canonical().hash
            for spec in (fair, solved(self.spec.encoder, pair=self.pair, classes=len(self.labels) or 1))
        )
        own_spec = self.spec.canonical().hash not in (tuned, quick)
        columns = {f"--{role.replace('_', '-')}": name for role, name in self.columns.items()}
        options = {
            "--out": self.folder,
            "--encoder": hub_name(self.spec.encoder) or "ENCODER",
            "--spec": "spec.json" if own_spec else None,
            "--max-length": None if self.recipe.max_length == Recipe().max_length else self.recipe.max_length,
            **columns,
            "--limit": self.data.get("limit"),
            "--test": "TEST" if self.data.get("test_given") else None,
            "--problem-type": self.problem_type,
            "--seed": self.facts.get("seed"),
        }
        words = [f"{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
        words += ["--fine-tune"] if self.spec.canonical().hash == tuned else []
        return " ".join(["headhunt fit DATA", *words]) + ("   # spec.json: see headhunt.json" if own_spec else "")

    def _known_scores(self) -> list[tuple[str, Score]]:
        """Return scores of known metrics, the metric of the search first."""
        known = [(metric, score) for metric, score in self.scores.items() if metric in METRICS]
        searched = self.result.metric if self.result else None
        return sorted(known, key=lambda item: item[0] != searched)


def _count_rows(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {escape_text(split)}" for split, count in rows.items())


def _list_names(labels: Sequence[Any], most: int) -> str:
    return ", ".join(code(label) for label in labels[:most])


def _task_item(task: Facts) -> str:
    """Return inputs and outputs of one of several tasks."""
    inputs, count = "a pair of texts" if task["pair"] else "a text", len(task["labels"])
    more = " …" if count > MAX_TASK_LABELS else ""
    output = f"one of {count} classes for {inputs}: {_list_names(task['labels'], MAX_TASK_LABELS)}{more}"
    return f"{code(task['name'])} predicts {output if count else f'a number for {inputs}'}"


def _encoder_link(encoder: str) -> str:
    if name := hub_name(encoder):
        return f"[{escape_text(name)}](https://huggingface.co/{name})"
    return f"a local encoder ({code(Path(encoder).name)})"
