"""A plan as JSON and as terminal text. JSON has seconds and hours, memory in GB of 1e9 bytes, money in dollars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from governor.planner.catalog import offers_text
from governor.planner.estimate import Estimate, memory_parts, step_parts
from governor.planner.levers import Lever, Together
from governor.planner.model.candidates import MARGIN
from governor.planner.model.memory import memory_frac
from governor.planner.model.run_cost import FINISHED_RUNS, MTOK, RunCost, Spread
from governor.planner.model.setup import Setup
from governor.planner.model.step_time import tokens_per_gpu_s
from governor.planner.promise import chance_of_no_room, promised_cost, promised_mtok_usd
from governor.planner.words import GB, UNKNOWN, bar, count, days, gigabytes, hours, seconds, share, spread, usd, ways
from governor.text.screen import Screen, Styled
from governor.text.table import Head, render_rows


def document(one: Estimate, levers: Sequence[Lever] = (), both: Together | None = None) -> dict[str, Any]:
    memory, step, setup = one.prediction.memory, one.prediction.step, one.setup
    band, price = one.memory_band, one.plan.asked.price
    cost, mtok_usd = promised_cost(one), promised_mtok_usd(one)
    return {
        "name": one.plan.asked.name,
        "model": {
            "name": setup.shape.name,
            "params": round(setup.shape.params),
            "matmul_params": round(setup.shape.matmul_params),
        },
        "setup": setup_document(setup),
        "chosen": list(one.plan.chosen),
        "assumed": list(one.plan.assumed),
        "memory": {
            "parts_gb": {name: round(value / GB, 4) for name, value in memory_parts(memory).items()},
            "allocated_gb": round(memory.allocated / GB, 4),
            "reserved_gb": round(memory.reserved / GB, 4),
            "reserved_low_gb": round(band.low / GB, 4),
            "reserved_high_gb": round(band.high / GB, 4),
            "capacity_gb": round(memory.capacity / GB, 4),
            "host_gb_per_node": round(memory.host / GB, 4),
            "fits": memory.fits,
            "chance_of_no_room": chance_of_no_room(one),
        },
        "step": {"parts_s": step_parts(step), "total_s": sum(step_parts(step).values())},
        "tokens_per_s": _spread(one.tokens_per_s),
        "tokens_per_gpu_s": _spread(one.per_gpu_s),
        "is_measured": one.is_measured,
        "mfu": one.mfu,
        "price": None
        if price is None
        else {"gpu_hour_usd": price.gpu_hour_usd, "source": price.source, "spot": price.is_spot},
        "usd_per_mtok_steady": None if mtok_usd is None else _spread(mtok_usd),
        "run": None if cost is None else _run(cost),
        **lever_documents(one, levers, both),
        "notes": list(one.prediction.notes),
    }


def setup_document(setup: Setup) -> dict[str, Any]:
    names = (
        *("gpus", "seq_len", "micro_batch", "grad_accum", "dp", "tp", "pp", "virtual_stages", "cp", "ep"),
        *("zero_stage", "shard_ranks", "tokens_per_step", "node_gbps", "vintage"),
    )
    words = ("framework", "checkpointing", "precision", "attention", "kernel", "offload")
    return {
        "gpu": setup.gpu.name,
        **{name: getattr(setup, name) for name in names},
        **{name: getattr(setup, name).value for name in words},
    }


def _spread(values: Spread) -> dict[str, float]:
    return {"low": values.low, "mid": values.mid, "high": values.high}


def _run(cost: RunCost) -> dict[str, Any]:
    return {
        "tokens": cost.tokens,
        "hour_usd": cost.hour_usd,
        "steady_hours": _spread(cost.steady_hours),
        "steady_usd": None if cost.steady_usd is None else _spread(cost.steady_usd),
        "calendar_hours": _spread(cost.calendar_hours),
        "calendar_usd": None if cost.calendar_usd is None else _spread(cost.calendar_usd),
        "calendar_p80_hours": cost.held_hours,
        "calendar_p80_usd": cost.held_usd,
        "calendar_parts": [{"name": part.name, "hours": part.hours, "basis": part.basis} for part in cost.parts],
        "save_s": cost.saving.save_s,
        "save_every_s": cost.saving.interval_s,
    }


def lever_documents(one: Estimate, levers: Sequence[Lever], both: Together | None) -> dict[str, Any]:
    """Savings are shares of the run's time.

    `usd` is of steady state, saves, failures and evaluations; null: unknown.
    """
    whole = one.worked_usd
    return {
        "levers": [_lever(lever, whole) for lever in levers],
        "levers_together": None if both is None else _together(both, whole),
    }


def _lever(lever: Lever, whole_usd: float | None) -> dict[str, Any]:
    return {
        "name": lever.name,
        "change": lever.change,
        "saves": {"low": 1 - lever.least, "mid": 1 - lever.usual, "high": 1 - lever.best},
        "usd": None if whole_usd is None else (1 - lever.usual) * whole_usd,
        "evidence": lever.evidence.value,
        "basis": lever.basis,
        "is_bound": lever.is_bound,
        "is_done": lever.is_done,
    }


def _together(both: Together, whole_usd: float | None) -> dict[str, Any]:
    return {
        "low": 1 - both.least,
        "mid": 1 - both.usual,
        "high": 1 - both.best,
        "possible": 1 - both.possible,
        "usd": None if whole_usd is None else (1 - both.usual) * whole_usd,
    }


# --- for the terminal: memory, step time, cost, and possible savings


STEP_TOKENS_LARGE: Final = 2**24
LABELS = {
    "passes": "element-wise, norms, routing",
    "host": "waiting for launches",
    "communication": "communication not hidden",
    "bubble": "pipeline bubble",
    "overhead": "rest of the step",
    "context": "CUDA context, NCCL",
    "buffers": "gathered, buckets, workspace",
}


def report(one: Estimate, levers: Sequence[Lever], both: Together, *, screen: Screen) -> str:
    parts = [head(one), _memory(one, screen), _step(one, screen)]
    if not one.prediction.memory.fits:
        # What cannot run takes no hours and costs nothing.
        return "\n".join(part.rstrip("\n") + "\n" for part in (*parts, "\n".join(notes_of(one))) if part)
    parts.append(_figures(one, screen))
    if one.cost is not None:
        parts.append(_calendar(one, screen))
    parts.append(_levers(one, levers, both, screen))
    parts.append("\n".join(notes_of(one)))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def head(one: Estimate) -> str:
    setup, shape = one.setup, one.setup.shape
    active = f", {count(shape.matmul_params)} active" if shape.is_moe else ""
    tokens = f"{count(one.cost.tokens)} tokens on " if one.cost is not None else ""
    line = f"{shape.name}: {count(shape.params)} parameters{active}; {tokens}{setup.gpus} x {setup.gpu.name}"
    step = f"a step: {setup.seq_len:,} x {setup.micro_batch} x {setup.grad_accum} x {setup.dp} ranks"
    return f"{line}\n  {ways(setup)}\n  {step} = {count(setup.tokens_per_step)} tokens"


def _memory(one: Estimate, screen: Screen) -> str:
    memory = one.prediction.memory
    rows = [
        (LABELS.get(name, name), gigabytes(value), bar(value, memory.capacity))
        for name, value in memory_parts(memory).items()
        if value >= 5e7
    ]
    band = one.memory_band
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    if memory.fits and (risk := chance_of_no_room(one)) >= 0.005:
        verdict = f"fits; {share(risk)} of such runs need more than it has"
    rows.append(("reserved", gigabytes(memory.reserved), bar(memory.reserved, memory.capacity)))
    interval = f"80 % interval {gigabytes(band.low)} to {gigabytes(band.high)}"
    notes = [
        Styled(f"of {gigabytes(memory.capacity)} GB: {verdict}; {interval}", "dim" if memory.fits else "bold red"),
        *([f"of the host: {gigabytes(memory.host)} GB a node"] if memory.host >= 5e8 else []),
    ]
    heads = (Head("MEMORY OF A GPU"), Head("GB", is_number=True), Head("OF WHAT IT HAS"))
    return render_rows(heads, rows, total=True, screen=screen, notes=notes)


def _step(one: Estimate, screen: Screen) -> str:
    parts = step_parts(one.prediction.step)
    total = sum(parts.values())
    shown = {name: value for name, value in parts.items() if value >= 0.0005 * total and name != "overhead"}
    shown["overhead"] = total - sum(shown.values())  # With the parts that are too small for a row.
    rows = [
        (LABELS.get(name, name), seconds(value), share(value / total), bar(value, total))
        for name, value in shown.items()
    ]
    rows.append(("one step", seconds(total), "", ""))
    heads = (Head("STEP TIME, PREDICTED"), Head("S", is_number=True), Head("SHARE", is_number=True), Head(""))
    return render_rows(heads, rows, total=True, screen=screen)


def _figures(one: Estimate, screen: Screen) -> str:
    speed = one.per_gpu_s
    mfu = one.mfu / speed.mid
    rows = [
        ("tokens/s of a GPU", *spread(speed, lambda value: f"{value:,.0f}")),
        ("MFU, of the bf16 peak", *spread(speed, lambda value: share(value * mfu))),
    ]
    if one.cost is not None:
        cost = one.cost
        rows += [
            ("steady state", *spread(cost.steady_hours, days)),
            ("steady state, $", *spread(cost.steady_usd, usd)),
            ("calendar", *spread(cost.calendar_hours, days)),
            ("calendar, $", *spread(cost.calendar_usd, usd)),
        ]
    rows.append(("$ per 1M tokens, steady", *spread(one.mtok_usd, usd)))
    heads = (Head(""), *(Head(name, is_number=True) for name in ("LOW", "EXPECTED", "HIGH")))
    price = one.plan.asked.price
    notes = _words_of_ends(one)
    if price is not None:
        spot = ", spot" if price.is_spot else ""
        notes.append(f"${price.gpu_hour_usd:,.2f} a GPU-hour{spot} ({price.source})")
    else:
        notes.append(f"no price: state price (USD per GPU-hour) or provider; {offers_text(one.setup.gpu)}")
    return render_rows(heads, rows, total=False, screen=screen, notes=notes)


def _words_of_ends(one: Estimate) -> list[str]:
    """What LOW and HIGH are, and which of them limits are held to."""
    if one.is_measured:
        words = "measured: the speed was stated"
        return [words if one.cost is None else f"{words}; the calendar's HIGH is with what finished runs took beyond"]
    words = "low and high hold the truth in 80 % of cases"
    if one.cost is None:
        return [words]
    held = days(one.cost.held_hours) + ("" if one.cost.held_usd is None else f" and {usd(one.cost.held_usd)}")
    runs = f"the calendar's by the spread of {len(FINISHED_RUNS)} finished runs"
    return [f"{words}, {runs}; four of five such runs end within {held} (P80)"]


def _calendar(one: Estimate, screen: Screen) -> str:
    assert one.cost is not None
    cost = one.cost
    rows = [("steady state", hours(cost.steady_hours.mid), _money(one, cost.steady_hours.mid), "")]
    rows += [(part.name, hours(part.hours), _money(one, part.hours), part.basis) for part in cost.parts]
    rows.append(("calendar", hours(cost.calendar_hours.mid), _money(one, cost.calendar_hours.mid), ""))
    heads = (
        Head("WHAT IS PAID FOR"),
        Head("TIME", is_number=True),
        Head("$", is_number=True),
        Head("", may_wrap=True),
    )
    return render_rows(heads, rows, total=True, screen=screen)


def _money(one: Estimate, spent_h: float) -> str:
    price = None if one.cost is None else one.cost.hour_usd
    return UNKNOWN if price is None else usd(spent_h * price)


def _levers(one: Estimate, levers: Sequence[Lever], both: Together, screen: Screen) -> str:
    """Only levers that save something, and one line about the rest: `costgov plan levers` has them all."""
    saving = [lever for lever in levers if lever.best < 1 and not lever.is_done]
    done = ", ".join(lever.name for lever in levers if lever.is_done)
    counted = f"counted on as done: {done}; costgov plan levers has what each is worth" if done else ""
    if not saving:
        tried = ", ".join(lever.name for lever in levers if not lever.is_done)
        return "\n".join(filter(None, (f"no single change saves anything: {tried}", counted)))
    table = levers_table(one, saving, both, screen=screen)
    return "\n".join(filter(None, (table.rstrip("\n"), counted)))


def levers_table(one: Estimate, levers: Sequence[Lever], both: Together, *, screen: Screen) -> str:
    rows = [
        (lever.name, _saving(lever), _worth(one, lever), lever.evidence.value, lever.change, lever.basis)
        for lever in levers
    ]
    saved = 1 - both.usual
    whole = one.worked_usd
    dollars = "" if whole is None or not saved else usd(saved * whole)
    of_all = (
        "nothing"
        if both.best == 1
        else share(saved)
        if both.best == both.least
        else f"{share(1 - both.least)} to {share(1 - both.best)}"
    )
    rows.append(("together", of_all, dollars, "", "multiplied; never more than the best plan on these GPUs saves", ""))
    heads = (
        Head("LEVER"), Head("SAVES", is_number=True), Head("$", is_number=True), Head("EVIDENCE"),
        Head("WHAT", may_wrap=True), Head("ON WHAT", may_wrap=True),
    )  # fmt: skip
    done = "(done): the plan counts on it; the figures are of a run that does without, and no part of the sum"
    notes = [] if whole is None else [f"of {usd(whole)}: steady state, saves, failures, evaluations"]
    notes += [done] if any(lever.is_done for lever in levers) else []
    return render_rows(heads, rows, total=True, screen=screen, notes=notes)


def _saving(lever: Lever) -> str:
    if lever.best == 1:
        return "nothing"
    if lever.best == lever.least:
        return f"{'at most ' if lever.is_bound else ''}{share(1 - lever.usual)}"
    return f"{'(done) ' if lever.is_done else ''}{share(1 - lever.least)} to {share(1 - lever.best)}"


def _worth(one: Estimate, lever: Lever) -> str:
    """The lever's saving in dollars. For a lever that is done, the extra cost of leaving it out."""
    whole = one.worked_usd
    if whole is None or lever.best == 1:
        return ""
    return f"+{usd(whole / lever.usual - whole)}" if lever.is_done else usd(whole * (1 - lever.usual))


