"""What a run has in its next attempt too, and would be halted for again at once: what its resume needs."""

from __future__ import annotations

from typing import Any, Final

from governor.core.base.units import NS_PER_S, format_duration
from governor.core.rules.triggers.budget import TOKENS_REACHED
from governor.core.rules.triggers.gate import ABOVE
from governor.text.moments import Snapshot
from governor.text.table import plain

# Variables of expressions that begin no new count with an attempt.
_LASTING: Final = frozenset({"age_s", "spend_usd", "step", "tokens", "usd_per_mtok_all_in", "usd_per_mtok_useful"})


def lasting_need(snapshot: Snapshot) -> str | None:
    """None for all that an attempt leaves behind. Ceilings, and gates that compare with one, are not asked for here."""
    trigger, reason, evidence = snapshot.get("trigger"), snapshot.get("reason"), snapshot.get("evidence") or {}
    match trigger, reason:
        case "budget", _ if reason == TOKENS_REACHED:
            return _goal(evidence)
        case "gate", _ if reason == ABOVE and evidence.get("ceiling_usd_micros") is None:
            return "a plan ([expected]) that allows for where it lands, or no gate: else its gate halts it again"
        case "runtime", "run_overdue":
            return _age(evidence)
        case "restart_loop", _:
            return (
                "another --name, or a wait until its attempts are older than `within` of the rule: it would be one "
                "more without progress, and be halted as it begins"
            )
        case "expression", _ if evidence and _LASTING.issuperset(evidence.keys() - {"resume_with"}):
            figures = ", ".join(f"{name} {plain(str(evidence[name]))}" for name in evidence if name != "resume_with")
            return f"a rule that allows for {figures}: an attempt begins with these, and would be halted again"
    return None


def _goal(evidence: dict[str, Any]) -> str | None:
    trained = [count for count in (evidence.get("tokens_total"), evidence.get("tokens")) if isinstance(count, int)]
    if not trained:
        return None
    return f"a goal above {max(trained):,} tokens ([budget] tokens): it has trained these, and would be halted again"


def _age(evidence: dict[str, Any]) -> str:
    age_s = evidence.get("age_s")
    known = f" than {format_duration(round(age_s * NS_PER_S))}" if isinstance(age_s, (int, float)) else ""
    return f"a longer `run` of the rule{known}, or another --name: its age goes on from there, and would halt it again"
