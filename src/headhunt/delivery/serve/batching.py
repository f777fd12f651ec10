"""Texts of many callers, answered together: one queue, batches of like length, a forward pass whenever a lane is free.

Hides how batches are put together, the threads they run in, and how answers find their way back to an event loop.
Nothing waits for a batch to fill: while every lane is busy the queue fills by itself.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

log = logging.getLogger(__name__)

OVERHEAD = 11  # what a pass costs beside its tokens, in tokens; measured with MiniLM on one thread
CHUNK = 32_768  # characters tokenised at a time, so that one caller's long texts do not hold up the others


class Model(Protocol):
    """What answers: `runtime.Model`."""

    def encode(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> list[Any]:
        """Tokens of each text; `len` of one is their number."""

    def run(self, rows: Sequence[Any]) -> np.ndarray:
        """One pass over rows padded to the longest of them."""


class Job:
    """What one caller asked for: texts, and a future of their outputs."""

    __slots__ = ("done", "left", "outputs", "texts", "texts_b")

    def __init__(self, texts: Sequence[str], texts_b: Sequence[str] | None, done: asyncio.Future[list[Any]]) -> None:
        self.texts, self.texts_b, self.done = texts, texts_b, done
        self.outputs: list[Any] = [None] * len(texts)
        self.left = len(texts)


Row = tuple[int, Job, int, Any]  # number in the queue, whose, which of its texts, tokens


class Waiting:
    """Rows by their length: the next batch is the oldest row and those that save most by going with it."""

    def __init__(self) -> None:
        self.rows: dict[int, deque[Row]] = {}
        self.lengths: list[int] = []
        self.count = 0

    def add(self, row: Row) -> None:
        """Queues a row."""
        length = len(row[3])
        if length not in self.rows:
            self.rows[length] = deque()
            insort(self.lengths, length)
        self.rows[length].append(row)
        self.count += 1

    def take(self, most: int) -> list[Row]:
        """Takes a batch out.

        Lengths next to the oldest row's join, one by one, as long as the share of the work that is not padding or
        overhead grows by it. Few rows make small batches of one length, many make full ones; the oldest always goes.
        """
        chosen: list[Row] = []
        for length in self._lengths_of_next(most):
            rows = self.rows[length]
            while rows and len(chosen) < most:
                chosen.append(rows.popleft())
            if not rows:
                del self.rows[length]
                self.lengths.remove(length)
        self.count -= len(chosen)
        return chosen

    def _lengths_of_next(self, most: int) -> list[int]:
        rows, lengths = self.rows, self.lengths
        oldest = min(lengths, key=lambda length: rows[length][0][0])
        low = high = lengths.index(oldest)
        chosen, count, tokens, widest = [oldest], len(rows[oldest]), len(rows[oldest]) * oldest, oldest
        share = tokens / (tokens + OVERHEAD)
        while count < most:
            best, joins = share, -1
            for place in (low - 1, high + 1):
                if 0 <= place < len(lengths):
                    length = lengths[place]
                    more = len(rows[length])
                    found = (tokens + more * length) / ((count + more) * max(widest, length) + OVERHEAD)
                    if found > best:
                        best, joins = found, place
            if joins < 0:
                break
            low, high, share = min(low, joins), max(high, joins), best
            length = lengths[joins]
            chosen.append(length)
            count, tokens, widest = count + len(rows[length]), tokens + len(rows[length]) * length, max(widest, length)
        return chosen


class Batcher:
    """Runs a model for many callers of one event loop.

    Args:
        model: What answers; `run` must be safe to call from several threads.
        model_instances: Passes at a time, each in a thread of its own.
        most: Rows of a pass.
        observe: Called in the event loop with the number of rows of each pass.
    """

    def __init__(
        self, model: Model, *, model_instances: int, most: int, observe: Callable[[int], None] | None = None
    ) -> None:
        self.model, self.most, self.observe = model, most, observe
        self.queued = 0
        """Texts taken in and not yet answered."""
        self.seconds_per_text = 0.01
        """Of late, with all model_instances at work; what a caller who has to come back later is told rests on it."""
        self._inbox: queue.SimpleQueue[tuple[Job, int, int] | None] = queue.SimpleQueue()
        self._waiting = Waiting()
        self._choosing = threading.Lock()  # held by the lane that makes up the next batch, or waits for something to do
        self._number = 0
        self._last = 0.0
        self._lanes = [
            threading.Thread(target=self._lane, name=f"lane-{i}", daemon=True) for i in range(model_instances)
        ]

    def start(self) -> None:
        """Starts the model_instances; called in the event loop that will submit."""
        self._loop = asyncio.get_running_loop()
        for lane in self._lanes:
            lane.start()

    def close(self) -> None:
        """Ends the model_instances, once they have answered what was submitted."""
        self._inbox.put(None)

    def submit(self, texts: Sequence[str], texts_b: Sequence[str] | None = None) -> asyncio.Future[list[Any]]:
        """A future of the outputs, one for each text. Cancelling it takes what has not begun out of the queue."""
        job = Job(texts, texts_b, self._loop.create_future())
        if not texts:
            job.done.set_result([])
            return job.done
        self.queued += len(texts)
        start = characters = 0
        for i, text in enumerate(texts):
            characters += len(text) + (len(texts_b[i]) if texts_b is not None else 0)
            if characters >= CHUNK:
                self._inbox.put((job, start, i + 1))
                start, characters = i + 1, 0
        if start < len(texts):
            self._inbox.put((job, start, len(texts)))
        return job.done

    # ------------------------------------------------------------------------------------------ in the model_instances

    def _lane(self) -> None:
        while True:
            with self._choosing:
                batch, given_up, open_ = self._next()
            if given_up:
                self._tell(self._forget, given_up)
            if batch:
                try:
                    outputs: Any = self.model.run([row[3] for row in batch])
                except Exception as error:  # whatever it is, callers are waiting and the lane has to go on
                    outputs = error
                self._tell(self._deliver, batch, outputs)
            elif not open_:
                return

    def _next(self) -> tuple[list[Row], int, bool]:
        """The next batch, the number of rows nobody waits for any more, and whether more may come."""
        given_up, open_ = self._fetch()
        batch = []
        if self._waiting.count:
            for row in self._waiting.take(self.most):
                if row[1].done.done():
                    given_up += 1
                else:
                    batch.append(row)
        return batch, given_up, open_ or self._waiting.count > 0

    def _fetch(self) -> tuple[int, bool]:
        """Tokenises what has come in, up to a chunk or so; waits if there is nothing else to do."""
        found: list[tuple[Job, int, int]] = []
        characters = 0
        while characters < CHUNK:
            try:
                item = self._inbox.get(block=not (self._waiting.count or found))
            except queue.Empty:
                break
            if item is None:
                self._inbox.put(None)  # for the other model_instances
                return self._encode(found), False
            found.append(item)
            job, start, stop = item
            characters += sum(map(len, job.texts[start:stop]))
        return self._encode(found), True

    def _encode(self, found: list[tuple[Job, int, int]]) -> int:
        wanted = [item for item in found if not item[0].done.done()]
        given_up = sum(stop - start for _, start, stop in found) - sum(stop - start for _, start, stop in wanted)
        if not wanted:
            return given_up
        texts = [text for job, start, stop in wanted for text in job.texts[start:stop]]
        texts_b = None
        if wanted[0][0].texts_b is not None:
            texts_b = [text for job, start, stop in wanted for text in job.texts_b[start:stop]]  # type: ignore[index]
        owners = [(job, i) for job, start, stop in wanted for i in range(start, stop)]
        try:
            encoded = self.model.encode(texts, texts_b)
        except Exception as error:
            self._tell(self._deliver, [(0, job, i, None) for job, i in owners], error)
            return given_up
        for (job, i), tokens in zip(owners, encoded, strict=True):
            self._number += 1
            self._waiting.add((self._number, job, i, tokens))
        return given_up

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody is there to hear it
            log.debug("answers came after the event loop was closed")

    # ------------------------------------------------------------------------------------------ in the event loop

    def _deliver(self, batch: list[Row], outputs: Any) -> None:
        self.queued -= len(batch)
        if isinstance(outputs, Exception):
            log.error("a forward pass failed", exc_info=outputs)
            for _, job, _, _ in batch:
                if not job.done.done():
                    job.done.set_exception(outputs)
            return
        self._keep_time(len(batch))
        for (_, job, index, _), output in zip(batch, outputs, strict=True):
            job.outputs[index] = output
            job.left -= 1
            if not job.left and not job.done.done():
                job.done.set_result(job.outputs)
        if self.observe:
            self.observe(len(batch))

    def _forget(self, count: int) -> None:
        self.queued -= count

    def _keep_time(self, count: int) -> None:
        now = time.monotonic()
        taken, self._last = now - self._last, now
        if self.queued and taken < 10:  # with an empty queue the time between two passes says nothing
            self.seconds_per_text += 0.1 * (taken / count - self.seconds_per_text)
