"""Dynamic batching: one queue for the texts of all requests, and threads that run forward passes over it.

A batch has texts of similar length. A free thread takes the next batch at once: while every thread is busy, the queue
fills, so that nothing has to wait for a full batch.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

log = logging.getLogger(__name__)

OVERHEAD = 11  # cost of a forward pass besides its tokens, in tokens; measured with MiniLM on one thread
PAUSE_AFTER_ERROR = 0.05  # seconds, so that an error that repeats does not fill the log
CHUNK = 32_768  # characters tokenized at a time, so that the long texts of one request do not delay the others


class BatchModel(Protocol):
    """A model that runs on batches of tokenized texts, such as `runtime.Model`."""

    def encode(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> list[Any]:
        """Return the tokens of each text; `len` of an item is their number."""

    def run(self, rows: Sequence[Any]) -> np.ndarray:
        """Run one forward pass over rows padded to the longest of them."""


@dataclass(eq=False, slots=True)
class Job:
    """The texts of one request, and a future of their outputs."""

    texts: Sequence[str]
    texts_b: Sequence[str] | None
    answer: Callable[[Any], Any] | None
    future: asyncio.Future[list[Any]]
    outputs: list[Any]
    remaining: int


class Row(NamedTuple):
    """One text of a job, and its tokens once it is in the queue."""

    number: int
    """Rank in the order of arrival."""
    job: Job
    position: int
    """Position of the text in its job."""
    tokens: Any = None


class RowQueue:
    """Rows by length: the next batch is the oldest row and the rows that save most by joining it."""

    def __init__(self) -> None:
        self.rows: dict[int, deque[Row]] = {}
        self.lengths: list[int] = []
        self.count = 0

    def add(self, row: Row) -> None:
        """Add a row."""
        length = len(row.tokens)
        if length not in self.rows:
            self.rows[length] = deque()
            insort(self.lengths, length)
        self.rows[length].append(row)
        self.count += 1

    def take(self, max_batch: int) -> list[Row]:
        """Remove and return a batch.

        Starting from the oldest row, neighbouring lengths join one by one while the share of the work that is neither
        padding nor overhead grows. Few rows give small batches of one length, many rows give full batches.
        """
        batch: list[Row] = []
        for length in self._choose_lengths(max_batch):
            rows = self.rows[length]
            while rows and len(batch) < max_batch:
                batch.append(rows.popleft())
            if not rows:
                del self.rows[length]
                self.lengths.remove(length)
        self.count -= len(batch)
        return batch

    def _choose_lengths(self, max_batch: int) -> list[int]:
        rows, lengths = self.rows, self.lengths
        oldest = min(lengths, key=lambda length: rows[length][0].number)
        low = high = lengths.index(oldest)
        chosen, count, tokens, widest = [oldest], len(rows[oldest]), len(rows[oldest]) * oldest, oldest
        efficiency = tokens / (tokens + OVERHEAD)
        while count < max_batch:
            best, position = efficiency, -1
            for neighbour in (low - 1, high + 1):
                if 0 <= neighbour < len(lengths):
                    length = lengths[neighbour]
                    added = len(rows[length])
                    joined = (tokens + added * length) / ((count + added) * max(widest, length) + OVERHEAD)
                    if joined > best:
                        best, position = joined, neighbour
            if position < 0:
                break
            low, high, efficiency = min(low, position), max(high, position), best
            length = lengths[position]
            chosen.append(length)
            count, tokens, widest = count + len(rows[length]), tokens + len(rows[length]) * length, max(widest, length)
        return chosen


class Batcher:
    """Runs a model for many requests of one event loop.

    Args:
        model: The model; `run` must be safe to call from several threads.
        model_instances: Number of parallel forward passes, each in a thread of its own.
        max_batch: Rows of a forward pass.
        observe: Called in the event loop with the number of rows of each forward pass.
    """

    def __init__(
        self,
        model: BatchModel,
        *,
        model_instances: int,
        max_batch: int,
        observe: Callable[[int], None] | None = None,
    ) -> None:
        self.model, self.max_batch, self.observe = model, max_batch, observe
        self._jobs: set[Job] = set()  # with texts that are queued or being computed
        self._started: dict[int, float] = {}  # when each thread began to tokenize or compute, by thread
        self.seconds_per_text = 0.01
        """Moving average with all threads busy; the time to try again is computed from it."""
        self._inbox: queue.SimpleQueue[list[Row] | None] = queue.SimpleQueue()  # rows that are tokenized together
        self._rows = RowQueue()
        self._queue_lock = threading.Lock()  # held by the thread that assembles the next batch, or waits for one
        self._next_number = 0
        self._last_pass = 0.0
        self._closing = False
        self.restarts = 0
        """How often a thread was replaced or went on after an error of its own."""
        self.threads = [self._make_thread(i) for i in range(model_instances)]

    def _make_thread(self, number: int) -> threading.Thread:
        return threading.Thread(target=self._work, name=f"model-instance-{number}", daemon=True)

    def start(self) -> None:
        """Start the threads; call it in the event loop that submits texts."""
        self._loop = asyncio.get_running_loop()
        for thread in self.threads:
            thread.start()

    @property
    def queued(self) -> int:
        """Texts that are queued or being computed."""
        return sum(job.remaining for job in self._jobs)

    def is_stalled(self, seconds: float) -> bool:
        """Return whether a thread has spent more than this time on one batch."""
        now = time.monotonic()
        return any(now - started > seconds for started in list(self._started.values()))

    @property
    def working(self) -> bool:
        """True if every thread is alive."""
        return all(thread.is_alive() for thread in self.threads)

    def replace_dead_threads(self) -> None:
        """Start a new thread for each that has ended before `close`; fail all texts, since it may have held some."""
        for number, thread in enumerate(self.threads):
            if not thread.is_alive() and not self._closing:
                log.error("thread %s has died and is replaced", thread.name)
                self.restarts += 1
                self.threads[number] = self._make_thread(number)
                self.threads[number].start()
                self._fail_all(RuntimeError("a thread of the model died"))

    def close(self) -> None:
        """Stop the threads once all submitted texts are computed."""
        self._closing = True
        self._inbox.put(None)

    def submit(
        self,
        texts: Sequence[str],
        texts_b: Sequence[str] | None = None,
        answer: Callable[[Any], Any] | None = None,
    ) -> asyncio.Future[list[Any]]:
        """Return a future of the outputs, one per text. Cancel it to remove texts that are still queued.

        Args:
            texts: The texts, or the first texts of pairs.
            texts_b: The second texts of pairs.
            answer: Turns an output into what the future has in its place; called in a thread of the model.
        """
        job = Job(texts, texts_b, answer, self._loop.create_future(), [None] * len(texts), len(texts))
        if not texts:
            job.future.set_result([])
            return job.future
        if not self.working:
            self.replace_dead_threads()
        self._jobs.add(job)
        rows: list[Row] = []
        characters = 0
        for position in range(len(texts)):
            rows.append(Row(0, job, position))
            characters += _characters(rows[-1])
            if characters >= CHUNK or position == len(texts) - 1:
                self._inbox.put(rows)
                rows, characters = [], 0
        return job.future

    # ------------------------------------------------------------------------------------------ in the threads

    # Tokenizers and runtimes are foreign code: a panic in Rust is a BaseException. Whatever they raise goes to the
    # requests of the texts; the thread goes on.

    def _work(self) -> None:
        while True:
            with self._queue_lock:
                try:
                    is_open = self._fetch()
                    batch = self._waiting(self._rows.take(self.max_batch)) if self._rows.count else []
                except BaseException as error:  # of the queue itself; a dead thread would leave every request waiting
                    log.exception("a thread failed to take a batch and goes on")
                    self.restarts += 1
                    self._rows = RowQueue()
                    self._fail_all(error)
                    time.sleep(PAUSE_AFTER_ERROR)
                    continue
            if batch:
                self._run(batch)
            elif not is_open and not self._rows.count:
                return

    def _run(self, batch: list[Row]) -> None:
        try:
            with self._timed():
                outputs = self.model.run([row.tokens for row in batch])
                if len(outputs) != len(batch):
                    raise ValueError(f"The model returned {len(outputs)} outputs for {len(batch)} texts.")
                pairs = zip((row.job.answer for row in batch), outputs, strict=True)
                answers = [output if answer is None else answer(output) for answer, output in pairs]
        except BaseException as error:
            self._call_in_loop(self._fail, batch, error)
        else:
            self._call_in_loop(self._deliver, batch, answers)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Record that this thread is busy; see `is_stalled`."""
        thread = threading.get_ident()
        self._started[thread] = time.monotonic()
        try:
            yield
        finally:
            del self._started[thread]

    def _waiting(self, rows: list[Row]) -> list[Row]:
        """Return the rows of requests that wait; those of cancelled ones are finished."""
        waiting: list[Row] = []
        cancelled: list[Row] = []
        for row in rows:
            (cancelled if row.job.future.done() else waiting).append(row)
        if cancelled:
            self._call_in_loop(self._release, cancelled)
        return waiting

    def _fetch(self) -> bool:
        """Tokenize about one chunk of new texts; wait for one if the queue is empty. Return if more can follow."""
        chunks: list[list[Row]] = []
        characters = 0
        is_open = True
        while characters < CHUNK:
            try:
                chunk = self._inbox.get(block=not (self._rows.count or chunks))
            except queue.Empty:
                break
            if chunk is None:
                self._inbox.put(None)  # for the other threads
                is_open = False
                break
            chunks.append(chunk)
            characters += sum(map(_characters, chunk))
        self._encode(chunks)
        return is_open

    def _encode(self, chunks: list[list[Row]]) -> None:
        """Add the rows of these chunks to the queue, unless their requests are cancelled."""
        rows = self._waiting([row for chunk in chunks for row in chunk])
        if not rows:
            return
        texts = [row.job.texts[row.position] for row in rows]
        pair = rows[0].job.texts_b is not None
        texts_b = [row.job.texts_b[row.position] for row in rows] if pair else None  # type: ignore[index]
        try:
            with self._timed():
                encoded = self.model.encode(texts, texts_b)
        except BaseException as error:
            if len(chunks) > 1:  # one text that cannot be tokenized is no fault of the other requests
                for chunk in chunks:
                    self._encode([chunk])
            else:
                self._call_in_loop(self._fail, rows, error)
            return
        for row, tokens in zip(rows, encoded, strict=True):
            self._next_number += 1
            self._rows.add(row._replace(number=self._next_number, tokens=tokens))

    def _fail_all(self, error: BaseException) -> None:
        """Fail all requests of now, since rows of any may be lost."""
        rows = [Row(0, job, 0) for job in list(self._jobs) for _ in range(job.remaining)]
        self._call_in_loop(self._fail, rows, error)

    def _call_in_loop(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed, so no request waits any more
            log.debug("outputs were ready after the event loop was closed")

    # ------------------------------------------------------------------------------------------ in the event loop

    def _deliver(self, batch: list[Row], outputs: list[Any]) -> None:
        for (_, job, position, _), output in zip(batch, outputs, strict=True):
            job.outputs[position] = output
        self._release(batch)
        self._update_speed(len(batch))
        if self.observe:
            self.observe(len(batch))

    def _fail(self, rows: list[Row], error: BaseException) -> None:
        log.error("the model failed on a batch", exc_info=error)
        for row in rows:
            if not row.job.future.done():
                row.job.future.set_exception(RuntimeError(repr(error)))
        self._release(rows)

    def _release(self, rows: list[Row]) -> None:
        """Count rows as finished; a job without further rows has its result."""
        for row in rows:
            job = row.job
            job.remaining -= 1
            if not job.remaining:
                self._jobs.discard(job)
                if not job.future.done():
                    job.future.set_result(job.outputs)

    def _update_speed(self, count: int) -> None:
        now = time.monotonic()
        taken, self._last_pass = now - self._last_pass, now
        if self._jobs and taken < 10:  # with an empty queue, the time between two passes is mostly idle time
            self.seconds_per_text += 0.1 * (taken / count - self.seconds_per_text)


def _characters(row: Row) -> int:
    """Return the length of the text of a row, or of both texts of a pair."""
    texts_b = row.job.texts_b
    return len(row.job.texts[row.position]) + (0 if texts_b is None else len(texts_b[row.position]))
