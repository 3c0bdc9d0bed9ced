"""What `costgov status` says of a node that nobody uses: since when, what follows, and how to keep it."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from governor.core.base.units import MICROS_PER_USD, NS_PER_S, format_duration, format_usd
from governor.reports.terminal import loss_text
from governor.text.table import COLUMNS_WITHOUT_TERMINAL, GAP, fitting, plain


def idle_notes(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines with their style. None while nothing would stop the node: then idle time is no news."""
    notes = []
    if node.get("stop"):
        stop = node["stop"]
        notes.append(
            (f"node: being stopped, {stop['stage']}; costgov incident show {plain(stop['incident_id'])}", "bold red")
        )
    if node.get("hold"):
        hold = node["hold"]
        notes.append(
            (f"node: kept for another {_span(hold['left_s'])} by an operator: {plain(hold['reason'])}", "bold yellow")
        )
    if node.get("limit_s") is None or node.get("here") or node.get("stop"):
        return notes
    if node.get("unseen"):
        return [*notes, (f"node: no run is here, but nobody can tell who else is: {plain(node['unseen'])}", "yellow")]
    if node.get("idle_s") is None:
        return notes
    return [*notes, (f"node: idle for {_span(node['idle_s'])}, {_follows(node)}", "yellow")]


def _follows(node: Mapping[str, Any]) -> str:
    after = f"after {_span(node['limit_s'])} ({plain(node['limit_by'])})"
    if node.get("obstacle"):
        return f"and it is not stopped {after}: {plain(node['obstacle'])}"
    if node.get("observed"):
        return f"and would be stopped {after}; observe mode only says so"
    if node.get("stops_in_s") is None:
        return f"stops {after}"
    return f"stops in {_span(node['stops_in_s'])} ({plain(node['limit_by'])}); {plain(node['keep_it'])}"


def _span(seconds: float) -> str:
    return format_duration(round(seconds * NS_PER_S))


# `costgov status` as a person reads it. Every text from a trainer is made printable first.


STALE_AFTER_S: Final = 5.0  # Five beats.
_STYLES: Final = {
    "training": "green",
    "finished": "dim",
    "halted": "bold red",
    "halting": "bold red",
    "unwatched": "bold yellow",
}


def print_status(status: Mapping[str, Any]) -> None:
    """Print one governor's status to stdout, in colour where that is a terminal."""
    sys.stdout.write(render_status(status, colour=sys.stdout.isatty()))


def render_status(status: Mapping[str, Any], *, colour: bool) -> str:
    """Return the status as text that ends with a newline."""
    return _printed(lambda console: _draw_status(console, status), colour)


def _draw_status(console: Console, status: Mapping[str, Any]) -> None:
    governor = status["governor"]
    console.print(_head(governor))
    for line, style in _warnings(governor):
        console.print(Text(line, style=style))
    if status["runs"]:
        _draw_runs(console, status["runs"])
        for run in status["runs"]:
            for line, style in _notes(run):
                console.print(Text(f"{plain(run['run'])}: {line}", style=style))
    else:
        console.print("no run yet: add `shim = trainer_shim.attach(engine)` to the training script")
    for line, style in idle_notes(status.get("node") or {}):
        console.print(Text(line, style=style))
    for process in status.get("unwatched_gpu_processes", []):
        console.print(Text(_unwatched(process), style="bold yellow"))


def _printed(draw: Callable[[Console], None], colour: bool) -> str:
    stream = io.StringIO()
    width = shutil.get_terminal_size((COLUMNS_WITHOUT_TERMINAL, 50)).columns if colour else COLUMNS_WITHOUT_TERMINAL
    draw(Console(file=stream, width=width, force_terminal=colour, highlight=False, markup=False, emoji=False))
    lines = stream.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def who(governor: Mapping[str, Any]) -> str:
    """Which of a node's governors this is: `costgov run` beside a service makes two of them."""
    name = governor.get("run")
    started = f"costgov run {name}" if name is not None else "service" if "run" in governor else "governor"
    return plain(f"{governor['node']}, {started} (pid {governor.get('pid', '?')})")


def _head(governor: Mapping[str, Any]) -> Text:
    text = Text(who(governor), style="bold")
    mode = governor.get("mode", "?")
    text.append(f"  {mode}", style="yellow" if mode == "observe" else "")
    price = governor.get("price_usd_per_hour")
    if price is None:
        text.append("  price unknown", style="yellow")
    else:
        text.append(f"  {_usd(price)}/h ({plain(governor.get('price_source') or 'source unknown')})", style="")
    beside = sum(line.get("usd_per_hour") or 0.0 for line in governor.get("lines") or [])
    if beside:
        text.append(f" + {_usd(beside)}/h beside it", style="")
    names = governor.get("policies") or []
    text.append(f"  policies: {', '.join(plain(name) for name in names) or 'none'}", style="")
    return text


