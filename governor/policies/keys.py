"""Values in policies, and the text of an error in one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from governor.core.base.findings import Response
from governor.core.base.policy import ALL, AT_ONCE, Budget, Mode, Persistence, PersistenceKind, Rule, WarmUp
from governor.core.base.units import parse_count
from governor.core.rules.trigger import Key
from governor.text.table import plain

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # Names become metric labels and incident ids.
_STEPS: Final = re.compile(r"([0-9]+)(?:\s+of\s+([0-9]+))?\s+steps?")
_TOKENS: Final = re.compile(r"(.+?)\s*tokens?")
CHECKPOINTS: Final = ("good", "suspect", "none")
MODES: Final = tuple(mode.value for mode in Mode)
RESPONSES: Final = tuple(response.value for response in Response)
COUNT: Final = Key("", "count", 1, "")
DURATION: Final = Key("", "duration", "1s", "")


class PolicyError(NamedTuple):
    """One error, shown as "file:line: key: message"."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        """One printable line, although the message may repeat what the file says."""
        key = f"{self.key}: " if self.key else ""
        return plain(f"{self.file}:{self.line}: {key}{self.message}")


def parse_for(text: object) -> Persistence:
    """Read a rule's `for`: "3 steps", "3 of 5 steps", "90s", "2M tokens". ValueError says what is accepted."""
    accepted = 'write for example "3 steps", "3 of 5 steps", "90s" or "2M tokens"'
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.40} is not a time to hold; {accepted}")
    steps = _STEPS.fullmatch(text.strip())
    if steps is not None:
        need = int(steps.group(1))
        of = int(steps.group(2) or need)
        # Ten thousand steps take hours. After a restart the rule is blind for as long.
        if not 1 <= need <= of <= 10_000:
            raise ValueError(f'"{text[:40]}" is impossible: it needs 1 <= N <= M <= 10000 in "N of M steps"')
        return Persistence(PersistenceKind.STEPS, need, of)
    tokens = _TOKENS.fullmatch(text.strip())
    try:
        if tokens is not None:
            need = parse_count(tokens.group(1))
            return Persistence(PersistenceKind.TOKENS, need) if need else AT_ONCE
        return Persistence(PersistenceKind.DURATION, DURATION.parse(text))
    except ValueError:
        raise ValueError(f'"{text[:40]}" is not a time to hold; {accepted}') from None


def parse_warmup(text: object) -> WarmUp:
    """Read a rule's `warmup`: "200 steps", "10m", "5M tokens". ValueError says what is accepted."""
    accepted = 'write for example "200 steps", "10m" or "5M tokens"'
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.40} is not a warm-up; {accepted}")
    steps, tokens = _STEPS.fullmatch(text.strip()), _TOKENS.fullmatch(text.strip())
    try:
        if steps is not None and steps.group(2) is None:
            warmup = WarmUp(PersistenceKind.STEPS, parse_count(steps.group(1)))
        elif tokens is not None:
            warmup = WarmUp(PersistenceKind.TOKENS, parse_count(tokens.group(1)))
        else:
            warmup = WarmUp(PersistenceKind.DURATION, DURATION.parse(text))
    except ValueError:
        raise ValueError(f'"{text[:40]}" is not a warm-up; {accepted}') from None
    if warmup.need == 0:
        raise ValueError(f'"{text[:40]}" warms nothing up; leave it out')
    return warmup


def did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else f"; known: {', '.join(known)}"


def alert_rules(budget: Budget, rules: Sequence[Rule], source: str) -> list[Rule]:
    """One warning rule for each fraction of the ceiling in `alert_at`."""
    taken = {rule.name for rule in rules}
    return [
        Rule(
            name=name,
            trigger="budget",
            params={"at_frac": frac},
            persistence=AT_ONCE,
            response=Response.WARN,
            mode=Mode.ENFORCE,
            checkpoint="none",
            source=source,
        )
        for frac in budget.alert_at
        if (name := f"budget-{frac * 100:g}pct") not in taken
    ]


# The tables and keys of a policy, and the hint for an unknown word.


INCLUDE: Final = "include"
POLICY_KEYS: Final = ("name", "mode", "match")
BUDGET_KEYS: Final = ("ceiling_usd", "tokens", "alert_at", "window")
EXPECTED_KEYS: Final = ("usd_per_mtok", "tokens_per_s", "usd_per_mtok_all_in")
HALT_KEYS: Final = (
    *("checkpoint", "grace", "term_grace", "kill_grace", "stop", "destroy", "per_day_max", "wrong_max"),
)
RUN_KEYS: Final = ("on_finish",)
NODE_KEYS: Final = ("idle_stop",)
RULE_KEYS: Final = (
    *("name", "trigger", ALL, "match", "warmup", "for", "cooldown", "response", "mode", "checkpoint", "resume_with"),
)
TABLE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "policy": POLICY_KEYS,
    "budget": BUDGET_KEYS,
    "expected": EXPECTED_KEYS,
    "halt": HALT_KEYS,
    "run": RUN_KEYS,
    "node": NODE_KEYS,
    "rule": RULE_KEYS,
}
TABLES: Final = tuple(TABLE_KEYS)


def hint(word: str, known: Iterable[str]) -> str:
    """The hint for an unknown word: the table it belongs to, a similar word, or all known words."""
    if word == INCLUDE:
        return "; it stands above the first table"
    homes = [f"[[{name}]]" if name == "rule" else f"[{name}]" for name, keys in TABLE_KEYS.items() if word in keys]
    if homes:
        return f"; it is a key of {' or '.join(homes)}"
    if word == "any":
        return f"; any one rule is enough: write a rule for each, and `{ALL}` only for what must fire together"
    return did_you_mean(word, known)
