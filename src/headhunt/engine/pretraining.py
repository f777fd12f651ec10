"""Offer a search one more encoder: the first one, trained further on texts without labels."""

from __future__ import annotations

import re
from pathlib import Path

from headhunt.engine.view import View
from headhunt.run.state import KNOWN, PLAIN, SOLVED, WORDS
from headhunt.study.requests import PretrainEncoder, Request

FRACTION = 0.25  # of the time of a search, for training the encoder further


class Pretraining:
    """A stage that trains the encoder further on one worker, and adds the result to the encoders of the search.

    The search goes on meanwhile. Whether the new encoder is better is decided as for every other: by its solved head.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        name = re.sub(r"[^\w.-]+", "-", Path(view.settings.encoder).name).strip("-.") or "encoder"
        self._sent = False
        self._out = view.directory.encoders / f"{name}-pretrained"

    def next(self) -> Request | None:
        """Return the request to train the encoder, unless the search has gone on without it."""
        view = self._view
        result = view.directory.read_pretraining()
        if result is not None:
            if result.folder is not None:
                view.study.add_encoder(str(view.directory.encoders / result.folder))
            return None
        if (
            self._sent
            or view.state.plain is None
            or any(t.origin not in (PLAIN, SOLVED, WORDS, KNOWN) for t in view.state.trials)
        ):
            return None  # resumed after other candidates were tried
        self._sent = True
        seconds = FRACTION * view.study.budget.total or None  # 0 stands for no limit
        return view.request(PretrainEncoder, view.state.plain, seconds=seconds, out=self._out, worker_timeout=None)
