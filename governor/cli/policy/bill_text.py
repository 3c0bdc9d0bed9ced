"""The bill of `costgov policy replay --recorded`, as tables for people and as lines of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from governor.cli.cost.charges import unpriced_notes
from governor.cli.policy.played import UNKNOWN, table
from governor.core.base.units import NS_PER_S, format_duration, utc_text
from governor.core.money.charges import UNALLOCATED
from governor.core.money.reports.cost import UNALLOCATED_ROW, exact_usd, whole_cents
from governor.replay.bills import HEALTHY, TROUBLED, RecordingFacts, RunBill, after_by_role, known_total, sums_by_rule
from governor.text.screen import Screen, shown_lines
from governor.text.table import Head, plain, render_rows
from trainer_shim.wire import worded

if TYPE_CHECKING:
    from governor.core.base.policy import Policy
    from governor.replay.bills import FirstHalt
    from governor.replay.compare import LabelTally

LEFT_OUT: Final = "What a halt itself costs (its checkpoint, the start of a resume) is not in these figures."
UP_TO: Final = "AFTER: recorded dollars from an attempt's first halt to its end. BEFORE: all other recorded dollars."


@dataclass(frozen=True, slots=True)
class Told:
    """What the command has found. `unreadable`: parts of the ledger that are in no figure."""

    since: int | None
    policies: Sequence[Policy]
    runs: Sequence[RunBill]
    tallies: Sequence[LabelTally]
    unreadable: int

    @property
    def names(self) -> list[str]:
        return [policy.name for policy in self.policies]

    def total(self, amount: Callable[[RunBill], int]) -> int | None:
        """Over all runs, without those of which nobody knows it."""
        return known_total(self.runs, amount)


def comparisons(told: Told) -> list[dict[str, Any]]:
    """A row for each policy, as for logs that are named, with the ledger's dollars instead of those of --price."""
    rows = []
    for tally in told.tallies:
        row, name = tally.row(), tally.policy
        if tally.troubled:
            row["saved_usd_micros"] = after_by_role(told.runs, name, TROUBLED)
        if tally.healthy:
            row["wrongly_cut_usd_micros"] = after_by_role(told.runs, name, HEALTHY)
        rows.append(row)
    return rows


# --- for people


def bill_text(told: Told, screen: Screen) -> str:
    """The runs, the first halts, their rules and the policies: one table each."""
    found = [(run, policy, halts.of_all) for run in told.runs for policy, halts in run.halts.items() if halts.of_all]
    tables = [_runs(told, screen)]
    if found:
        tables += [_halts(found, screen, several=len(told.policies) > 1), _rules(told, screen)]
    else:
        tables += ["no run would have been halted\n"]
    said = [*([UP_TO] if found else []), LEFT_OUT, *_unpriced(told)]
    notes = [line for note in said for line in shown_lines(note, screen)]
    return "\n".join([*tables, table(comparisons(told), screen), "\n".join(notes) + "\n"])


def _runs(told: Told, screen: Screen) -> str:
    heads = [Head("RUN", may_wrap=True), Head("ENDED", may_wrap=True), Head("SPENT", is_number=True)]
    heads += [Head("RECORDED", is_number=True), Head("RECORDING", may_wrap=True)]
    spent = _dollars([_of(run, run.bill.total_usd_micros) for run in told.runs])
    recorded = _dollars([_of(run, run.bill.recorded_usd_micros) for run in told.runs])
    names = [*(_name(run.run) for run in told.runs), "total"]
    endings = [*(plain(run.ending.text) for run in told.runs), ""]
    notes = [*(_lacks(run.recording) for run in told.runs), ""]
    rows = list(zip(names, endings, spent, recorded, notes, strict=True))
    return render_rows(heads, rows, total=True, screen=screen)


