"""One word per thing, in code as in prose: the few rules of the glossary that a machine can judge."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.tidy.sources import PRODUCT, ROOT, Source, sources, text_files

_OTHER_TIMES = r"\w_(sec|secs|seconds|msec|msecs|millis|nanos)$"
_OTHER_MONEY = r"\w_(dollars|usd_cents|cents)$"
OF_QUANTITIES = {_OTHER_TIMES, _OTHER_MONEY}  # A function may well be named after what it handles.
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# A name, what is wrong with it, where it is right all the same.
RULES = [
    (r"terminat(e|ed|ing|ion)", "ours are term, kill, stop, destroy; the provider's API terminates", r"/clouds/"),
    (r"(^|_)job_(id|name|key|state)$", "the job is the scheduler's; ours is the run or the attempt", r"$^"),
    (r"(^|_)session(_id)?$", "a launch is an attempt, what is billed is an instance", r"/(clouds|http)"),
    (_OTHER_TIMES, "units are _ns, _ms or _s, last in the name", r"$^"),
    (_OTHER_MONEY, "money is _usd_micros (integer) or, for people, _usd", r"$^"),
    (r"^(ns|ms|s|usd)_(?!micros)", "the unit stands last in the name", r"$^"),
    (r"(^|_)(helper|helpers|utils?|misc)$", "name it after what it does", r"$^"),
    (r"(Manager|Helper|Utils?)$", "name it after what it does", r"ports\.py$|/systemd\.py$"),
    # Words of an earlier vocabulary, which only its author understood.
    (r"(^|_)(?i:letters?)(_|$)|Letter", "what a trainer is sent is a checkpoint request", r"$^"),
    (r"(^|_)(?i:nobodys)(_|$)|Nobodys", "what no run pays for is unallocated", r"$^"),
    (r"(^|_)(?i:(door)?bells?)(_|$)|Bell|Doorbell", "what wakes a trainer is a signal", r"$^"),
    (r"(^|_)(?i:heard)(_|$)|Heard", "name what came: a frame, an answer", r"$^"),
    (r"(^|_)(?i:(un)?tracked)(_|$)|Tracked", "a run that this governor has is managed", r"$^"),
    (r"(^|_)(?i:hands)(_|$)|Hands", "what performs effects is a performer", r"$^"),
]
INTEGER_UNITS = ("_ns", "_usd_micros", "_bytes")


@cache
def _defined(source: Source) -> tuple[tuple[ast.AST, str], ...]:
    return tuple(_defined_in(source))  # For every rule the same.


def _defined_in(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Names this file gives: functions, classes, arguments, assigned variables and fields. Not the ones it uses."""
    for node in source.named(*FUNCTIONS, ast.ClassDef, ast.arg, ast.Name, ast.Attribute):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node, node.name
        elif isinstance(node, ast.arg):
            yield node, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node, node.attr


@pytest.mark.parametrize(("pattern", "meant", "right_in"), RULES, ids=[rule[0] for rule in RULES])
def test_names_keep_to_the_glossary(pattern: str, meant: str, right_in: str) -> None:
    wrong = [
        f"{source.at(node)} {name}"
        for source in sources(*PRODUCT)
        if not re.search(right_in, source.path)
        for node, name in _named(pattern, source)
    ]
    assert not wrong, f"{meant}: {wrong}"


def _named(pattern: str, source: Source) -> list[tuple[ast.AST, str]]:
    """What this file names with words that the pattern forbids."""
    forbidden = re.compile(pattern).search
    return [
        (node, name)
        for node, name in _defined(source)
        if forbidden(name) and (pattern not in OF_QUANTITIES or not isinstance(node, FUNCTIONS))
    ]


OLD_WORDS = """
class TrackedRun:
    untracked = 0

    def __init__(self, letter, hands):
        self.nobodys_usd_micros = self._letters = letter
        self._heard_at = last_heard = 0

    def ring_doorbell(self):
        bell = DOORBELL = 1

class LetterBox: pass
class ProcessHands: pass
"""
TODAYS_WORDS = """
class ManagedRun:
    def hand_over(self, labels, newsletter):
        self.nobody = self.handshake = labelled = overheard = backtracked = handset = 0
"""


def test_words_of_the_earlier_vocabulary_are_found() -> None:
    def found(text: str) -> set[str]:
        planted = Source("planted.py", text)
        return {name for pattern, _, _ in RULES for _, name in _named(pattern, planted)}

    assert found(OLD_WORDS) == {
        *("TrackedRun", "untracked", "letter", "_letters", "hands", "nobodys_usd_micros", "_heard_at", "last_heard"),
        *("ring_doorbell", "bell", "DOORBELL", "LetterBox", "ProcessHands"),
    }
    assert not found(TODAYS_WORDS)


def test_counted_units_are_integers() -> None:
    """A float nanosecond or micro-dollar has already lost some."""
    wrong = [
        f"{source.at(node)} {name}: float"
        for source in sources(*PRODUCT)
        for node, name, annotation in _annotated(source)
        if name.endswith(INTEGER_UNITS) and re.search(r"\bfloat\b", ast.unparse(annotation))
    ]
    assert not wrong, wrong


def _annotated(source: Source) -> Iterator[tuple[ast.AST, str, ast.expr]]:
    for node in source.named(ast.AnnAssign, ast.arg):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name | ast.Attribute):
            name = node.target.id if isinstance(node.target, ast.Name) else node.target.attr
            yield node, name, node.annotation
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node, node.arg, node.annotation


def test_no_path_of_one_persons_machine() -> None:
    """What only exists on the author's machine works nowhere else: work trees, and where this tree lies."""
    private = re.compile(r"(?<![\w.])/(?:wo" + r"rk|Us" + r"ers)/\w+/|" + re.escape(f"{ROOT}/"))
    wrong = [
        f"{path}:{number}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if private.search(line)
    ]
    assert not wrong, wrong
