"""The report of a search: one page that opens from disk, and the same facts as JSON."""

from headhunt.report.figures import facts
from headhunt.report.page import write

__all__ = ["facts", "write"]
