"""Limits on the requests of a service, and the cores that it uses."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from headhunt.errors import HeadhuntError
from headhunt.run.settings import COMPUTE, check_number, option

REQUESTS, TIMEOUTS = "Request limits", "Timeouts"


@dataclass(frozen=True)
class Limits:
    """Limits on the size of requests, the length of the queue, and waiting times."""

    max_queue: int = option(512, "Maximum queued texts; further requests get status 429.", "N", REQUESTS)
    max_texts: int = option(256, "Maximum texts per request.", "N", REQUESTS)
    max_characters: int = option(20_000, "Maximum characters per text.", "N", REQUESTS)
    max_outputs: int = option(200_000, "Maximum texts of a request times labels of the model.", "N", REQUESTS)
    max_body: int = option(1_000_000, "Maximum size of a request.", "BYTES", REQUESTS)
    max_wait: float = option(10.0, "Maximum time from request to response.", "SECONDS", TIMEOUTS, shown="10.0")
    read_timeout: float = option(10.0, "Maximum time to receive a request.", "SECONDS", TIMEOUTS, shown="10.0")
    timeout_graceful_shutdown: float = option(
        30.0, "Maximum time to finish queued requests.", "SECONDS", TIMEOUTS, shown="30.0"
    )

    def __post_init__(self) -> None:
        for name in ("max_body", "max_texts", "max_characters", "max_outputs", "max_queue"):
            check_number(getattr(self, name), name, 1)
        for name in ("max_wait", "read_timeout", "timeout_graceful_shutdown"):
            if not 0 < getattr(self, name) < math.inf:
                raise HeadhuntError(f"must be a number of seconds above 0; found {getattr(self, name)}.", name)
        if self.max_texts > self.max_queue:
            raise HeadhuntError(
                f"must be at least max_texts, so that a full request fits in the queue; found "
                f"{self.max_queue} and {self.max_texts}.",
                "max_queue",
            )


@dataclass(frozen=True)
class Compute:
    """The cores and forward passes of a service."""

    threads: int | None = option(None, "Number of CPU threads.", "N", COMPUTE, shown="all cores")
    model_instances: int | None = option(
        None,
        "Concurrent forward passes, which share the threads. 1 gives the lowest latency for a single text.",
        "N",
        COMPUTE,
        shown="threads",
    )
    max_batch: int = option(32, "Maximum texts per forward pass.", "N", COMPUTE)

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(getattr(self, each.name), each.name, 1)
