"""Load the data set that comes with the package."""

from pathlib import Path

from headhunt.data.task import Task

DEMO = Path(__file__).parent / "demo" / "banking.csv"


def load_demo() -> Task:
    """Return 400 questions to a bank with ten intents, drawn from BANKING77 (CC BY 4.0, see LICENSE.md beside it)."""
    return Task.load(DEMO)
