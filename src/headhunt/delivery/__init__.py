"""Delivery: the model people take home, share, serve, and run over a corpus."""
