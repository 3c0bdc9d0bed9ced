"""`costgov policy test FILES`: users' own tests of their policies, played through the daemon's rules.

A case passes when everything that it expects happens, and nothing that it rules out does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import ndiff
from pathlib import Path
from typing import Final

from governor.core.base.findings import Finding
from governor.core.base.policy import NO_POLICY, Policy, PolicySet
from governor.core.rules.evaluate import NOT_JUDGED
from governor.policies.files import PolicyUnreadable, policy_texts
from governor.policies.keys import PolicyError, did_you_mean
from governor.policies.parse import load_policies
from governor.timeline.cases import Case, Expected, Rules, read_cases
from governor.timeline.entries import Decided, Entry, clock, difference
from governor.timeline.halt_player import HaltPlayer
from governor.timeline.player import Player
from governor.timeline.series import SeriesError, play
from governor.wire.toml_file import read_bounded

TESTS_BYTES_MAX: Final = 4 * 1024 * 1024  # Ten thousand cases. A larger file is a wrong path.
_HEAD: Final = '[policy]\nname = "tested"\n'  # The head for rules that are in the test itself.


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a case. It passes without problems."""

    file: str
    line: int
    name: str
    problems: tuple[str, ...]
    verdicts: tuple[str, ...]
    halt: tuple[str, ...] = ()  # The timeline of its halts, where they were played.

    @property
    def ok(self) -> bool:
        return not self.problems


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The test files of these paths. A directory stands for its *.toml in order, or for itself if it has none."""
    return [file for path in paths for file in (sorted(path.glob("*.toml")) if os.path.isdir(path) else ()) or (path,)]


def run_file(path: Path, only: str = "") -> tuple[list[Outcome], list[str]]:
    """Play the cases of a file whose name contains `only`. With errors, one line each, no case is played."""
    try:
        data = read_bounded(path, TESTS_BYTES_MAX)
        text = data.decode()
    except OSError as error:
        return [], [f"{path}: {error.strerror}; name a file of tests"]
    except UnicodeDecodeError as error:
        return [], [f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8"]
    if len(data) > TESTS_BYTES_MAX:
        return [], [f"{path}: larger than {TESTS_BYTES_MAX} bytes; this is no file of tests"]
    cases, errors = read_cases(str(path), text)
    lines = [str(error) for error in errors]
    outcomes = []
    loaded: dict[Rules, tuple[PolicySet | None, list[str]]] = {}
    for case in cases:
        if only not in case.name:
            continue
        if case.rules not in loaded:
            loaded[case.rules] = loaded_for(case)
            lines.extend(loaded[case.rules][1])
        policies = loaded[case.rules][0]
        if policies is not None:
            outcomes.append(run_case(case, policies))
    return outcomes, lines


def run_case(case: Case, policies: PolicySet) -> Outcome:
    policy = _policy(case, policies)
    if policy is NO_POLICY:
        return _outcome(case, ["none of its policies takes a run with these labels and this stage"], ())
    unknown = _unknown_rules(case, policy)
    if unknown:
        return _outcome(case, unknown, ())
    player = _player(case, policy)
    for line in case.series:
        try:
            play(player, line.text)
        except SeriesError as error:
            return _outcome(case, [f"{case.file}:{line.number}: {line.text.strip()}: {error}"], player.verdicts)
    series_end = player.now
    if isinstance(player, HaltPlayer):
        player.finish()
    halt = player.halt_entries() if isinstance(player, HaltPlayer) else []
    problems = [
        *_verdicts_differ(case, player),
        *(text for expected in case.findings if (text := _finding_differs(expected, player, series_end))),
        *_readings_differ(case, player),
        *_halt_differs(case, halt),
    ]
    return _outcome(case, problems, player.verdicts, halt)


def _player(case: Case, policy: Policy) -> Player:
    return (HaltPlayer if case.plays_halts else Player)(
        policy, case.ranks, case.world_size, log=case.log, stage=case.stage, labels=case.labels,
        recorded={expected.rule for expected in case.findings},
    )  # fmt: skip


def _outcome(
    case: Case, problems: Sequence[str], verdicts: Sequence[Decided], halt: Sequence[Entry] = ()
) -> Outcome:  # fmt: skip
    told, entries = tuple(map(str, verdicts)), tuple(map(str, halt))
    return Outcome(case.file, case.line, case.name, tuple(problems), told, entries)


def _policy(case: Case, policies: PolicySet) -> Policy:
    """The policy of a case: the only policy, whatever it matches; of several, the one that the daemon would choose."""
    if len(policies.policies) == 1:
        return policies.policies[0]
    return policies.for_run(case.labels, case.stage)


def _unknown_rules(case: Case, policy: Policy) -> list[str]:
    """Expectations about rules that the policy does not have. They would never fail, or always."""
    known = [rule.name for rule in policy.rules]
    named = [*(one.rule for one in case.verdicts or ()), *(one.rule for one in case.findings), *case.readings]
    return [
        f'policy "{policy.name}" has no rule "{rule}"{did_you_mean(rule, known)}'
        for rule in dict.fromkeys(named)
        if rule not in known
    ]


def _verdicts_differ(case: Case, player: Player) -> list[str]:
    if case.verdicts is None:
        return []
    expected = [_completed(one, player.verdicts) for one in case.verdicts]
    if expected == player.verdicts:
        return []
    lines = ndiff([str(one) for one in expected], [str(one) for one in player.verdicts])
    shown = [line for line in lines if not line.startswith("?")]
    return ["verdicts (- expected, + came):", *(f"  {line}" for line in shown)]


def _completed(expected: Decided, came: Sequence[Decided]) -> Decided:
    """An expectation with its open fields filled from the verdict that came."""
    if expected.acts:
        return expected
    return next((one for one in came if one[:3] == expected[:3]), expected)


def _halt_differs(case: Case, came: Sequence[Entry]) -> list[str]:
    lines = difference(case.halt, came) if case.halt is not None else []
    return ["halt (- expected, + came):", *(f"  {line}" for line in lines)] if lines else []


def _finding_differs(expected: Expected, player: Player, series_end: int) -> str | None:
    at = clock(expected.at_ns)
    if expected.at_ns > series_end:
        return f"findings: the series ends at {clock(series_end)}, before {at}"
    before = [finding for since, finding in player.history[expected.rule] if since <= expected.at_ns]
    finding = before[-1] if before else NOT_JUDGED
    if finding.reading is expected.reading and expected.reason in ("", finding.reason):
        return None
    wanted = f"{expected.reading.value} {expected.reason}".strip()
    return f"findings: at {at} {expected.rule} should be {wanted} and is {_said(finding)}"


def _readings_differ(case: Case, player: Player) -> list[str]:
    findings = player.findings()
    last = {rule: findings.get(rule, NOT_JUDGED) for rule in case.readings}
    return [
        f"readings: at the end {rule} should be {wanted} and is {_said(last[rule])}"
        for rule, wanted in case.readings.items()
        if last[rule].reading.value != wanted
    ]


def _said(finding: Finding) -> str:
    text = f": {finding.text}" if finding.text else ""
    return f"{finding.reading.value} {finding.reason}".strip() + text


def loaded_for(case: Case) -> tuple[PolicySet | None, list[str]]:
    """The policies of a case: from files beside the test, or from its own text.

    Errors in that text name the test's lines.
    """
    path, rules = Path(case.file), case.rules
    if not rules.files:
        headless = "[policy]" not in rules.text
        policies, errors = load_policies([(str(path), _HEAD + rules.text if headless else rules.text)])
        return policies, [str(_moved(error, rules.line - (2 if headless else 0))) for error in errors]
    where = f"{path}:{rules.line}"
    try:
        texts = policy_texts([path.parent / file for file in rules.files])
    except PolicyUnreadable as error:
        return None, [f"{where}: policy: {problem}" for problem in error.problems]
    if not texts:
        return None, [f"{where}: policy: holds no *.toml"]
    policies, errors = load_policies(texts)
    return policies, [str(error) for error in errors]


def _moved(error: PolicyError, lines: int) -> PolicyError:
    """An error in text that begins this many lines below the file's first line."""
    return error._replace(line=error.line + lines)
