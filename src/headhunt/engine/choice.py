"""Choose the model to deliver by its predictions of validation rows. Test rows play no part."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headhunt.engine.view import View
from headhunt.evaluation import Decisions
from headhunt.run.state import KNOWN, Trial
from headhunt.spec import MANY_CLASSES

STANDARD_ERRORS = 2.0  # by which a later candidate must be better: benchmarks/testbed/choice.py
UNTESTED_EPOCHS = 2.0  # that a model needs to be delivered without an evaluation; not chosen by a benchmark yet


def order_of_preference(view: View, trials: Iterable[Trial]) -> list[Trial]:
    """Return trials in the order in which they are good on other data: benchmarks/testbed/few_shot.py and choice.py.

    The recipe that is best there comes first, then the plain head, then what was tried. A frozen encoder comes last.
    """
    recommended = view.study.baselines.recommended()
    first = recommended[0].hash if recommended else None

    def rank(trial: Trial) -> tuple[bool, bool, bool, bool, int]:
        return trial.is_solved, trial.hash != first, not trial.is_plain, trial.origin != KNOWN, trial.number

    return sorted(trials, key=rank)


def choose(view: View, trials: Iterable[Trial]) -> Trial | None:
    """Return the trial to deliver: the first in the order of preference, unless a later one is better.

    It must be significantly better on the validation rows that both have predicted: among many candidates, the best
    score is mostly luck. A solved head must be better at all: nothing that is delivered is below this floor.
    """
    best: Trial | None = None
    for trial in order_of_preference(view, trials):
        if best is None or _is_better(view, trial, best):
            best = trial
    return best


def _is_better(view: View, trial: Trial, best: Trial) -> bool:
    comparison = view.compare(trial, best)
    if comparison is not None:
        error = (comparison.high - comparison.low) / 4  # the interval has four
        return comparison.gain > (0.0 if trial.is_solved else STANDARD_ERRORS * error)
    if view.predictions(trial) is None and not trial.is_solved:
        return False
    return view.predictions(best) is None and not _is_trusted(view, best)


def _is_trusted(view: View, trial: Trial) -> bool:
    """Return whether a model without predictions of validation rows may be delivered: it is solved or trained enough.

    What is fitted on such predictions needs them: thresholds, calibration and rejection. With many classes, a solved
    head is better than a short training: docs/evidence/rules.md.
    """
    settings = view.settings
    needs = settings.calibrate or settings.rejection or view.task.problem_type == "multi_label_classification"
    needs = needs or (not trial.is_solved and len(view.task.labels) > MANY_CLASSES)
    examples = view.training_facts(trial)[0]
    return not needs and (trial.is_solved or examples >= UNTESTED_EPOCHS * view.plan.used_rows)


def unlike(view: View, chosen: Trial | None) -> list[Trial]:
    """Return up to three unlike trials with models, whose mean is a candidate without any choice.

    These are the chosen one, the plain head and the best solved head; all are there anyway.
    """
    fitted = view.fitted()
    solved = choose(view, [trial for trial in fitted if trial.is_solved])
    tuned = choose(view, [trial for trial in fitted if not trial.is_solved and not trial.is_plain])
    plain = choose(view, [trial for trial in fitted if trial.is_plain])
    members = [trial for trial in (tuned or chosen, plain, solved) if trial is not None]
    return list({trial.number: trial for trial in members if _has_tokenizer_of(view, trial, members[0])}.values())


def mean_score(view: View, members: list[Trial]) -> tuple[float | None, Decisions]:
    """Return the score of the mean of some trials on validation rows that all have predicted, and its decisions."""
    found = [view.predictions(trial) for trial in members]
    known = [each for each in found if each is not None]
    if len(known) < len(members) or len(members) < 2 or view.task.tasks:
        return None, Decisions()
    rows = known[0][0]
    for each in known[1:]:
        rows = np.intersect1d(rows, each[0])
    if not len(rows):
        return None, Decisions()
    mean = np.mean(
        [
            outputs[np.isin(positions, rows)][np.argsort(positions[np.isin(positions, rows)])]
            for positions, outputs in known
        ],
        0,
    )
    targets = view.validation_targets[rows]
    return view.score(mean, targets), view.decisions((mean, targets))


def score_on(view: View, trial: Trial, rows_of: list[Trial]) -> float | None:
    """Return the score of a trial on the validation rows that it and others have predicted."""
    found = view.predictions(trial)
    if found is None:
        return None
    rows, outputs = found
    for other in rows_of:
        predicted = view.predictions(other)
        if predicted is not None:
            kept = np.isin(rows, predicted[0])
            rows, outputs = rows[kept], outputs[kept]
    return view.score(outputs, view.validation_targets[rows]) if len(rows) else None


def _has_tokenizer_of(view: View, trial: Trial, first: Trial) -> bool:
    """Return whether two models can be joined: their tokenizers must be equal."""
    shapes = [each.spec.shape.vocabulary if each.spec.shape else None for each in (trial, first)]
    if shapes[0] != shapes[1] or trial.spec.encoder == first.spec.encoder:
        return shapes[0] == shapes[1]
    from headhunt.engine.ensemble import encoders_with_equal_tokenizer  # torch takes a while to load

    return len(encoders_with_equal_tokenizer([first.spec.encoder, trial.spec.encoder])) == 2
