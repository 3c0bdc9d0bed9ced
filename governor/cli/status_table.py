"""`costgov status` for people. Every text from a trainer is made printable first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from governor.core.base.policy import FallBack
from governor.core.base.units import MICROS_PER_USD, NS_PER_S, format_duration, format_usd, per_mtok_text
from governor.reports.terminal import (
    command_ceiling_text,
    is_spent_known,
    loss_text,
    stands_still_text,
    token_prices_text,
    wasted_text,
)
from governor.text.nodes import fleet_notes, live_nodes_text
from governor.text.screen import Screen, Styled, flow, shown_lines
from governor.text.table import Head, fits, plain, render_rows

STALE_AFTER_S: Final = 5.0  # Five beats.
_STYLES: Final = {
    "training": "green",
    "finished": "dim",
    "halted": "bold red",
    "halting": "bold red",
    "unwatched": "bold yellow",
}
_HEADS: Final = (
    Head("RUN", may_wrap=True), Head("STATE"), Head("STEP", True), Head("LOSS", True), Head("TOK/S", True),
    Head("SPENT", True), Head("$/1M NOW", True), Head("RUNWAY", True), Head("RANKS", True), Head("LAST FRAME", True),
)  # fmt: skip
# On a narrow screen, the first one first. What both would show of a run that is not well is said below the table.
_SPARED: Final = ("LAST FRAME", "RANKS")
REFUSED_SHOWN_MAX: Final = 4  # The newest. All that the governor remembers are in --json.
PAD_FRAC_MIN: Final = 0.005  # Less is no news.


def render_status(status: Mapping[str, Any], screen: Screen) -> str:
    """One governor's status as text that ends with a newline."""
    governor, runs = status["governor"], status["runs"]
    lines = flow(_head(governor), screen)
    told = _warnings(governor)
    lines += [line for text in told for line in shown_lines(text, screen)]
    if runs:
        heads, rows = _fitting([_cells(run) for run in runs], screen)
        shown = {head.title for head in heads}
        lines += render_rows(heads, rows, total=False, screen=screen).splitlines()
        notes = [(run, note) for run in runs for note in (*_unshown(run, shown), *_notes(run))]
        told = [Styled(f"{plain(run['run'])}: {note}", note.style) for run, note in notes]
    else:
        told = [Styled("no run yet: add `shim = trainer_shim.attach(engine)` to the training script")]
    told += idle_notes(status.get("node") or {})
    told += [Styled(_unwatched(one), "bold yellow") for one in status.get("unwatched_gpu_processes", [])]
    lines += [line for text in told for line in shown_lines(text, screen)]
    return "\n".join(lines) + "\n"


def who(governor: Mapping[str, Any]) -> str:
    """Which of a node's governors this is. `costgov run` beside a service makes two."""
    name = governor.get("run")
    started = f"costgov run {name}" if name is not None else "service" if "run" in governor else "governor"
    return plain(f"{governor['node']}, {started} (pid {governor.get('pid', '?')})")


def _head(governor: Mapping[str, Any]) -> list[str]:
    mode = plain(governor.get("mode", "?"))
    parts: list[str] = [Styled(who(governor), "bold"), Styled(mode, "yellow" if mode == "observe" else "")]
    price = governor.get("price_usd_per_hour")
    beside = sum(line.get("usd_per_hour") or 0.0 for line in governor.get("lines") or [])
    more = f" + {_usd(beside)}/h beside it" if beside else ""
    if price is None:
        parts.append(Styled(f"price unknown{more}", "yellow"))
    else:
        parts.append(f"{_usd(price)}/h ({plain(governor.get('price_source') or 'source unknown')}){more}")
    names = governor.get("policies") or []
    return [*parts, f"policies: {', '.join(plain(name) for name in names) or 'none'}"]


def _fallen(row: Mapping[str, Any]) -> FallBack:
    return FallBack(row["policy"], row["rule"], row.get("owner_uid"), tuple(row["incidents"]), row["wrong_max"])


