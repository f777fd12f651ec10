"""Search over candidates: strategies propose them, rungs decide promotions, executors run them.

This package knows nothing of training. The function that evaluates a trial is an argument, so that tests use a toy
function that takes milliseconds.
"""