def notes_of(one: Estimate) -> list[str]:
    """What was chosen and assumed, and remarks."""
    notes = []
    if one.plan.chosen:
        notes.append(f"chosen, as {_why_chosen(one)}: {', '.join(one.plan.chosen)}")
    if (faster := one.plan.passed_over) is not None:
        used, speed = memory_frac(faster), tokens_per_gpu_s(faster)
        only_just = f"as it fits only just ({share(used)} of the memory)"
        notes.append(f"passed over, {only_just}: {ways(faster)}, {speed:,.0f} tokens/s of a GPU")
    if one.plan.assumed:
        notes.append(f"assumed, as not given: {', '.join(one.plan.assumed)}")
    if (large := _of_large_step(one)) is not None:
        notes.append(large)
    if one.is_measured:
        notes.append(_beside_prediction(one))
    if one.plan.asked.data_wait is not None and not one.is_measured:
        notes.append(f"counted on, as stated: GPUs wait for data {share(one.plan.asked.data_wait)} of the time")
    if one.cost is None:
        price = one.mtok_usd
        worth = f": a billion cost {usd(price.mid * 1e9 / MTOK)}" if price is not None else ""
        notes.append(f"no tokens stated, so no hours and dollars of the run{worth}")
    notes += [f"note: {note}" for note in one.prediction.notes if not note.startswith(("does not fit", "may not fit"))]
    return notes