def _warnings(governor: Mapping[str, Any]) -> list[tuple[str, str]]:
    cloud = governor.get("cloud") or {}
    lines = []
    if cloud.get("will"):
        billed = "; ".join(plain(item) for item in cloud.get("stays_billed", [])) or "nothing that is known"
        lines.append((f"on halt: {plain(cloud['will'])}; stays billed: {billed}", "dim"))
    problems = [*cloud.get("problems", []), *governor.get("alerts", {}).get("problems", [])]
    lines += [(f"problem: {plain(problem)}", "bold red") for problem in problems]
    lines += [
        (f"self-test failed: {plain(test['line'])}", "bold red")
        for test in governor.get("selftest", [])
        if not test["ok"]
    ]
    remarks = (governor.get("price") or {}).get("remarks", [])
    lines += [(f"price: {plain(remark['text'])}", "bold yellow") for remark in remarks if remark["alarm"]]
    if not governor.get("last_reload_ok", True):
        lines.append((f"the last reload was refused: {plain(governor.get('reload_error') or '?')}", "bold red"))
    for key, what in (
        ("journal_errors_total", "journal writes failed"),
        ("observer_errors_total", "calls of console, reports or metrics failed"),
        ("frames_malformed_total", "frames malformed"),
    ):
        if governor.get(key):
            lines.append((f"{governor[key]} {what}", "yellow"))
    return lines


_COLUMNS: Final = ("RUN", "STATE", "STEP", "LOSS", "TOK/S", "SPENT", "$/1M TOK", "RUNWAY", "RANKS", "LAST FRAME")


def _draw_runs(console: Console, runs: list[Mapping[str, Any]]) -> None:
    """A row each, or, where that would cut more than a name, a line for each of its cells below the name."""
    rows = [_cells(run) for run in runs]
    may_be_cut = [console.is_terminal and title == "RUN" for title in _COLUMNS]
    widths = fitting([_COLUMNS, *([str(cell) for cell in row] for row in rows)], may_be_cut, console.width)
    needed = sum(widths) + GAP * (len(widths) - 1)
    if console.is_terminal and needed > console.width:
        for name, *cells in rows:
            console.print(Text(str(name), style="bold"))
            for title, cell in zip(_COLUMNS[1:], cells, strict=True):
                console.print(Text(f"  {title}: ").append(cell))
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for title, width in zip(_COLUMNS, widths, strict=True):
        side: Literal["left", "right"] = "left" if title in ("RUN", "STATE") else "right"
        table.add_column(title, justify=side, no_wrap=True, width=width)
    for row in rows:
        table.add_row(*row)
    console.width = max(console.width, needed + GAP)
    console.print(table)


def _cells(run: Mapping[str, Any]) -> tuple[Text | str, ...]:
    state = plain(run["state"])
    halt = run.get("halt")
    return (
        Text(plain(run["run"])),
        Text(f"{state} {halt['stage']}" if halt and state == "halting" else state, style=_STYLES.get(state, "")),
        _count(run["step"]) + (f"/{run['total_steps']:,}" if run.get("total_steps") else ""),
        loss_text(run.get("loss")),
        _count(run.get("tokens_per_s")),
        _spent(run),
        _usd(run.get("usd_per_mtok")),
        _seconds(run.get("runway_s")),
        f"{run['ranks_connected']}/{run['world_size']}",
        _age(run),
    )