def _warnings(governor: Mapping[str, Any]) -> list[Styled]:
    cloud = governor.get("cloud") or {}
    lines = []
    if cloud.get("will"):
        billed = "; ".join(plain(item) for item in cloud.get("stays_billed", [])) or "nothing that is known"
        lines.append(Styled(f"on halt: {plain(cloud['will'])}; stays billed: {billed}", "dim"))
    problems = [*cloud.get("problems", []), *governor.get("alerts", {}).get("problems", [])]
    lines += [Styled(f"problem: {plain(problem)}", "bold red") for problem in problems]
    lines += [
        Styled(f"self-test failed: {plain(test['line'])}", "bold red")
        for test in governor.get("selftest", [])
        if not test["ok"]
    ]
    lines += fleet_notes(governor.get("fleet"))
    if governor.get("gpus_unread"):
        lines.append(Styled(f"no GPU figures: {plain(governor['gpus_unread'])}", "bold yellow"))
    remarks = (governor.get("price") or {}).get("remarks", [])
    lines += [Styled(f"price: {plain(remark['text'])}", "bold yellow") for remark in remarks if remark["alarm"]]
    lines += [
        Styled(f"fallen back: {plain(_fallen(one).text)}", "bold yellow") for one in governor.get("fallen_back") or []
    ]
    if not governor.get("last_reload_ok", True):
        lines.append(Styled(f"the last reload was refused: {plain(governor.get('reload_error') or '?')}", "bold red"))
    lines += [
        Styled(f"not watched: pid {one['pid']} of uid {one['uid']}, {plain(str(one['reason']))}", "bold yellow")
        for one in governor.get("refused", [])[-REFUSED_SHOWN_MAX:]
    ]
    for key, what in (
        ("journal_errors_total", "journal writes failed"),
        ("observer_errors_total", "calls of console, reports or metrics failed"),
        ("frames_malformed_total", "frames malformed"),
        ("request_errors_total", "requests failed by a fault of the governor's own"),
    ):
        if governor.get(key):
            lines.append(Styled(f"{plain(governor[key])} {what}", "yellow"))
    return lines


def _cells(run: Mapping[str, Any]) -> tuple[str, ...]:
    state = plain(run["state"])
    halt = run.get("halt")
    return (
        plain(run["run"]),
        Styled(f"{state} {plain(halt['stage'])}" if halt and state == "halting" else state, _STYLES.get(state, "")),
        _count(run.get("step")) + (f"/{run['total_steps']:,}" if run.get("total_steps") else ""),
        loss_text(run.get("loss")),
        _count(run.get("tokens_per_s")),
        _spent(run),
        _usd(run.get("usd_per_mtok")),  # Shorter than elsewhere: a row has to fit into 80 columns.
        _seconds(run.get("runway_s")),
        "-" if _is_unannounced(run) else f"{run['ranks_connected']}/{run['world_size']}",
        _age(run),
    )


def _fitting(rows: Sequence[Sequence[str]], screen: Screen) -> tuple[Sequence[Head], Sequence[Sequence[str]]]:
    """On a narrow screen with fewer columns, rather than with a second line in each row; then with a name in parts."""
    for may_wrap in (False, True):
        for count in range(len(_SPARED) + 1):
            places = [place for place, head in enumerate(_HEADS) if head.title not in _SPARED[:count]]
            heads, cut = [_HEADS[place] for place in places], [[row[place] for place in places] for row in rows]
            if fits([head if may_wrap else head._replace(may_wrap=False) for head in heads], cut, screen):
                return heads, cut
    return _HEADS, rows


def _unshown(run: Mapping[str, Any], shown: Collection[str]) -> list[Styled]:
    """What a column would have shown in colour, or as less than it should be."""
    notes = []
    is_known = run["state"] not in ("finished", "halted") and not _is_unannounced(run)
    if "RANKS" not in shown and run["ranks_connected"] < run["world_size"] and is_known:
        notes.append(Styled(f"{run['ranks_connected']} of {run['world_size']} ranks are connected", "yellow"))
    age = _age(run)
    if "LAST FRAME" not in shown and age.style:
        notes.append(Styled(f"its last frame came {age} ago", age.style))
    return notes


def _is_unannounced(run: Mapping[str, Any]) -> bool:
    """Whether nobody has said yet how many ranks there are."""
    return run["ranks_connected"] == 0 and run.get("last_frame_age_s") is None


def _notes(run: Mapping[str, Any]) -> list[Styled]:
    paced = _pace(run) or token_prices_text(run)
    notes = [Styled(line) for line in (*_ahead(run), *paced, *wasted_text(run), *_padding(run))]
    if run.get("saves") and run["state"] not in ("finished", "halted"):
        notes.append(Styled(_saves(run["saves"])))
    notes += [Styled(plain(text)) for text in command_ceiling_text(run)]
    notes += [Styled(text, "bold yellow" if "SILENT" in text else "") for text in live_nodes_text(run)]
    notes += _bound_by_a_group(run)
    if run.get("paid_by") is not None and not is_spent_known(run):
        beside = "beside which this run is watched" if run.get("is_strangers") else "which writes this log too"
        notes.append(Styled(f"{plain(run['paid_by'])} pays for the command, {beside}"))
    notes += _ceiling_first(run)
    if run.get("mode") == "observe":
        text = f'policy "{plain(run["policy"])}" only observes: it would be recorded, not halted'
        notes.append(Styled(text, "yellow"))
    if run.get("halt"):
        halt = run["halt"]
        text = f"{plain(halt['reason'])}; costgov incident show {plain(halt['incident_id'])}"
        notes.append(Styled(text, "bold red"))
    if run.get("end") and not run.get("halt"):
        notes.append(Styled(plain(run["end"]["text"]), "bold red"))
    if run.get("raised"):
        notes.append(Styled(plain(run["raised"]), "bold red"))
    if run.get("hold"):
        hold = run["hold"]
        text = f"held for another {_seconds(hold['left_s'])}, no rule halts it: {plain(hold['reason'])}"
        notes.append(Styled(text, "bold yellow"))
    if (still := stands_still_text(run)) is not None:
        notes.append(Styled(still, "yellow"))
    if run.get("loss_unseen_steps"):
        text = f"no loss is seen in {run['loss_unseen_steps']:,} steps: rules that need one cannot judge it"
        notes.append(Styled(text, "bold yellow"))
    if run.get("unwatched_beside"):
        text = f"{plain(run['unwatched_beside'])} trains beside it in the same process, UNWATCHED"
        notes.append(Styled(text, "bold yellow"))
    for finding in run.get("findings", []):
        if finding["reading"] == "firing":
            text = f'rule "{plain(finding["rule"])}" sees: {plain(finding["text"] or finding["reason"])}'
            notes.append(Styled(text, "red"))
    return notes


