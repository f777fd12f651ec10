"""Run directories: their files, the ledger, settings and results."""
