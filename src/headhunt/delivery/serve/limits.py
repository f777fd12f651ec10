"""Limits on the requests of a service."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headhunt.errors import HeadhuntError


@dataclass(frozen=True)
class Limits:
    """Limits on the size of requests, the length of the queue, and waiting times."""

    max_body: int = 1_000_000
    """Bytes of a request body."""
    max_texts: int = 256
    """Texts of a request."""
    max_characters: int = 20_000
    """Characters of a text."""
    max_queue: int = 512
    """Texts that are queued or being computed; requests beyond that are refused."""
    max_wait: float = 10.0
    """Seconds a request may wait for its predictions."""
    read_timeout: float = 10.0
    """Seconds a client may take to send a request."""
    timeout_graceful_shutdown: float = 30.0
    """Seconds to finish queued requests at shutdown."""

    def __post_init__(self) -> None:
        for name in ("max_body", "max_texts", "max_characters", "max_queue"):
            if getattr(self, name) < 1:
                raise HeadhuntError(f"{name}= must be at least 1; found {getattr(self, name)}.")
        for name in ("max_wait", "read_timeout", "timeout_graceful_shutdown"):
            if not 0 < getattr(self, name) < math.inf:
                raise HeadhuntError(f"{name}= must be a number of seconds above 0; found {getattr(self, name)}.")
        if self.max_texts > self.max_queue:
            raise HeadhuntError(
                f"max_queue= must be at least max_texts=, so that a full request fits in the queue; found "
                f"{self.max_queue} and {self.max_texts}."
            )
