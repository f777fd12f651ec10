"""Labelling a corpus shard by shard."""