def _halts(found: Sequence[tuple[RunBill, str, Sequence[FirstHalt]]], screen: Screen, *, several: bool) -> str:
    heads = [Head("POLICY", may_wrap=True)] if several else []
    heads += [Head("RUN", may_wrap=True), Head("FIRST HALT", may_wrap=True), Head("STEP", is_number=True)]
    heads += [Head("AT"), Head("BEFORE", is_number=True), Head("AFTER", is_number=True)]
    before = _dollars_by([(policy, _of(run, run.before_usd_micros(policy))) for run, policy, _ in found])
    after = _dollars_by([(policy, _of(run, sum(run.after_usd_micros(policy)))) for run, policy, _ in found])
    rows = []
    for (run, policy, halts), spent, saved in zip(found, before, after, strict=True):
        first, more = halts[0].verdict, len(halts) - 1
        rule = _rule(first.rule, first.mode) + (f", {more} more" if more else "")
        step = UNKNOWN if first.step is None else str(first.step)
        cells = [_name(run.run), rule, step, utc_text(halts[0].after.since), spent, saved]
        rows.append([plain(policy), *cells] if several else cells)
    return render_rows(heads, rows, total=False, screen=screen)


def _rules(told: Told, screen: Screen) -> str:
    several = len(told.policies) > 1
    sums = sums_by_rule(told.runs, told.names)
    heads = [Head("POLICY", may_wrap=True)] if several else []
    heads += [Head("RULE", may_wrap=True), Head("HALTS", is_number=True), Head("OF HEALTHY RUNS", is_number=True)]
    heads += [Head("AFTER", is_number=True)]
    after = _dollars_by([(one.policy, one.after_usd_micros if one.is_priced else None) for one in sums])
    rows = []
    for one, saved in zip(sums, after, strict=True):
        cells = [_rule(one.rule, one.mode), str(one.halts), str(one.healthy), saved]
        rows.append([plain(one.policy), *cells] if several else cells)
    return render_rows(heads, rows, total=False, screen=screen)


def _name(run: str) -> str:
    return UNALLOCATED_ROW if run == UNALLOCATED else plain(run)


def _rule(rule: str, mode: str) -> str:
    return plain(rule) if mode == "enforce" else f"{plain(rule)} (observe)"


def _lacks(facts: RecordingFacts | None) -> str:
    """What is not in a recording, or cannot be."""
    if facts is None:
        return UNKNOWN
    parts = [
        "begins late" if facts.begins_late else "",
        f"{facts.gaps} gap{'s' if facts.gaps > 1 else ''}" if facts.gaps else "",
        f"{facts.lines_lost:,} lines lost" if facts.lines_lost else "",
        "cut: too many gaps" if facts.is_cut else "",
        f"clock set by {format_duration(facts.clock_set_ns)}" if facts.clock_set_ns else "",
        "damaged" if facts.problem is not None else "",
        "ends at its halt" if facts.ends_at_halt else "",
    ]
    return "; ".join(part for part in parts if part) or "without gaps"


def _of(run: RunBill, micros: int) -> int | None:
    return micros if run.is_priced else None


def _unpriced(told: Told) -> list[str]:
    """Which runs a "-" is of, and of which more was spent than is here."""
    times = {run.run: run.unpriced_ns for run in told.runs if run.unpriced_ns}
    return unpriced_notes(times, [run.run for run in told.runs if run.is_priced])


def _dollars(micros: Sequence[int | None]) -> list[str]:
    """The rows of a column as $1,234.57, and the total to which they add up. What nobody knows is a "-"."""
    known = [amount for amount in micros if amount is not None]
    cents = whole_cents(known)
    texts = iter(
        [f"{'-' if cent < 0 else ''}${abs(cent) // 100:,}.{abs(cent) % 100:02}" for cent in [*cents, sum(cents)]]
    )
    rows = [UNKNOWN if amount is None else next(texts) for amount in micros]
    return [*rows, next(texts) if known or not micros else UNKNOWN]


def _dollars_by(amounts: Sequence[tuple[str, int | None]]) -> list[str]:
    """The rows of a column of several policies. Those of one policy add up to its sum."""
    shown = {policy: iter(_dollars([amount for its, amount in amounts if its == policy])) for policy in dict(amounts)}
    return [next(shown[policy]) for policy, _ in amounts]


