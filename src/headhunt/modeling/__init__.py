"""Heads as data and as modules, and the transformers model that joins an encoder and a head.

The modules that travel with a saved model are `architecture`, `configuration`, `encoder`, `ensemble`, `heads`, `model`
and `multitask`: they import only torch, transformers and each other.
"""
