"""A stranger's text neither steers a terminal nor breaks a line, an encoder or a page, whoever shows it."""

from __future__ import annotations

import pytest

from governor.core.alerts.catalogue import shown
from governor.core.base.printable import escaped, printable, storable
from governor.text.table import plain

# The text; as it is shown, as it is shown without loss, as one line of a table, and as an alert.
TABLE = [
    ("llama-70b ß 模型", "llama-70b ß 模型", "llama-70b ß 模型", "llama-70b ß 模型", "llama-70b ß 模型"),
    ("a\nb", "a\ufffdb", r"a\nb", "a b", "a\nb"),
    ("a\r\x1b[2Kb", "a\ufffd\ufffd[2Kb", r"a\r\x1b[2Kb", "a  [2Kb", "a\ufffd\ufffd[2Kb"),
    ("a\x9b31mb\x00", "a\ufffd31mb\ufffd", r"a\x9b31mb\x00", "a 31mb ", "a\ufffd31mb\ufffd"),
    ("a\u202eb\u2028c", "a\ufffdb\ufffdc", r"a\u202eb\u2028c", "a b c", "a\ufffdb\ufffdc"),
    ("a\udce9\ud83db", "a\ufffd\ufffdb", r"a\udce9\ud83db", "a  b", r"a\udce9\ud83db"),
    ("a \t\xa0 b", "a \ufffd\ufffd b", r"a \t\xa0 b", "a b", "a \ufffd\ufffd b"),
]


@pytest.mark.parametrize(("text", "seen", "whole", "in_table", "alert"), TABLE)
def test_each_maker_of_printable_text_makes_of_a_text_what_the_table_says(
    text: str, seen: str, whole: str, in_table: str, alert: str
) -> None:
    assert (printable(text), escaped(text), plain(text), shown(text)) == (seen, whole, in_table, alert)
    for made in (printable(text), printable(text, " "), escaped(text), plain(text), *shown(text).split("\n")):
        assert made.isprintable()
        made.encode()


@pytest.mark.parametrize("text", ["llama", "a\x1bb\n", "a\udce9b", "\ud83d\ude00"])
def test_what_is_stored_can_be_encoded_and_loses_nothing_that_could_be(text: str) -> None:
    assert storable(text).encode().decode() == storable(text)
    if text.isascii():
        assert storable(text) == text
