"""Offer a search one more encoder: the first one, trained further on texts without labels."""

from __future__ import annotations

import re
from pathlib import Path

from headhunt.engine.final_evaluation import FinalEvaluation
from headhunt.run.directory import RunDirectory
from headhunt.run.settings import SearchSettings
from headhunt.run.state import PLAIN, SOLVED
from headhunt.study.requests import PretrainEncoder, Request
from headhunt.study.study import Study

FRACTION = 0.25  # of the time of a search, for training the encoder further


class FurtherPretraining:
    """Requests the training of the encoder from one worker, and adds the result to the encoders of the search.

    The search goes on meanwhile. Whether the new encoder is better is decided as for every other: by its solved head.

    Args:
        directory: The run.
        settings: The settings of the search.
    """

    def __init__(self, directory: RunDirectory, settings: SearchSettings) -> None:
        self._directory, self._settings = directory, settings
        self._requested = self._added = not settings.pretrain

    @property
    def running(self) -> bool:
        """True while a worker trains the encoder."""
        return self._requested and not self._added

    def add_encoder(self, study: Study) -> str | None:
        """Add the encoder to the search, once it is there; return a message for the user when that happens."""
        result = None if self._added else self._directory.read_pretraining()
        if result is None:
            return None
        self._requested = self._added = True
        if result.folder is None:
            return result.note
        study.add_encoder(str(self._directory.encoders / result.folder))
        return f"the encoder was trained further on {result.texts:,} texts, for {result.epochs:g} epochs"

    def requests(self, final: FinalEvaluation) -> list[Request]:
        """Return the request to train the encoder, unless this was done, or the search has gone on without it."""
        plain = final.state.plain
        if self._requested or plain is None:
            return []
        self._requested = True
        if any(trial.origin not in (PLAIN, SOLVED) for trial in final.state.trials):
            return []  # resumed after other candidates were tried
        seconds = FRACTION * final.budget.total or None  # 0 stands for no limit
        encoder = self._settings.encoder
        name = re.sub(r"[^\w.-]+", "-", Path(encoder).name).strip("-.") or "encoder"
        out = self._directory.encoders / f"{name}-pretrained"
        return [final.request(PretrainEncoder, plain, seconds=seconds, out=out, worker_timeout=None)]