def _bound_by_a_group(run: Mapping[str, Any]) -> list[Styled]:
    """The ceiling of the run's stage, label, day or node, if it binds before the run's own."""
    cap = run.get("binding")
    if cap is None or cap["scope"].startswith("run:"):
        return []
    used = f"{_usd(cap['spend_usd'])} of {_usd(cap['ceiling_usd'])}"
    met = f", met {_ceiling(run)}" if run.get("ceiling_in_s") is not None else ""
    return [Styled(f"{plain(cap['scope'])} binds: {used} spent by all of it{met}")]


def _ahead(run: Mapping[str, Any]) -> list[str]:
    """What is left. Empty for a run without a goal, or without a known speed."""
    hours, dollars = run.get("hours_left"), run.get("cost_left_usd")
    if hours is None or run["state"] in ("finished", "halted"):
        return []
    parts = [_interval(hours, lambda value: _seconds(value * 3600))]
    if dollars is not None:
        parts.append(_interval(dollars, _usd))
    wasted = f"; {_count(run['tokens_wasted'])} tokens trained twice" if run.get("tokens_wasted") else ""
    return [f"{' and '.join(parts)} left to {_count(run['tokens_goal'])} tokens{wasted}"]


def _pace(run: Mapping[str, Any]) -> list[str]:
    """The last window and the whole run against the expected values. Empty without expected values."""
    window = run.get("window")
    if window is None or (run.get("drift_frac") is None and run.get("burn_rate") is None):
        return []
    tokens, speed = window["to_tokens"] - window["from_tokens"], window.get("tokens_per_s")
    parts = [f"the last {_count(tokens)} tokens took {_seconds(window['duration_s'])}"]
    if speed is not None:
        planned = run.get("expected_tokens_per_s")
        parts.append(f"{_count(speed)} tokens/s" + (f" of {_count(planned)} expected" if planned is not None else ""))
    if window.get("usd_per_mtok") is not None:
        parts.append(f"{_per_mtok(window['usd_per_mtok'])}/1M now")
    # A planned price has no start of an attempt, so only the steady one stands beside it. What the run has is told of
    # it alone: a line with two of each would leave open which is which.
    of_window = {name: window.get(name) for name in _AGAINST if run.get(name) is None}
    parts += _steady(window, run) if "drift_frac" in of_window else []
    so_far = [*_steady(run, run), *_against(run)]
    if run.get("drift_all_in_frac") is not None:
        so_far = [f"all-in drift {100 * run['drift_all_in_frac']:+.1f}%", *so_far]
    so_far = [*token_prices_text(run), *so_far]
    return [f"{', '.join([*parts, *_against(of_window)])}; the run so far: {', '.join(so_far)}"]


def _padding(run: Mapping[str, Any]) -> list[str]:
    """How much is padding. Empty where nothing tells it, and below one in two hundred."""
    padded = run.get("pad_frac") or 0.0
    return [f"pad {100 * padded:.0f}%: so much of its tokens is padding"] if padded >= PAD_FRAC_MIN else []


_AGAINST: Final = ("drift_frac", "burn_rate")


