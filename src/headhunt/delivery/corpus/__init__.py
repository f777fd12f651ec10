"""Label a corpus of any size, shard by shard, on many workers."""

from headhunt.delivery.corpus.label import Summary, label_corpus

__all__ = ["Summary", "label_corpus"]
