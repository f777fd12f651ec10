"""Keep the best model of a search on disk, and its predictions of the test rows."""

from __future__ import annotations

import shutil

from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.engine.selection import rank_with_training_run
from headhunt.run.state import SOLVED, Trial
from headhunt.study.requests import FitAllRows, PredictTestRows, Request, SaveFirstFold


class BestModel:
    """The best model so far. It requests the models of better trials and points `RUN/best` to them.

    Attributes:
        trial: The best trial that a model can be saved of; None without results.
        rung: The rung of its best result.

    Args:
        limited: Whether a model may be over a limit on latency or size, so that none is saved before it was measured.
    """

    def __init__(self, *, limited: bool) -> None:
        self.trial: Trial | None = None
        self.rung = 0
        self._limited = limited
        self._rank: tuple[float, int] | None = None
        self._seen = 0  # final results that were handled
        self._first_requested = False  # whether the first model was requested before its evaluation
        self._requested: str | None = None  # the model that was last requested
        self._linked: list[str] = []  # models that `best` has pointed to
        self._tested: set[str] = set()  # models whose predictions of the test rows were requested

    def update(self, final: FinalEvaluation) -> None:
        """Take in the results since the last call."""
        state = final.state
        for number, rung in state.settled[self._seen :]:
            trial = state.trials[number]
            rank = rank_with_training_run(final.study, final.task.folds, trial, rung)
            if rank is None:
                continue
            # The same solved head with more rows is better: a few validation rows could only mislead.
            more_rows = trial.is_solved and trial is self.trial
            if self._rank is None or more_rows or rank > self._rank:
                self._rank, self.trial, self.rung = rank, trial, rung
        self._seen = len(state.settled)

    def requests(self, final: FinalEvaluation) -> list[Request]:
        """Point to the best model on disk, and return the requests to save a better one and to test it."""
        return [*self._save(final), *self._predict_test_rows(final)]

    def _save(self, final: FinalEvaluation) -> list[Request]:
        saved, directory = final.state.model, final.directory
        if saved is not None and saved.folder not in self._linked[-1:]:
            directory.link_best(saved.folder)
            self._linked.append(saved.folder)
            # A reader may still be loading the one before, and a model may become the best a second time.
            for old in set(self._linked[:-2]) - set(self._linked[-2:]):
                shutil.rmtree(directory.models / old, ignore_errors=True)
            del self._linked[:-2]
            if self.trial is not None and saved.folder != directory.trial_model(self.trial.number, self.rung).name:
                self._requested = None  # a save that was requested earlier ended later: the best one is saved again
        if self.trial is None:
            return self._save_first(final)
        out = directory.trial_model(self.trial.number, self.rung)
        if out.name in (self._requested, saved and saved.folder):
            return []
        plan, rows = final.plan, final.study.rows_of(self.trial, self.rung)
        if self.trial.is_solved and not (plan and plan.saves_as_evaluated(rows)):  # takes seconds: use all rows
            self._requested = out.name
            return [final.request(FitAllRows, self.trial, rows=rows, out=out)]
        checkpoint = final.study.checkpoints.latest(self.trial.number)
        if checkpoint is None or checkpoint != directory.checkpoint(self.trial.number, self.rung):
            return []
        self._requested = out.name
        return [final.request(SaveFirstFold, self.trial, rows=rows, checkpoint=checkpoint, out=out)]

    def _save_first(self, final: FinalEvaluation) -> list[Request]:
        """Return a request for the model of the first solved head, once: its evaluation takes longer than its solution.

        There is none where rows are sampled, since the validation rows must stay unseen.
        """
        by_rows = final.plan is None or final.plan.by_rows
        if self._first_requested or self._limited or by_rows or final.state.model is not None:
            return []
        self._first_requested = True
        trial = next((each for each in final.state.trials if each.origin == SOLVED), None)
        if trial is None or trial.number not in final.state.waiting:
            return []
        out = final.directory.trial_model(trial.number, final.state.waiting[trial.number])
        return [final.request(FitAllRows, trial, out=out)]

    def _predict_test_rows(self, final: FinalEvaluation) -> list[Request]:
        """Return a request for the test rows, so that the search always ends tested.

        Nothing is computed from the predictions before the search has ended.
        """
        saved, study = final.state.model, final.study
        if saved is None or saved.folder in self._tested or "test" not in final.task.rows:
            return []
        if self.trial is None or not study.compares:
            return []  # the first head is evaluated first; where nothing is compared, models are trained first
        only_solves = final.plan is not None and final.plan.only_solves
        pending = self._requested not in (None, saved.folder)
        same = self.trial.number == saved.trial
        if study.more_to_solve() is not None or (pending and (only_solves or same)):
            return []  # the model that is tested follows soon; beside it, the test would slow it down
        self._tested.add(saved.folder)
        path = final.directory.test_predictions(saved.folder)
        path.unlink(missing_ok=True)  # of a model of this name in an earlier session
        model, trial = final.directory.models / saved.folder, final.state.trials[saved.trial]
        return [final.request(PredictTestRows, trial, model=model, predictions=path)]