def _notes(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    notes = [(line, "") for line in _ahead(run)]
    notes += [(line, "") for line in _pace(run)]
    if run.get("saves") and run["state"] not in ("finished", "halted"):
        notes.append((_saves(run["saves"]), ""))
    notes += _bound_by_a_group(run)
    if run.get("ceiling_before_end"):
        notes.append((f"at this rate the ceiling is met first, {_ceiling(run)}", "yellow"))
    if run.get("mode") == "observe":
        notes.append((f'policy "{plain(run["policy"])}" only observes: it would be recorded, not halted', "yellow"))
    if run.get("halt"):
        halt = run["halt"]
        notes.append((f"{plain(halt['reason'])}; costgov incident show {plain(halt['incident_id'])}", "bold red"))
    if run.get("hold"):
        hold = run["hold"]
        left = _seconds(hold["left_s"])
        notes.append((f"held for another {left}, no rule halts it: {plain(hold['reason'])}", "bold yellow"))
    for finding in run.get("findings", []):
        if finding["reading"] == "firing":
            notes.append(
                (f'rule "{plain(finding["rule"])}" fires: {plain(finding["text"] or finding["reason"])}', "red")
            )
    return notes


def _bound_by_a_group(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Another ceiling than the one beside its spend is met first: that of its stage, a label, the day or the node."""
    cap = run.get("binding")
    if cap is None or cap["scope"].startswith("run:"):
        return []
    used = f"{_usd(cap['spend_usd'])} of {_usd(cap['ceiling_usd'])}"
    met = f", met {_ceiling(run)}" if run.get("ceiling_in_s") is not None else ""
    return [(f"{plain(cap['scope'])} binds: {used} spent by all of it{met}", "")]


def _ahead(run: Mapping[str, Any]) -> list[str]:
    """What is left; nothing for a run that has no goal or has not shown its speed yet."""
    hours, dollars = run.get("hours_left"), run.get("cost_left_usd")
    if hours is None or run["state"] in ("finished", "halted"):
        return []
    parts = [_interval(hours, lambda value: _seconds(value * 3600))]
    if dollars is not None:
        parts.append(_interval(dollars, _usd))
    wasted = f"; {_count(run['tokens_wasted'])} tokens trained twice" if run.get("tokens_wasted") else ""
    return [f"{' and '.join(parts)} left to {_count(run['tokens_goal'])} tokens{wasted}"]


def _pace(run: Mapping[str, Any]) -> list[str]:
    """The last window and the run so far beside what was expected; nothing where nobody expects anything."""
    window = run.get("window")
    if window is None or (run.get("drift_frac") is None and run.get("burn_rate") is None):
        return []
    tokens, speed = window["to_tokens"] - window["from_tokens"], window["tokens_per_s"]
    parts = [f"the last {_count(tokens)} tokens took {_seconds(window['duration_s'])}"]
    if speed is not None:
        planned = run.get("expected_tokens_per_s")
        parts.append(f"{_count(speed)} tokens/s" + (f" of {_count(planned)} expected" if planned is not None else ""))
    if window["usd_per_mtok"] is not None:
        planned = run.get("expected_usd_per_mtok")
        price = f"{_exact_usd(window['usd_per_mtok'])} per 1M"
        parts.append(price + (f" of {_exact_usd(planned)} expected" if planned is not None else ""))
    so_far = _against({"drift_frac": run.get("drift_frac"), "burn_rate": run.get("burn_rate")})
    return [f"{', '.join([*parts, *_against(window)])}; the run so far: {', '.join(so_far)}"]


def _against(figures: Mapping[str, Any]) -> list[str]:
    drift, burnt = figures["drift_frac"], figures["burn_rate"]
    told = [f"drift {100 * drift:+.1f}%"] if drift is not None else []
    return [*told, f"burn rate {burnt:.2f}"] if burnt is not None else told


def _saves(saves: Mapping[str, Any]) -> str:
    """What is measured, what is assumed, and what follows."""
    gain = saves.get("saved_usd_per_hour")
    cost = "" if gain is None else f", {_usd(gain)}/h less than now"
    return (
        f"saves for {_seconds(saves['save_s'])} every {_seconds(saves['interval_s'])}; with a failure every "
        f"{_seconds(saves['mtbf_s'])} (assumed from Llama 3's) saving every {_seconds(saves['best_interval_s'])} "
        f"would lose least{cost}"
    )


def _interval(values: Sequence[float | None], told: Callable[[float], str]) -> str:
    low, middle, high = values
    assert middle is not None, "a forecast has a middle"
    if low is None or high is None or told(low) == told(high):
        return told(middle)
    return f"{told(middle)} ({told(low)} to {told(high)})"


def _ceiling(run: Mapping[str, Any]) -> str:
    tokens = run.get("ceiling_at_tokens")
    return f"in {_seconds(run['ceiling_in_s'])}" + (f", at {_count(tokens)} tokens" if tokens is not None else "")


def _unwatched(process: Mapping[str, Any]) -> str:
    price = process.get("usd_per_hour")
    cost = f"{_usd(price)}/h" if price is not None else "price unknown"
    return f"UNWATCHED: pid {process['pid']} holds GPU {plain(process['gpu'])} ({cost}); nothing judges it"


def _spent(run: Mapping[str, Any]) -> str:
    if run.get("spend_rate_usd_per_hour") is None:
        return "?"
    spent = _usd(run["spend_usd"])
    return f"{spent} of {_usd(run['ceiling_usd'])}" if run.get("ceiling_usd") is not None else spent


def _age(run: Mapping[str, Any]) -> Text:
    age_s = run.get("last_frame_age_s")
    if age_s is None:
        return Text("-")
    old = age_s > STALE_AFTER_S and run["state"] not in ("finished", "halted")
    return Text(_seconds(age_s), style="yellow" if old else "")


def _usd(amount: float | None) -> str:
    return "-" if amount is None else format_usd(round(amount * MICROS_PER_USD))


def _exact_usd(amount: float) -> str:
    """To the micro-dollar: two prices of a million tokens may differ by less than a cent."""
    return f"${amount:,.6f}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_duration(round(value * NS_PER_S))
