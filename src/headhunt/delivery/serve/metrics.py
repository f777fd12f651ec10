"""Metrics of a service for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters, gauges and histograms of one service, in a registry of their own.

    Args:
        queue_length: Returns the number of texts that are queued or being computed.
        is_ready: Returns whether requests are accepted.
        restarts: Returns how often a thread of the model was replaced or went on after an error of its own.
    """

    def __init__(
        self, *, queue_length: Callable[[], int], is_ready: Callable[[], bool], restarts: Callable[[], int]
    ) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter("headhunt_requests", "Requests to /predict by status.", ["code"], registry=registry)
        self.refused = Counter("headhunt_refused", "Refused requests by reason.", ["reason"], registry=registry)
        self.texts = Counter("headhunt_texts", "Texts with a prediction.", registry=registry)
        self.seconds = Histogram(
            "headhunt_request_seconds", "Seconds from request to response.", buckets=SECONDS, registry=registry
        )
        self.batches = Histogram(
            "headhunt_batch_size", "Texts of a forward pass.", buckets=BATCH_SIZES, registry=registry
        )
        for name, description, function in (
            ("headhunt_queue_length", "Texts that are queued or being computed.", queue_length),
            ("headhunt_ready", "1 if requests are accepted.", is_ready),
            ("headhunt_thread_restarts", "Restarts of the threads of the model.", restarts),
        ):
            Gauge(name, description, registry=registry).set_function(function)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