# --- for programs


def bill_lines(told: Told) -> Iterator[str]:
    """A line for each run, then one for each rule, one for each policy, and the sum. Amounts are decimal strings."""
    for run in told.runs:
        yield _json(_run_row(run, told.policies))
    for one in sums_by_rule(told.runs, told.names):
        yield _json({
            "policy": one.policy,
            "rule": one.rule,
            "mode": one.mode,
            "halts": one.halts,
            "healthy": one.healthy,
            "troubled": one.troubled,
            "after_usd": _exact(one.after_usd_micros if one.is_priced else None),
        })  # fmt: skip
    for row in comparisons(told):
        yield _json({"comparison": {**row, **_sums_of(told, row["policy"])}})
    yield _json({
        "sum": {
            "since": None if told.since is None else utc_text(told.since),
            "runs": len(told.runs),
            "recordings": sum(run.recording is not None for run in told.runs),
            "ledger_usd": _exact(told.total(lambda run: run.bill.total_usd_micros)),
            "recorded_usd": _exact(told.total(lambda run: run.bill.recorded_usd_micros)),
            "unrecorded_usd": _exact(told.total(lambda run: run.bill.unrecorded_usd_micros)),
            "unpriced_runs": sum(not run.is_priced for run in told.runs),
            "unreadable": told.unreadable,
        }
    })  # fmt: skip


def _exact(micros: int | None) -> str | None:
    """None: nobody knows it."""
    return None if micros is None else exact_usd(micros)


def _sums_of(told: Told, policy: str) -> dict[str, str | None]:
    return {
        "before_usd": _exact(told.total(lambda run: run.before_usd_micros(policy))),
        "after_usd": _exact(told.total(lambda run: sum(run.after_usd_micros(policy)))),
        "after_enforced_usd": _exact(told.total(lambda run: sum(run.after_usd_micros(policy, enforced=True)))),
    }


def _run_row(run: RunBill, policies: Sequence[Policy]) -> dict[str, Any]:
    facts, bill = run.recording, run.bill
    return {
        "run": run.run,
        "ended": run.ending.text,
        "role": run.ending.role,
        "ledger_usd": _exact(_of(run, bill.total_usd_micros)),
        "recorded_usd": _exact(_of(run, bill.recorded_usd_micros)),
        "unrecorded_usd": _exact(_of(run, bill.unrecorded_usd_micros)),
        "unpriced_s": run.unpriced_ns / NS_PER_S,
        "recording": None if facts is None else {
            "records": facts.records,
            "gaps": facts.gaps,
            "lines_lost": facts.lines_lost,
            "begins_late": facts.begins_late,
            "ends_at_halt": facts.ends_at_halt,
            "is_cut": facts.is_cut,
            "clock_set_s": facts.clock_set_ns / NS_PER_S,
            "problem": facts.problem,
        },
        "policies": [_policy_row(run, policy.name) for policy in policies if policy.name in run.halts],
    }  # fmt: skip


def _policy_row(run: RunBill, policy: str) -> dict[str, Any]:
    after = run.after_usd_micros(policy)
    return {
        "policy": policy,
        "halts": [
            {
                "rule": halt.verdict.rule,
                "mode": halt.verdict.mode,
                "step": halt.verdict.step,
                "t": halt.verdict.t,
                "at": utc_text(halt.after.since),
                "after_usd": _exact(_of(run, spent)),
            }
            for halt, spent in zip(run.halts[policy].of_all, after, strict=True)
        ],
        "before_usd": _exact(_of(run, run.before_usd_micros(policy))),
        "after_usd": _exact(_of(run, sum(after))),
        "after_enforced_usd": _exact(_of(run, sum(run.after_usd_micros(policy, enforced=True)))),
    }


def _json(row: dict[str, Any]) -> str:
    return json.dumps(worded(row), allow_nan=False)
