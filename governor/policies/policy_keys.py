"""Which tables and keys a policy has, and what to say of a word that is none of them where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from governor.core.base.policy import ALL
from governor.policies.policy_values import did_you_mean

INCLUDE: Final = "include"
POLICY_KEYS: Final = ("name", "mode", "match")
BUDGET_KEYS: Final = ("ceiling_usd", "tokens", "alert_at", "window")
EXPECTED_KEYS: Final = ("usd_per_mtok", "tokens_per_s")
HALT_KEYS: Final = ("checkpoint", "grace", "term_grace", "kill_grace", "stop", "destroy", "per_day_max")
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
    """What may have been meant by a word that is not known here: its own place, a word like it, or all that are."""
    if word == INCLUDE:
        return "; it stands above the first table"
    homes = [f"[[{name}]]" if name == "rule" else f"[{name}]" for name, keys in TABLE_KEYS.items() if word in keys]
    if homes:
        return f"; it is a key of {' or '.join(homes)}"
    if word == "any":
        return f"; any one rule is enough: write a rule for each, and `{ALL}` only for what must fire together"
    return did_you_mean(word, known)
