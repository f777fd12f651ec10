"""Let Ctrl-C and SIGTERM end a search in order: the best model so far is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible(first: Callable[[], None]) -> Iterator[None]:
    """Call `first` on the first Ctrl-C or SIGTERM; the second one ends the program as usual.

    A signal that this process ignores stays ignored: Ctrl-C is not meant for a background job.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        for each in before:
            signal.signal(each, signal.default_int_handler)
        first()

    before = {each: handler for each in SIGNALS if (handler := signal.getsignal(each)) is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, handle)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, so that workers are ended and files closed; leave other handlers alone."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        _restore({signal.SIGTERM: signal.SIG_DFL})


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for each, handler in handlers.items():
        # None stands for a handler that was not set from Python, which cannot be set again.
        signal.signal(each, signal.SIG_DFL if handler is None else handler)
