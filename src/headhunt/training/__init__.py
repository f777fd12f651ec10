"""Training: what is minimised (`objectives`), what moves and how fast (`optim`), and the loop (`loop`)."""
