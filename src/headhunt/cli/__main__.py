"""Run the command line with `python -m headhunt.cli`."""

from headhunt.cli.app import main

main()
