"""A report's sections: the same words and figures for Markdown, the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.units import MICROS_PER_USD
from governor.reports.causes import advice_of, name_of, seconds, usd
from governor.text.table import Head

TIME_LINE_SHOWN: Final = 40
SPIKES_SHOWN: Final = 10
FIXES_SHOWN: Final = 3
RANKS_NAMED: Final = 8
ONCE: Final = frozenset({"start_up", "shut_down", "halt"})  # Causes that come once: no hour has more of them.
RATE: Final = "$/HOUR: a cause's dollars, divided by all hours of the run."
_OTHER: Final = (
    "OTHER is what no column names: saves, evaluations, the optimizer's offload, a pipeline's bubble; where no frame "
    "tells the time in collectives, the backward pass and the optimizer too."
)
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """`total`: the last row is a sum."""

    heads: Sequence[Head]
    rows: Sequence[Sequence[str]]
    total: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """`lines` are sentences, `items` a list; each may be empty."""

    title: str
    lines: Sequence[str] = ()
    table: Table | None = None
    items: Sequence[str] = ()
    key: str = ""  # By which a page puts its drawings beside it.

    @property
    def is_empty(self) -> bool:
        return not self.lines and self.table is None and not self.items


def sections(document: Document) -> list[Section]:
    """In the order in which they are read: money first, what nobody saw last."""
    found = [
        _summary(document), _fix_first(document), _causes(document), _evidence(document), _costs(document),
        _throughput(document), _parts(document), _ranks(document), _gpus(document), _time_line(document),
        _failures(document), _stability(document),
    ]  # fmt: skip
    unseen = document["not_verified"] or ("Everything that this report tells was seen.",)
    return [one for one in (*found, Section("Not verified", items=unseen)) if not one.is_empty]


def title_of(document: Document) -> str:
    return f"Run {document['run']}"


# --- money and time ------------------------------------------------------------------------------------------


def _summary(document: Document) -> Section:
    lines = []
    if document["wall_s"] is not None:
        wall = seconds(document["wall_s"])
        spent = f"{usd(document['usd'])} in {wall}" if document["usd"] is not None else f"{wall}, without a price"
        lines.append(
            f"{spent}; goodput {share(document['goodput'])}: "
            f"{seconds(document['productive_s'])} trained what nobody had trained before."
        )
    all_in, speed = document["prices"]["usd_per_mtok_all_in"], document["throughput"]["tokens_per_s"]
    told = [f"{per_mtok(all_in)} for a million tokens, all in"] if all_in is not None else []
    told += [f"{speed:,.0f} tokens per second while it steps"] if speed is not None else []
    told += [f"MFU {share(document['mfu'])}"] if document["mfu"] is not None else []
    lines += [f"{'; '.join(told)}."] if told else []
    stands = f"It goes on, with {document['stands_still']}." if document["stands_still"] else "It goes on."
    how = stands if document["ended"] is None else f"How it ended: {document['ended']}."
    as_of = f" As of {document['as_of']}." if document["as_of"] else ""
    return Section("Summary", [*lines, how + as_of], key="summary")


def _name(cause: Mapping[str, Any], document: Document) -> str:
    return name_of(cause["cause"], is_stepless=document["stands_still"] is not None)


def _fix_first(document: Document) -> Section:
    worth = [one for one in document["causes"] if advice_of(one) is not None]
    items = [f"{_name(one, document)}, {_loses(one)}: {advice_of(one)}." for one in worth[:FIXES_SHOWN]]
    return Section("What to fix first", items=items)


def _causes(document: Document) -> Section:
    """Where time and dollars went. Rows add up to the total, as printed."""
    if document["wall_s"] is None:
        return Section("Time and dollars by cause")
    causes = document["causes"]
    dollars = adding_up([document["productive_usd"], *(one["usd"] for one in causes)], document["usd"])
    heads = [
        Head("CAUSE"), Head("TIME", True), Head("SHARE", True), Head("DOLLARS", True), Head("$/HOUR", True),
        Head("CONFIDENCE"),
    ]  # fmt: skip
    rows = [("productive", seconds(document["productive_s"]), share(document["goodput"]), dollars[0], "", "")]
    rows += [
        (
            _name(one, document),
            seconds(one["s"]),
            share(one["share"]),
            paid,
            _rate(one["usd_per_hour"]),
            one["confidence"],
        )
        for one, paid in zip(causes, dollars[1:-1], strict=True)
    ]  # fmt: skip
    rows.append(("all", seconds(document["wall_s"]), share(1.0), dollars[-1], "", ""))
    told = [RATE] if document["usd"] else []
    return Section("Time and dollars by cause", told, Table(heads, rows, total=True), key="causes")


def _evidence(document: Document) -> Section:
    items = [
        f"{_name(one, document)} ({one['confidence']} confidence): {one['evidence']}"
        + (f". Next: {step}." if (step := advice_of(one)) else ".")
        for one in document["causes"]
        if one["s"] > 0
    ]
    return Section("Evidence", items=items)


def _costs(document: Document) -> Section:
    prices, expected, throughput = document["prices"], document["expected"], document["throughput"]
    planned_all_in, planned_steady = expected["expected_usd_per_mtok_all_in"], expected["expected_usd_per_mtok"]
    rows = [
        ("spent", usd(document["usd"]) if document["usd"] else None, _usd(expected["ceiling_usd"], " (ceiling)")),
        ("node, an hour", _usd(document["usd_per_hour"]), None),
        ("1M tokens, all in", per_mtok(prices["usd_per_mtok_all_in"]), per_mtok(planned_all_in)),
        ("1M tokens, useful", per_mtok(prices["usd_per_mtok_useful"]), None),
        ("1M tokens, steady", per_mtok(prices["usd_per_mtok_steady"]), per_mtok(planned_steady)),
        ("tokens trained", count(throughput["tokens_total"]), _with(count(expected["tokens_goal"]), " (goal)")),
        ("tokens trained again", count(throughput["tokens_wasted"]), None),
        ("tokens a second", count(throughput["tokens_per_s"]), count(expected["expected_tokens_per_s"])),
    ]  # fmt: skip
    shown = [(name, actual or "unknown", planned or "-") for name, actual, planned in rows if actual or planned]
    heads = [Head("FIGURE"), Head("ACTUAL", True), Head("EXPECTED", True)]
    return Section("Cost table", table=Table(heads, shown) if shown else None)


# --- throughput ----------------------------------------------------------------------------------------------


def _throughput(document: Document) -> Section:
    told = document["throughput"]
    times, saves = told["step_s"], document["saves"]
    rows: list[tuple[str, str | None]] = [
        ("tokens a second, while it steps", count(told["tokens_per_s"])),
        ("of each GPU", count(told["tokens_per_s_per_gpu"])),
        ("over all of its time", count(told["tokens_per_s_all_in"])),
        ("of the windows, 95 %", _interval(told["tokens_per_s_windows"], "{:,.0f}")),
        ("model TFLOP/s", f"{flops / 1e12:,.3g}" if (flops := told["model_flops_per_s"]) is not None else None),
        ("MFU", share(document["mfu"]) if document["mfu"] is not None else None),
        ("GPU", told["gpu"]),
        ("parameters", count(told["parameters"])),
        ("ranks", count(told["world_size"])),
        ("last step", count(told["step"])),
        ("steps recorded", count(told["steps_recorded"])),
        ("step, median", length(times["median"]) if times else None),
        ("step, 95th and 99th of 100", f"{length(times['p95'])}, {length(times['p99'])}" if times else None),
        ("step, longest", length(times["max"]) if times else None),
        ("saves", f"{saves['count']:,}, {length(saves['s'])}" if saves and saves["count"] else None),
    ]
    shown = [(name, value) for name, value in rows if value is not None]
    return Section(
        "Throughput report", table=Table([Head("FIGURE"), Head("VALUE", True)], shown) if shown else None, key="speed"
    )


def _parts(document: Document) -> Section:
    if not document["parts"]:
        return Section("Step breakdown")
    rows = [
        (
            f"of which {one['part']}" if one["of_which"] else one["part"], length(one["s_per_step"]),
            share(one["share"]), _spread(one["windows"]) or "-",
        )
        for one in document["parts"]
    ]  # fmt: skip
    heads = [Head("PART"), Head("A STEP", True), Head("SHARE", True), Head("MEDIAN OF WINDOWS (95 %)")]
    whose = f"Of {ranks_text(document['parts_of_ranks'])}, without the first step of each attempt."
    return Section("Step breakdown", [whose], Table(heads, rows))


def _ranks(document: Document) -> Section:
    if not document["ranks"]:
        return Section("Ranks")
    columns = ("step_s", "data_s", "loop_s", "own_s", "communication_s", "other_s")
    rows = [(str(one["rank"]), *(length(one[name]) or "-" for name in columns)) for one in document["ranks"]]
    heads = [
        Head("RANK", True), Head("STEP", True), Head("DATA", True), Head("LOOP", True), Head("OWN COMPUTING", True),
        Head("COMMUNICATION", True), Head("OTHER", True),
    ]  # fmt: skip
    return Section("Ranks", [_OTHER], Table(heads, rows))


def _gpus(document: Document) -> Section:
    rows = [(one["gpu"], share(one["busy_frac"]), f"{one['samples']:,}") for one in document["gpus"]]
    heads = [Head("GPU"), Head("BUSY", True), Head("SAMPLES", True)]
    return Section("GPU busy", table=Table(heads, rows) if rows else None)


# --- what happened -------------------------------------------------------------------------------------------


def _time_line(document: Document) -> Section:
    marks = document["time_line"]
    rare = [mark for mark in marks if mark["kind"] not in ("save", "evaluation")]
    shown = marks if len(marks) <= TIME_LINE_SHOWN else rare[:TIME_LINE_SHOWN]
    rows = [
        (mark["at"], mark["kind"], "-" if mark["step"] is None else f"{mark['step']:,}", mark["text"]) for mark in shown
    ]
    heads = [Head("AT"), Head("WHAT"), Head("STEP", True), Head("DETAIL", may_wrap=True)]
    more = (
        [f"{len(marks) - len(shown):,} more are not in this table: --json has them."] if len(marks) > len(shown) else []
    )
    return Section("Time line", more, Table(heads, rows) if rows else None, key="time line")


def _failures(document: Document) -> Section:
    halts = [
        (
            one["at"], f"halt, {one['stage']}", "-" if one["step"] is None else f"{one['step']:,}",
            f"{one['why']} ({one['page']})", usd(one["usd"]) if one["usd"] is not None else "-",
        )
        for one in document["halts"]
    ]  # fmt: skip
    ends = [
        (one["at"], one["what"], "-" if one.get("step") is None else f"{one['step']:,}", one["text"], "-")
        for one in document["failures"]
    ]
    rows = sorted([*halts, *ends])
    heads = [Head("AT"), Head("WHAT"), Head("STEP", True), Head("WHY", may_wrap=True), Head("COST", True)]
    none = [] if rows else ["No halt and no failure is known of it."]
    return Section("Failure log", none, Table(heads, rows) if rows else None)


def _stability(document: Document) -> Section:
    told = document["stability"]
    if told is None:
        return Section("Stability report")
    norm, scale = told["grad_norm"], told["loss_scale"]
    rows: list[tuple[str, str | None]] = [
        ("skipped updates (overflows)", _of_steps(told["skipped_steps"], told["steps"])),
        ("steps with a loss that is no number", count(told["nonfinite_loss_steps"])),
        ("steps with a gradient norm that is no number", count(told["nonfinite_grad_norm_steps"])),
        ("the first of them", count(told["first_nonfinite_step"])),
        ("steps whose loss vanished", count(told["vanished_loss_steps"]) if told["vanished_loss_steps"] else None),
        ("loss spikes", count(told["loss_spikes"]["count"]) if told["loss_spikes"] else None),
        ("gradient norm spikes", count(told["grad_norm_spikes"]["count"]) if told["grad_norm_spikes"] else None),
    ]
    if norm:
        rows += [
            ("gradient norm, median", _number(norm["median"])),
            ("gradient norm, 95th and 99th of 100", f"{_number(norm['p95'])}, {_number(norm['p99'])}"),
            ("gradient norm, range", f"{_number(norm['min'])} to {_number(norm['max'])}"),
        ]
    if scale:
        rows += [
            ("loss scale, first and last", f"{_number(scale['first'])}, {_number(scale['last'])}"),
            ("loss scale, range", f"{_number(scale['min'])} to {_number(scale['max'])}"),
            ("loss scale, raised and lowered", f"{scale['raised']:,}, {scale['lowered']:,}"),
        ]
    shown = [(name, value) for name, value in rows if value is not None]
    return Section(
        "Stability report", table=Table([Head("FIGURE"), Head("VALUE", True)], shown), items=list(_spikes(told)),
        key="stability",
    )  # fmt: skip


def _spikes(told: Mapping[str, Any]) -> Iterator[str]:
    for key, name in (("loss_spikes", "loss"), ("grad_norm_spikes", "gradient norm")):
        named = told[key]["named"] if told[key] else []
        for one in sorted(named, key=lambda each: -each["value"] / (abs(each["usual"]) or 1))[:SPIKES_SHOWN]:
            yield f"step {one['step']:,}: {name} {_number(one['value'])}, usual was {_number(one['usual'])}"


# --- figures as text -----------------------------------------------------------------------------------------


def share(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"


def count(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def per_mtok(amount: float | None) -> str | None:
    return None if amount is None else f"${amount:,.6f}"


def per_hour(cause: Mapping[str, Any]) -> str:
    """What the cause costs an hour; its share where no price is known."""
    return f"{usd(cause['usd_per_hour'])}/h" if cause["usd"] else f"{share(cause['share'])} of the time"


def _loses(cause: Mapping[str, Any]) -> str:
    """As `per_hour`; of a cause that comes once, what it has cost."""
    if cause["cause"] in ONCE and cause["usd"]:
        return f"{usd(cause['usd'])}, {share(cause['share'])} of the time"
    return per_hour(cause)


def adding_up(amounts: Sequence[float | None], total: float | None) -> list[str]:
    """Amounts and behind them their total, in its digits: what is printed adds up. Largest remainder.

    Without a total they are unknown, each a "-".
    """
    if total is None:
        return ["-"] * (len(amounts) + 1)
    unit = 10_000 if total >= 10 else 100 if total >= 0.1 else 1
    micros = [round((amount or 0.0) * MICROS_PER_USD) for amount in amounts]
    whole = [amount // unit for amount in micros]
    target = round(sum(micros) / unit)
    up = target - sum(whole)
    for place in sorted(range(len(micros)), key=lambda one: -(micros[one] % unit))[: max(0, up)]:
        whole[place] += 1
    digits = 2 if unit == 10_000 else 4 if unit == 100 else 6
    return [f"${amount * unit / MICROS_PER_USD:,.{digits}f}" for amount in (*whole, target)]


def _usd(amount: float | None, after: str = "") -> str | None:
    return None if amount is None else usd(amount) + after


def _with(text: str | None, after: str) -> str | None:
    return None if text is None else text + after


def _rate(amount: float | None) -> str:
    return usd(amount) if amount else ""


def length(amount: float | None) -> str:
    """A step's seconds, or a part's: shorter than what `seconds` is for."""
    if amount is None:
        return ""
    return f"{amount:,.4g} s" if amount >= 1 else f"{amount * 1000:.4g} ms"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0, 2 and 1`, in this order. At most so many are named as a reader looks at."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = [str(one) for one in ranks[:RANKS_NAMED]]
    if len(ranks) > len(named):
        named.append(f"{len(ranks) - len(named)} more")
    return f"ranks {', '.join(named[:-1])} and {named[-1]}" if named else "no rank"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _of_steps(part: int | None, steps: int) -> str | None:
    return None if part is None else f"{part:,} of {steps:,} steps"


def _interval(one: Mapping[str, Any] | None, form: str) -> str | None:
    if one is None:
        return None
    middle = form.format(one["median"])
    if one["low"] is None:
        return f"{middle} (too few windows)"
    return f"{middle} ({form.format(one['low'])} to {form.format(one['high'])})"


def _spread(one: Mapping[str, Any] | None) -> str | None:
    """An interval of seconds."""
    if one is None:
        return None
    if one["low"] is None:
        return f"{length(one['median'])} (too few windows)"
    return f"{length(one['median'])} ({length(one['low'])} to {length(one['high'])})"
