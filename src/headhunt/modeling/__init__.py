"""Heads as data and as modules, and the transformers model that joins an encoder and a head.

All modules except `build` and `averaging` travel with a saved model: they import only torch, transformers and each
other.
"""