def _of_large_step(one: Estimate) -> str | None:
    """Said of an assumed step alone: it grows with the GPUs, and what a token teaches falls."""
    tokens = one.setup.tokens_per_step
    if tokens <= STEP_TOKENS_LARGE or not any(word.startswith("batch-tokens ") for word in one.plan.assumed):
        return None
    return (
        f"a step of {count(tokens)} tokens is what {one.setup.gpus:,} GPUs take at once, beyond the "
        f"{count(STEP_TOKENS_LARGE)} of Llama-3.1-405B: above the critical batch (arXiv 2410.21676) each token teaches "
        "less; state batch-tokens, or fewer gpus"
    )


def _why_chosen(one: Estimate) -> str:
    if memory_frac(one.setup) <= MARGIN:
        return f"the fastest within {share(MARGIN)} of the memory"
    return "the fastest that fits, only just" if one.prediction.memory.fits else "what needs the least memory"


def _beside_prediction(one: Estimate) -> str:
    stated, band = one.per_gpu_s.mid, one.prediction.tokens_per_gpu_s
    said = f"the stated speed is {stated / band.mid:.2f} times the predicted {band.mid:,.0f} tokens/s of a GPU"
    if stated > band.high:
        return f"{said}: beyond its interval ({band.low:,.0f} to {band.high:,.0f}); are the tokens of a step right?"
    if stated < band.low:
        return f"{said}: below its interval ({band.low:,.0f} to {band.high:,.0f}); something holds it up"
    return said
