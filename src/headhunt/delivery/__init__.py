"""What happens to a model after it was found: packed, exported, served, and run over a corpus."""
