"""Texts of others in Markdown. What a run, a rank or a person has named is never markup there: whoever writes a .md
calls one of these.
"""

from __future__ import annotations

import re
from typing import Final

from governor.text.table import plain

# An underscore within a word is no emphasis, and paths are read by people in a plain editor too.
_MARKUP: Final = re.compile(r"([\\`*{}\[\]<>|~]|(?<![^\W_])_|_(?![^\W_]))")
_LEAD: Final = re.compile(r"^([-+#=]|[0-9]+[.)])(?=[ #=-]|$)")


def literal(text: object) -> str:
    """One line that is shown as it stands."""
    return _LEAD.sub(r"\\\1", cell(text))


def cell(text: object) -> str:
    """As `literal`, in a row of a table: no block begins there, so a lone "-" stays one."""
    return _MARKUP.sub(r"\\\1", plain(text))


def with_code(text: str) -> str:
    """As `literal`, but for code: what stands between two backquotes.

    If backquotes are no such pairs, somebody else's are among them, and all are shown.
    """
    parts = plain(text).split("`")
    if len(parts) % 2 == 0 or "``" in text:
        return literal(text)
    told = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    code = [part.replace("|", "/") for part in parts[1::2]]  # In a table it would end the cell.
    told[0] = _LEAD.sub(r"\\\1", told[0])
    return told[0] + "".join(f"`{one}`{behind}" for one, behind in zip(code, told[1:], strict=True))
