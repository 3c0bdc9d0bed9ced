"""Broken variants of valid samples: wrong types and limits within the structure, then damage to the bytes."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

TEXTS: tuple[str, ...] = (
    "", " ", "nan", "inf", "-inf", "x" * 513, "x" * 5_000, "\ud800", "\udfff\ud800", "\udc80", "\0", "a\0b",
    "\x1b[2J\x1b[31m\r\n", "\x9b2J", "\u202e\u2028\u200b", "\N{SNOWMAN}\U0010ffff", "line\nbreak", "../../etc/passwd",
    "/dev/zero", "/" * 200, '"} 1\nevil{x="', "```\n# heading\n<script>", "|a|b|\n|-|-|", "$(reboot)", "{incident}",
    "%s%n",
    "1e999", "0x10", "٣", "９９", "1_000", "+1", "-0", "NaN", "null", "true", "2026-11-23T00:00:00Z",
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "Mon, 01 Jan 99999 00:00:00 GMT", "good", "@node", "a@0",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, -(10**30), 10**400, 0.0,
    -0.0, 5e-324, 1e-300, 0.5, 1.5, 1e16, 1e300, 1.7e308, -1.7e308, math.nan, math.inf, -math.inf,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], [0], {"": None}, {"a": {"b": {"c": []}}}, [{}])
BYTES: tuple[bytes, ...] = (
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\0", b"\r", b"\n", b"\x1b[2J", b"NaN",
    b"-Infinity", b"1e999", b"-", b"9" * 400, b"9" * 5_000, b"\\ud800", b"\\uD83D", b"[" * 2_000, b'{"a":' * 2_000,
    b"]",
    b"}", b'"', b"'", b",", b",,", b":", b"=", b"a.b.c=1", b"[[a]]", b"#", b"\\", b" " * 300, b"null", b"0" * 40,
)  # fmt: skip


def value(random: Random) -> Any:
    """Something that stands nowhere in a valid sample."""
    draw = random.random()
    if draw < 0.4:
        return random.choice(NUMBERS)
    if draw < 0.75:
        return random.choice(TEXTS)
    if draw < 0.92:
        return random.choice(OTHERS)
    if draw < 0.95:
        return {f"k{n}": random.choice(NUMBERS) for n in range(40)}
    if draw < 0.98:
        return [random.choice(TEXTS) for _ in range(random.choice((3, 65, 70)))]
    return nested(random.choice((3, 30, 300)))


def nested(depth: int) -> Any:
    found: Any = 0
    for level in range(depth):
        found = [found] if level % 2 else {"a": found}
    return found


def broken(random: Random, sample: Any, times: int = 1) -> Any:
    """The sample with so many places changed. The sample itself stays as it is."""
    for _ in range(times):
        sample = _changed(random, sample)
    return sample


def _changed(random: Random, sample: Any) -> Any:
    if not isinstance(sample, dict | list) or not sample or random.random() < 0.01:
        return value(random)
    copy = sample.copy()
    places = list(copy) if isinstance(copy, dict) else list(range(len(copy)))
    place = random.choice(places)
    draw = random.random()
    if isinstance(copy[place], dict | list) and copy[place] and draw < 0.6:
        copy[place] = _changed(random, copy[place])
    elif draw < 0.7:
        copy[place] = value(random)
    elif draw < 0.78:
        del copy[place]
    elif draw < 0.84:
        copy[place] = copy[random.choice(places)]
    elif draw < 0.88:
        copy[place] = [copy[place]] if random.random() < 0.5 else {"a": copy[place]}
    elif draw < 0.94 and isinstance(copy, dict):
        copy[random.choice(TEXTS)] = value(random)
    elif isinstance(copy, dict):
        copy[place] = str(copy[place])
    else:
        copy += [copy[place]] * random.choice((1, 1, 100))
    return copy


def encoded(random: Random, record: Any) -> bytes:
    """The record as JSON, as somebody's encoder may write it: keys twice, bare NaN, half pairs, spaces."""
    is_ascii = random.random() < 0.8
    text = json.dumps(
        record, ensure_ascii=is_ascii, separators=random.choice(((",", ":"), (", ", ": "), (" ,\n", "\t:")))
    )
    if random.random() < 0.03 and text.startswith("{") and len(text) > 2:
        key = random.choice(list(record)) if isinstance(record, dict) and record else "v"
        text = "{" + json.dumps(key) + ":" + json.dumps(value(random)) + "," + text[1:]
    return text.encode("utf-8", "surrogatepass")


def damaged(random: Random, data: bytes, chance: float = 0.25) -> bytes:
    """The bytes with some of them changed, or as they are."""
    if random.random() >= chance:
        return data
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        draw = random.random()
        if draw < 0.3:
            data = data[:at] + random.choice(BYTES) + data[at:]
        elif draw < 0.5:
            data = data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]
        elif draw < 0.65:
            data = data[:at]
        elif draw < 0.8:
            end = min(len(data), at + random.randrange(1, 40))
            data = data[:at] + data[end:]
        else:
            end = min(len(data), at + random.randrange(1, 60))
            data = data[:at] + data[at:end] * random.choice((2, 3, 50)) + data[end:]
    return data


def text_damaged(random: Random, text: str, chance: float = 0.25) -> str:
    """`damaged` for a text, by characters: the result is no bytes that are not UTF-8."""
    return damaged(random, text.encode("utf-8", "surrogatepass"), chance).decode("utf-8", "replace")
