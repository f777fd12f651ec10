"""The search: what to try (strategies), who goes on (rungs), where it runs (executor), and the loop that ties them.

Knows nothing of training: the function that evaluates a candidate is handed in, so that all of this is tested with a
toy function in milliseconds.
"""
