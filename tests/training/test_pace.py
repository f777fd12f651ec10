"""The pace of a training run: simulated machines that are slow, stall, or change their speed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headhunt.training.pace import Pace


def run(steps: int, seconds: float, speed) -> tuple[list[float], float, Pace]:
    """Train in virtual time; return the progress of every step, the time at the end, and the pace."""
    pace, time, progress, step = Pace(steps), 0.0, [], 0
    while step < pace.total:
        progress.append(pace.progress(step))
        took = speed(time)
        time, step = time + took, step + 1
        pace.follow(step, took, seconds - time)
    return progress, time, pace


CASES = {
    "undisturbed": (lambda t: 0.8, 100, 90),
    "half speed from 30 s on": (lambda t: 0.8 if t < 30 else 1.6, 100, 90),
    "slow for a while": (lambda t: 1.6 if 20 <= t < 50 else 0.8, 100, 90),
    "a stall of 30 s": (lambda t: 30.8 if 30 <= t < 30.8 else 0.8, 100, 90),
    "ten times too much": (lambda t: 0.8, 1000, 90),
    "a hundred times too much": (lambda t: 0.8, 10_000, 90),
    "slow first steps": (lambda t: 2.4 if t < 12 else 0.8, 100, 95),
}


@pytest.mark.parametrize("case", CASES)
def test_training_ends_in_time_with_its_schedule_complete(case):
    speed, steps, seconds = CASES[case]
    progress, time, pace = run(steps, seconds, speed)
    assert time <= seconds + 1 and len(progress) == pace.total <= steps
    assert progress[0] == 0 and all(0 <= a < b < 1 for a, b in pairwise(progress))
    assert progress[-1] > 0.9 and max(b - a for a, b in pairwise(progress)) < 0.2
    assert pace.total == steps or time > 0.8 * seconds


def test_training_that_fits_is_exactly_as_planned():
    progress, _, pace = run(100, 90, lambda t: 0.8)
    assert pace.cuts == [] and progress == [step / 100 for step in range(100)]


def test_same_cuts_give_the_same_progress():
    progress, _, pace = run(100, 60, lambda t: 0.8 if t < 30 else 1.6)
    assert pace.cuts
    again, replayed = Pace(100, []), []
    cuts = dict(pace.cuts)
    for step in range(pace.total):
        if step in cuts:
            again = Pace(100, [cut for cut in pace.cuts if cut[0] <= step])
        replayed.append(again.progress(step))
    assert replayed == progress and again.total == pace.total


def test_number_of_steps_is_raised_again_but_never_above_the_plan():
    _, time, pace = run(100, 95, lambda t: 3.0 if t < 15 else 0.5)
    assert pace.total == 100 and len(pace.cuts) > 1 and time < 95
