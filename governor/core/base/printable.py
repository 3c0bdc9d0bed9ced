"""A stranger's text, as it may be shown or kept. Whoever shows or keeps one calls these.

Two have rules of their own: what is quoted for a shell (secrets), and a drawing in the signs of its font.
"""

from __future__ import annotations

from typing import Final

UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, instead: str = UNPRINTABLE) -> str:
    """Replace characters that could steer a terminal or break a line of a log: each by `instead`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else instead for c in text)


def escaped(text: str) -> str:
    """As `printable`, and no character is lost: each is shown as Python escapes it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def storable(text: str) -> str:
    r"""The text as UTF-8 can hold it: half a surrogate pair, and a byte that was none, become \udcXX."""
    return text.encode("utf-8", "backslashreplace").decode()


def cut(text: str, chars_max: int) -> str:
    """At most so many characters, where there were more with a sign of that as the last of them."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def at_step(step: int | None) -> str:
    """Where a run is. None: no step was seen."""
    return f"at step {step}" if step is not None else after_step(None)


def after_step(step: int | None) -> str:
    """Where a run is, behind a verb. None: no step was seen."""
    return f"after step {step}" if step is not None else "before its first step"
