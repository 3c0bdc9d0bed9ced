"""What must hold of how governors ask the store: one at a time, and ever less often while it is silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.core.base.units import NS_PER_S
from governor.core.events.fleet_store import Answer, AskStore
from governor.core.fleet.scopes import GRANT_ROWS

if TYPE_CHECKING:
    from tests.sim.fleet.judge import Judge

FAILURES_FEW = 4  # A governor may be quick to ask again so often.
PATIENT_NS = 5 * NS_PER_S


class Asks:
    """By the start of a governor, and by the row of the grant that an ask would change. A read is one for all."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self._under_way: set[tuple[str, str]] = set()
        self._silent: dict[tuple[str, str], tuple[int, int]] = {}  # Failures one after another, and when the last was.

    def sent(self, instance: str, ask: AskStore) -> None:
        what = instance, _row(ask)
        self.judge.demand(what not in self._under_way, f"asked again, and not answered yet: {what}")
        self._under_way.add(what)
        failures, at = self._silent.get(what, (0, 0))
        is_early = failures >= FAILURES_FEW and self.judge.world.now - at < PATIENT_NS
        self.judge.demand(not is_early, f"asked again at once after {failures} failures: {what}")

    def answered(self, instance: str, ask: AskStore, answer: Answer) -> None:
        what = instance, _row(ask)
        self._under_way.discard(what)
        if ask.transaction is None or answer in (Answer.APPLIED, Answer.CONFLICT):
            self._silent.pop(what, None)
        else:
            self._silent[what] = self._silent.get(what, (0, 0))[0] + 1, self.judge.world.now


def _row(ask: AskStore) -> str:
    if ask.transaction is None:
        return "read"
    return next(key for key, _ in ask.transaction.compares if key.startswith(GRANT_ROWS))
