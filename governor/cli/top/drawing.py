"""The screen of `costgov top` as lines of text. Pure: what is shown is decided here, and only put up by the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from governor.cli.status_table import who
from governor.cli.top.seen import Watched
from governor.core.base.printable import cut
from governor.core.base.units import NS_PER_S, format_duration
from governor.reports.board import gpu_text
from governor.reports.causes import (
    cause_rows,
    count_text,
    drift_text,
    goodput_text,
    money_text,
    percent,
    seconds_text,
    spent_text,
)
from governor.reports.terminal import loss_text, stands_still_text
from governor.text.screen import Screen, Styled, flow, shown_lines, styled
from governor.text.table import Head, fits, plain, render_rows

KEYS: Final = "up/down run   h halt   o hold   ? help   q quit"
OVER: Final = ("finished", "halted")
NAME_CHARS_MAX: Final = 24  # The whole name stands below the table.
EVERY_LINE: Final = 1_000
RUNS_SHOWN_MIN: Final = 3
CAUSES_SHOWN_MIN: Final = 3
CAUSES_SHOWN_MAX: Final = 17  # There are no more.
NOTES_MAX: Final = 4
GPUS_MAX: Final = 8  # With their memory; of more, only how busy they are.
_STYLES: Final = {
    "training": "green", "finished": "dim", "halted": "bold red", "halting": "bold red", "unwatched": "bold yellow",
}  # fmt: skip
_HEADS: Final = (
    Head(""), Head("RUN"), Head("STATE"), Head("STEP", True), Head("LOSS", True), Head("TOK/S", True),
    Head("SPENT", True), Head("$/1M NOW", True), Head("EXPECTED", True), Head("RUNWAY", True),
)  # fmt: skip
# On a narrow screen, the first one first. What a run costs stays.
_SPARED: Final = ("TOK/S", "STEP", "LOSS", "EXPECTED")
_CAUSE_HEADS: Final = (
    Head("CAUSE OF LOST TIME"), Head("$/H", True), Head("SHARE", True), Head("TIME", True), Head("SURE"),
)  # fmt: skip


def draw(watched: Watched, screen: Screen, lines_max: int, now_s: float, notice: str = "") -> list[str]:
    """At most `lines_max` lines; the last one has the keys."""
    row = watched.row
    top = _head(watched, screen, now_s)
    foot = [*shown_lines(Styled(notice, "bold"), screen), KEYS] if notice else [KEYS]
    room = lines_max - len(top) - len(foot)
    if not watched.seen.rows:
        body = ["no run yet: `costgov run -- CMD`, or `trainer_shim.attach(engine)` in the training script"]
        body = [line for text in body for line in shown_lines(text, screen)]
    else:
        table = _table(watched, screen, max(RUNS_SHOWN_MIN, room // 3))
        left = room - len(table) - 1
        body = [*table, ""]
        is_silent = watched.silent_since_s is not None
        body += details(row.run, left, screen, is_silent=is_silent) if row is not None and left > 0 else []
    body += [line for text in watched.seen.left_out for line in shown_lines(Styled(text, "yellow"), screen)]
    body = body[: max(0, room)]
    return [*top, *body, *[""] * (room - len(body)), *foot][-max(1, lines_max) :]


def _head(watched: Watched, screen: Screen, now_s: float) -> list[str]:
    row, governors = watched.row, watched.seen.governors
    governor = row.governor if row is not None else governors[0] if governors else None
    parts: list[str] = [Styled("costgov top", "bold")]
    if governor is not None:
        price = governor.get("price_usd_per_hour")
        mode = plain(governor.get("mode", "?"))
        parts += [who(governor), Styled(mode, "yellow" if mode == "observe" else "")]
        parts.append(Styled("price unknown", "yellow") if price is None else f"{money_text(price)}/h")
    if len(governors) > 1:
        parts.append(f"{len(governors)} governors")
    lines = flow(parts, screen)
    if watched.silent_since_s is not None:
        since = format_duration(round(now_s - watched.silent_since_s) * NS_PER_S)
        text = f"no governor answers since {since}: this is what was seen last; still asking"
        lines += shown_lines(Styled(text, "bold red"), screen)
    return lines


def cells(run: Mapping[str, Any], mark: str = "", *, is_silent: bool = False) -> tuple[str, ...]:
    """`is_silent`: no governor answers. What was seen stays, and how long the money lasts is not known any more."""
    state, halt = plain(run["state"]), run.get("halt")
    shown = f"{state} {plain(halt['stage'])}" if halt and state == "halting" else state
    held = " held" if run.get("hold") else ""
    return (
        mark,
        Styled(cut(plain(run["run"]), NAME_CHARS_MAX), "bold" if mark else ""),
        Styled(shown + held, _STYLES.get(state, "")),
        count_text(run.get("step")),
        loss_text(run.get("loss")),
        count_text(run.get("tokens_per_s")),
        spent_text(run),
        money_text(run.get("usd_per_mtok")),
        money_text(run.get("expected_usd_per_mtok")),
        "-" if is_silent else seconds_text(run.get("runway_s")),
    )


def _table(watched: Watched, screen: Screen, rows_max: int) -> list[str]:
    """A window of the runs around the selected one, and where it is among all of them."""
    rows, place = watched.seen.rows, watched.place
    first = min(max(0, place - rows_max // 2), max(0, len(rows) - rows_max))
    shown = rows[first : first + rows_max]
    is_silent = watched.silent_since_s is not None
    told = [
        cells(row.run, ">" if first + number == place else "", is_silent=is_silent) for number, row in enumerate(shown)
    ]
    heads, fitted = _fitting(told, screen)
    lines = render_rows(heads, fitted, total=False, screen=screen).splitlines()
    if len(shown) < len(rows):
        lines.append(styled(f"runs {first + 1} to {first + len(shown)} of {len(rows)}", "dim", screen))
    return lines


def _fitting(rows: Sequence[Sequence[str]], screen: Screen) -> tuple[Sequence[Head], Sequence[Sequence[str]]]:
    for count in range(len(_SPARED) + 1):
        places = [place for place, head in enumerate(_HEADS) if head.title not in _SPARED[:count]]
        heads, told = [_HEADS[place] for place in places], [[row[place] for place in places] for row in rows]
        if fits(heads, told, screen):
            break
    return heads, told


_FILE: Final = Screen(None, False)


def details(
    run: Mapping[str, Any], lines_max: int, screen: Screen = _FILE, *, is_silent: bool = False
) -> list[str]:  # fmt: skip
    """The selected run: its prices, what is wrong, its GPUs, and as many causes as there is room for."""
    lines = shown_lines(_prices(run, is_silent=is_silent), screen)
    for note in _notes(run)[:NOTES_MAX]:
        lines += shown_lines(note, screen)
    gpus = _gpus(run, screen)
    causes = _causes(run, min(CAUSES_SHOWN_MAX, max(CAUSES_SHOWN_MIN, lines_max - len(lines) - len(gpus) - 3)), screen)
    return [*lines, *gpus, *causes][:lines_max]


def _prices(run: Mapping[str, Any], *, is_silent: bool) -> str:
    """What a million tokens cost, against what they should; and where the money goes on from here."""
    expected, drift = run.get("expected_usd_per_mtok"), drift_text(run)
    parts = [f"{money_text(run.get('usd_per_mtok'))}/1M now", f"{money_text(run.get('usd_per_mtok_all_in'))} all-in"]
    if expected is not None:
        parts.append(f"{money_text(expected)} expected" + (f" ({drift})" if drift else ""))
    parts += [] if is_silent else [f"runway {seconds_text(run.get('runway_s'))}"]
    parts.append(f"goodput {goodput_text(run)}")
    if run.get("mfu") is not None:
        parts.append(f"MFU {percent(run['mfu'])}")
    parts.append(f"{run['ranks_connected']} of {run['world_size']} ranks")
    if run.get("step") is not None:
        parts.append(
            f"step {count_text(run['step'])}" + (f" of {run['total_steps']:,}" if run.get("total_steps") else "")
        )
    return f"{plain(run['run'])}: {', '.join(parts)}"


def _notes(run: Mapping[str, Any]) -> list[Styled]:
    notes = []
    halt, hold, end = run.get("halt"), run.get("hold"), run.get("end")
    if halt:
        text = (
            f"halt: {plain(halt['stage'])}, {plain(halt['reason'])}; costgov incident show {plain(halt['incident_id'])}"
        )
        notes.append(Styled(text, "bold red"))
    if end and not halt:
        notes.append(Styled(plain(end["text"]), "bold red"))
    if hold:
        text = f"held for another {seconds_text(hold['left_s'])}, no rule halts it: {plain(hold['reason'])}"
        notes.append(Styled(text, "bold yellow"))
    if (still := stands_still_text(run)) is not None:
        notes.append(Styled(still, "yellow"))
    if run.get("mode") == "observe":
        notes.append(Styled("its policy only observes: it would be recorded, not halted", "yellow"))
    firing = [one for one in run.get("findings") or [] if one["reading"] == "firing"]
    return notes + [
        Styled(f'rule "{plain(one["rule"])}" sees: {plain(one["text"] or one["reason"])}', "red") for one in firing
    ]


def _gpus(run: Mapping[str, Any], screen: Screen) -> list[str]:
    gpus = (run.get("machine") or {}).get("gpus")
    if not gpus:
        return []
    if len(gpus) > GPUS_MAX:
        busy = [f"{100 * gpu['busy_frac']:.0f}" if gpu.get("busy_frac") is not None else "-" for gpu in gpus]
        return shown_lines(f"{len(gpus)} GPUs, busy in %: {' '.join(busy)}", screen)
    return flow([f"GPU{place} {gpu_text(gpu)}" for place, gpu in enumerate(gpus)], screen)


def _causes(run: Mapping[str, Any], most: int, screen: Screen) -> list[str]:
    rows = cause_rows(run, most)
    if not rows:
        return []
    told = [(row.cause, row.per_hour, percent(row.share_frac), row.time, row.confidence) for row in rows]
    lines = render_rows(_CAUSE_HEADS, told, total=False, screen=screen).splitlines()
    if not rows[0].next_step:
        return lines
    return [*shown_lines(Styled(f"first: {rows[0].cause}: {rows[0].next_step}", "green"), screen), *lines]
