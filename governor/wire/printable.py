"""A stranger's text, as it may be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """Replace characters that could steer a terminal or break a line of a log."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
