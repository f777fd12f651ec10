"""Train a small model to predict what a larger one predicts: the function behind `headhunt distil`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from headhunt.data import Columns, Split, Task, load_labelled, load_texts
from headhunt.data.loading import normalise
from headhunt.engine.api import load, score
from headhunt.engine.assembly import prepare
from headhunt.engine.options import check_new_directory
from headhunt.engine.profiling import measure_cost
from headhunt.errors import HeadhuntError
from headhunt.evaluation import Score, decide
from headhunt.modeling.architecture import Head
from headhunt.predictor import Predictor
from headhunt.run.model_info import versions
from headhunt.run.results import ModelCost
from headhunt.spec import Recipe, Spec
from headhunt.training.loop import Report

HELD_OUT, MOST_HELD_OUT = 0.1, 500  # texts that the agreement of both models is measured on
LEAST_TEXTS = 20
COST_TEXTS, COST_CALLS = 256, 20
RECIPE = Recipe(learning_rate=1e-4, head_lr_multiplier=5.0, layer_decay=0.95, standardize=True)


@dataclass(frozen=True)
class Measured:
    """A model, as it was measured beside another."""

    cost: ModelCost
    scores: dict[str, Score]
    """On the test rows, by metric; empty without test rows."""


@dataclass(frozen=True)
class Distillation:
    """A student beside its teacher."""

    teacher: Measured
    student: Measured
    texts: int
    """Texts that the student learned from."""
    agreement: float
    """On other texts: fraction of equal decisions; for numbers, the correlation."""
    test_rows: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def distil(
    model: str | Path,
    texts: Any,
    *,
    encoder: str,
    out: str | Path,
    test: Any = None,
    text: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
    epochs: float = 3.0,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
    on_report: Callable[[Report], None] = lambda report: None,
) -> Distillation:
    """Train a student on a model's probabilities for texts without labels, save it, and measure both.

    The student has the head of the teacher, or mean pooling if the teacher is an ensemble.

    Args:
        model: The folder of a saved model, the teacher.
        texts: As for `load_texts`: a file or a list. Texts of test rows are left out.
        encoder: Encoder of the student: a Hugging Face model name or a directory.
        out: Directory to save the student in.
        test: Labelled rows to score both models on, as for `load_labelled`.
        text: Text column (detected if unambiguous).
        text_b: Column of second texts.
        label: Label column of the test rows.
        epochs: Passes over the texts.
        seed: Random seed.
        device: "cuda", "mps" or "cpu"; by default the fastest available.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with an encoder may run.
        on_report: Called about a hundred times during training.
    """
    check_new_directory(Path(out))
    if not 0 < epochs <= 100:
        raise HeadhuntError(f"must be above 0, up to 100; found {epochs}.", "epochs")
    teacher = load(model, device=device, precision=precision, trust_remote_code=trust_remote_code)
    columns: dict[str, Any] = {"pair": teacher.pair, "text": text, "text_b": text_b}
    problem_type: Any = teacher.problem_type
    tested = None
    if test is not None:
        tested = load_labelled(test, problem_type=problem_type, labels=teacher.labels, label=label, **columns)
    rows = _without(load_texts(texts, **columns), tested)
    order = np.random.default_rng(seed).permutation(len(rows))
    held_out = min(MOST_HELD_OUT, math.ceil(HELD_OUT * len(rows)))
    others, learned = rows.take(np.sort(order[:held_out])), rows.take(np.sort(order[held_out:]))
    lesson = copy(learned)
    lesson.targets = teacher.outputs(learned.texts(), learned.texts_b())
    text_columns = Columns(rows.columns.text, rows.columns.text_b, None)
    training, student = prepare(
        Task("distillation", problem_type, teacher.labels, text_columns, {}),
        lesson,
        student_spec(teacher, encoder, epochs),
        seed=seed,
        device=device,
        precision=precision,
        trust_remote_code=trust_remote_code,
    )
    for report in training.reports(100):
        on_report(report)
    training.finish()
    student.thresholds = teacher.thresholds
    models = [_measure(each, tested, learned) for each in (teacher, student)]
    agreement = _agreement(
        problem_type, [each.outputs(others.texts(), others.texts_b()) for each in (teacher, student)]
    )
    done = Distillation(models[0], models[1], len(learned), round(agreement, 4), 0 if tested is None else len(tested))
    student.facts |= {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "distillation": done.to_dict(),
        "seed": seed,
        "versions": versions(),
    }
    student.save(out)
    return done


def student_spec(teacher: Predictor, encoder: str, epochs: float) -> Spec:
    """Return the spec of a student that reads texts as its teacher does."""
    head = teacher.spec.head if teacher.spec else Head(pooling="mean")
    length, truncation, _ = teacher.takes
    if teacher.spec and head.windows:
        length = teacher.spec.recipe.max_length  # of a window
    recipe = replace(RECIPE, epochs=epochs, max_length=length, truncation=truncation)
    return Spec(encoder=encoder, head=head, recipe=recipe)


def _without(rows: Split, tested: Split | None) -> Split:
    """Return the rows that have no text in common with a test row."""
    tests = {normalise(each) for each in (*tested.texts(), *(tested.texts_b() or []))} if tested is not None else set()
    kept = np.ones(len(rows), bool)
    for texts in filter(None, (rows.texts(), rows.texts_b())):
        kept &= np.array([normalise(each) not in tests for each in texts])
    if kept.sum() < LEAST_TEXTS:
        raise HeadhuntError(
            f"must hold at least {LEAST_TEXTS} texts that are not test rows; found {int(kept.sum())}.", "texts"
        )
    return rows.take(kept)


def _measure(model: Predictor, tested: Split | None, rows: Split) -> Measured:
    cost = measure_cost(model, rows.texts(0, COST_TEXTS), rows.texts_b(0, COST_TEXTS), repeats=COST_CALLS)
    return Measured(cost, {} if tested is None else dict(score(model, tested).scores))


def _agreement(problem_type: str, outputs: Sequence[np.ndarray]) -> float:
    """Return how far two models agree."""
    if problem_type == "regression":
        spread = min(float(np.std(each)) for each in outputs)
        return float(np.corrcoef(outputs[0], outputs[1])[0, 1]) if spread > 0 else 0.0
    decisions = [decide(problem_type, each) for each in outputs]
    return float(np.mean(decisions[0] == decisions[1]))
