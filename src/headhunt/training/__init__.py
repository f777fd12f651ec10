"""Training of one candidate: tokens, objective, optimiser, loop, and stored activations of frozen layers."""
