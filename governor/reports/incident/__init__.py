"""Incident reports: sentences, Markdown, JSON, and one page with plots (drawn.py). It states what was observed."""

from governor.reports.incident.told import next_attempt, not_observed, summary
from governor.reports.incident.written import incident_document, incident_json, incident_markdown
from governor.reports.terminal import live_line, timeline_lines

__all__ = [
    "incident_document", "incident_json", "incident_markdown", "live_line", "next_attempt", "not_observed", "summary",
    "timeline_lines",
]  # fmt: skip
