"""The search from data to model: trials, selection, the final test and ablations."""
