"""Label a corpus of any size, shard by shard, on many workers."""

from headhunt.delivery.corpus.label import label_corpus
from headhunt.delivery.corpus.manifest import Summary

__all__ = ["Summary", "label_corpus"]
