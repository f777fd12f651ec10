"""Reports of a search: an HTML page, the same facts as JSON, summaries in a notebook, and the model card."""

from headhunt.report.facts import collect_facts
from headhunt.report.page import write

__all__ = ["collect_facts", "write"]