def _steady(figures: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    planned, steady = run.get("expected_usd_per_mtok"), figures.get("usd_per_mtok_steady")
    if planned is None or steady is None:
        return []
    return [f"{_per_mtok(steady)} steady of {_per_mtok(planned)} expected"]


def _against(figures: Mapping[str, Any]) -> list[str]:
    drift, burnt = figures.get("drift_frac"), figures.get("burn_rate")
    told = [f"drift {100 * drift:+.1f}%"] if drift is not None else []
    return [*told, f"burn rate {burnt:.2f}"] if burnt is not None else told


def _saves(saves: Mapping[str, Any]) -> str:
    """Measured and assumed save times, and the resulting advice."""
    gain = saves.get("saved_usd_per_hour")
    cost = "" if gain is None else f", {_usd(gain)}/h less than now"
    return (
        f"saves for {_seconds(saves['save_s'])} every {_seconds(saves['interval_s'])}; with a failure every "
        f"{_seconds(saves['mtbf_s'])} (assumed from Llama 3's) saving every {_seconds(saves['best_interval_s'])} "
        f"would lose least{cost}"
    )


def _interval(values: Sequence[float | None], told: Callable[[float], str]) -> str:
    low, middle, high = values
    if middle is None:
        raise ValueError("a forecast without a middle")
    if low is None or high is None or told(low) == told(high):
        return told(middle)
    return f"{told(middle)} ({told(low)} to {told(high)})"


def _ceiling(run: Mapping[str, Any]) -> str:
    tokens, seconds = run.get("ceiling_at_tokens"), run["ceiling_in_s"]
    # Null, and absent from a governor of before.
    earliest, latest = run.get("ceiling_between_s") or (None, None)
    fewest, most = run.get("ceiling_between_tokens") or (None, None)
    met = f"in {_interval((earliest, seconds, latest), _seconds)}"
    return met + (f", at {_interval((fewest, tokens, most), _count)} tokens" if tokens is not None else "")


def _ceiling_first(run: Mapping[str, Any]) -> list[Styled]:
    """Whether the ceiling comes before the goal: it does, or the goal lies inside the interval."""
    verb, goal = "is", run.get("tokens_goal")
    if not run.get("ceiling_before_end"):
        fewest, most = run.get("ceiling_between_tokens") or (None, None)
        if goal is None or fewest is None or most is None or not fewest < goal <= most:
            return []
        verb = "may be"
    return [Styled(f"at this rate the ceiling {verb} met first, {_ceiling(run)}", "yellow")]


def _unwatched(process: Mapping[str, Any]) -> str:
    price = process.get("usd_per_hour")
    cost = f"{_usd(price)}/h" if price is not None else "price unknown"
    return f"UNWATCHED: pid {process['pid']} holds GPU {plain(process['gpu'])} ({cost}); nothing judges it"


def _spent(run: Mapping[str, Any]) -> str:
    if not is_spent_known(run):
        return "?" if run.get("paid_by") is None else "-"
    spent = _usd(run["spend_usd"])
    return f"{spent} of {_usd(run['ceiling_usd'])}" if run.get("ceiling_usd") is not None else spent


def _age(run: Mapping[str, Any]) -> Styled:
    age_s = run.get("last_frame_age_s")
    if age_s is None:
        return Styled("-")
    is_old = age_s > STALE_AFTER_S and run["state"] not in ("finished", "halted")
    return Styled(_seconds(age_s), "yellow" if is_old else "")


# --- an unused node: since when, what follows, and how to keep it


def idle_notes(node: Mapping[str, Any]) -> list[Styled]:
    """Lines about an idle node. Empty while nothing would stop it, because idle time is then no news."""
    notes = []
    if node.get("stop"):
        stop = node["stop"]
        text = f"node: being stopped, {plain(stop['stage'])}; costgov incident show {plain(stop['incident_id'])}"
        notes.append(Styled(text, "bold red"))
    if node.get("hold"):
        hold = node["hold"]
        text = f"node: kept for another {_seconds(hold['left_s'])} by an operator: {plain(hold['reason'])}"
        notes.append(Styled(text, "bold yellow"))
    if node.get("limit_s") is None or node.get("here") or node.get("stop"):
        return notes
    if node.get("unseen"):
        text = f"node: no run is here, but nobody can tell who else is: {plain(node['unseen'])}"
        return [*notes, Styled(text, "yellow")]
    if node.get("idle_s") is None:
        return notes
    return [*notes, Styled(f"node: idle for {_seconds(node['idle_s'])}, {_follows(node)}", "yellow")]


def _follows(node: Mapping[str, Any]) -> str:
    after = f"after {_seconds(node['limit_s'])} ({plain(node['limit_by'])})"
    if node.get("obstacle"):
        return f"and it is not stopped {after}: {plain(node['obstacle'])}"
    if node.get("observed"):
        return f"and would be stopped {after}; observe mode only says so"
    if node.get("stops_in_s") is None:
        return f"stops {after}"
    return f"stops in {_seconds(node['stops_in_s'])} ({plain(node['limit_by'])}); {plain(node['keep_it'])}"


# --- figures


def _usd(amount: float | None) -> str:
    return "-" if amount is None else format_usd(round(amount * MICROS_PER_USD))


def _per_mtok(dollars: float) -> str:
    return per_mtok_text(round(dollars * MICROS_PER_USD))


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_duration(round(value * NS_PER_S))
