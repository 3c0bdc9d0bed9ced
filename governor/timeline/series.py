"""The language of a timeline: a list of lines, played one after the other on a clock that starts at 0.

    hello                            every rank connects (0 .. ranks-1 of world_size)
    steps 30 every 2s loss=1.5       30 steps on every rank; a beat at each full second within a step
    steps 4 every 2s micro=128       progress inside the step as well
    steps 9 every 2s 1: data_s=0.9   rank 1 reports other values than the rest
    steps 9 every 2s stride=10       only each tenth step is reported
    stand 29s in_step device_wait=wait   beats go on, progress stands still
    stand 29s 0: phase=eval 1: in_step   the same, rank by rank; `silent`: this rank does not even beat
    stand 70s 0: in_step 1: fetch    rank 1 is inside a fetch of data from now on; `fetched=9s`: the longest one before,
                                     `starts=1`: it is the first batch of a loader that was started once before
    work 40m phase=eval              beats go on and progress with them
    phase eval 0: 1:                 a phase frame now, from these ranks or from all
    quiet 90s                        no rank sends anything; time passes
    blind 90s                        the governor itself does not run
    lose 1 / bye 0                   a rank's connection is lost / it leaves
    restart                          the governor restarts: its rules are saved, discarded and restored
    attempt                          the run is launched again
    rewind 50                        the same trainer continues from 50 steps earlier
    money spend=49.5 reserve=0.5 rate=98.32     dollars, as in the ledger; with `accrues` they grow at that rate
    cap scope=day spend=9 reserve=1 ceiling=10  a budget of several runs, as the engine would put it on this one
    saved                            a good checkpoint now
    hold 2h                          an operator's hold: no rule halts for so long; `hold 0s` lifts it
    gpus 0.97 0.03                   from now on the run's two GPUs are seen every 2 s, so busy; `gpus`: no longer
    gpu 1 lost                       its second one has fallen off the bus; `gpu 1 xid 79`, `gpu 1 hot`, `gpu 1 sound`
    memory 4 of 64                   GiB of the machine's main memory that are left; `memory 1 of 8 group`: of its limit
    spot terminate 110s              the provider reclaims the machine then; `spot none`: it has announced nothing

Values of `steps` may be cycles: loss=2.0/nan. `absent` leaves a field out. Text after a # is a comment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final

from governor.core.base.units import DurationNs, MonoNs, UsdMicros, is_whole, parse_duration, read_float, usd
from governor.core.events.hardware import XIDS_KEPT, GpuFigures
from governor.core.events.inputs import Step
from governor.core.events.machine import HostMemory, SpotNotice
from governor.core.money.budgets import Cap
from governor.timeline import halt_words
from governor.timeline.halt_player import HaltPlayer
from governor.timeline.player import SOUND_GPU, Player
from trainer_shim.wire import PHASES

# In one line. A million steps are a minute of playing.
STEPS_MAX: Final = 1_000_000
# Ticks come four times a second: half a minute of playing if none can be left out.
DURATION_MAX: Final = "7d"
# What a `steps` line may set in a step, besides how it is played.
STEP_FIELDS: Final = frozenset(
    {field.name for field in fields(Step)}
    - {"at", "connection", "run", "rank", "step", "written", "ended", "held", "left_out", "stripped"}
)
# Fields by their type; a test compares both sets with a step's. Another field is any number, NaN and infinities too.
WHOLE_FIELDS: Final = frozenset(
    {"attempt_step", "line_steps", "tokens", "tokens_total", "tokens_own_total", "tokens_nonpad", "nonpad_own_total"}
    | {"skipped_steps", "progress_seq"}
    | {"mem_allocated_bytes", "mem_reserved_bytes", "rss_bytes"}
)
_BOUNDS: Final = frozenset({"data_bound", "checkpoint_bound", "eval_bound"})
FLAG_FIELDS: Final = _BOUNDS | {"loss_expected", "grad_finite", "applied"}
_STEPS_SETTINGS: Final = {*STEP_FIELDS, "skipped", "micro", "stride"}
_BEAT_SETTINGS: Final = (
    "phase",
    "in_step",
    "last_hook",
    "device_wait",
    "count",
    "silent",
    "fetch",
    "fetched",
    "starts",
)


class SeriesError(ValueError):
    """What is wrong with a line, and what is accepted."""


def play(player: Player, line: str) -> None:
    """Play one line. A blank line or a comment does nothing. Raises SeriesError."""
    word, _, rest = line.split("#")[0].strip().partition(" ")
    if not word:
        return
    if word not in WORDS:
        raise SeriesError(f'"{word}" is not a word of a series; known: {", ".join(WORDS)}')
    try:
        WORDS[word](player, rest.split())
    except SeriesError:
        raise
    except (ValueError, OverflowError) as error:
        raise SeriesError(f"{word}: {error}") from None


def _hello(player: Player, words: Sequence[str]) -> None:
    _nothing_more("hello", words)
    _ranked(player, "hello")
    player.hello()


def _steps(player: Player, words: Sequence[str]) -> None:
    if len(words) < 3 or words[1] != "every":
        raise SeriesError('steps: write "steps COUNT every DURATION FIELD=VALUE …"')
    if not is_whole(words[0]) or int(words[0]) > STEPS_MAX:
        raise SeriesError(f'steps: "{words[0]}" is not a number of steps (at most {STEPS_MAX:,})')
    _connected(player, "steps")
    dt_ns = _duration(words[2])
    if dt_ns == 0:
        raise SeriesError("steps: a step that takes no time is none")
    common, own = _split(player, "steps", words[3:])
    settings = _settings("steps", common, _STEPS_SETTINGS)
    of_rank = {rank: _settings("steps", said, STEP_FIELDS) for rank, said in own.items()}
    micro, strides = _whole("micro", settings.pop("micro", "1")), settings.pop("stride", "1")
    for index in range(int(words[0])):
        told = {rank: _given(said, index) for rank, said in of_rank.items()}
        stride = _whole("stride", _pick(strides, index) or "1")
        player.one_step(dt_ns, _given(settings, index), micro=micro, stride=stride, of_rank=told)


def _given(settings: Mapping[str, str], index: int) -> dict[str, Any]:
    chosen = {name: _pick(value, index) for name, value in settings.items()}
    return {name: _value(name, value) for name, value in chosen.items() if value is not None}


def _stand(player: Player, words: Sequence[str]) -> None:
    player.beats(*_beats(player, "stand", words), moves=False)


def _work(player: Player, words: Sequence[str]) -> None:
    player.beats(*_beats(player, "work", words), moves=True)


def _beats(player: Player, word: str, words: Sequence[str]) -> tuple[int, dict[int, dict[str, str]]]:
    _ranked(player, word)
    _connected(player, word)
    if not words:
        raise SeriesError(f"{word}: for how long? write for example {word} 90s")
    return _duration(words[0]), _by_rank(player, word, words[1:])


def _phase(player: Player, words: Sequence[str]) -> None:
    if not words:
        raise SeriesError("phase: which one? write for example phase eval")
    _connected(player, "phase")
    ranks = [_rank(player, "phase", word.rstrip(":")) for word in words[1:]]
    player.phase(_phase_named("phase", words[0]), ranks or player.ranks)


def _phase_named(word: str, phase: str) -> str:
    if phase not in PHASES:
        raise SeriesError(f'{word}: "{phase}" is not a phase; known: {", ".join(PHASES)}')
    return phase


def _quiet(player: Player, words: Sequence[str]) -> None:
    player.let_pass(_only_duration("quiet", words))


def _blind(player: Player, words: Sequence[str]) -> None:
    player.be_blind(_only_duration("blind", words))


def _lose(player: Player, words: Sequence[str]) -> None:
    player.lose(_only_rank(player, "lose", words))


def _bye(player: Player, words: Sequence[str]) -> None:
    player.bye(_only_rank(player, "bye", words))


def _restart(player: Player, words: Sequence[str]) -> None:
    _nothing_more("restart", words)
    player.restart()


def _attempt(player: Player, words: Sequence[str]) -> None:
    _nothing_more("attempt", words)
    _ranked(player, "attempt")
    player.attempt()


def _rewind(player: Player, words: Sequence[str]) -> None:
    if len(words) != 1 or not is_whole(words[0]) or not 1 <= int(words[0]) <= player.step:
        raise SeriesError(f"rewind: by how many steps? {player.step} have been played; write for example rewind 50")
    player.step -= int(words[0])


def _money(player: Player, words: Sequence[str]) -> None:
    player.accrues = "accrues" in words
    given = _dollars(_settings("money", [one for one in words if one != "accrues"], ("spend", "reserve", "rate")))
    player.run.set_money(_needed("money", given, "spend"), given.get("rate"), given.get("reserve"))
    player.judge()


def _cap(player: Player, words: Sequence[str]) -> None:
    settings = _settings("cap", words, ("scope", "spend", "reserve", "ceiling"))
    scope = _needed("cap", settings, "scope")
    given = _dollars({name: value for name, value in settings.items() if name != "scope"})
    ceiling, spend, reserve = (_needed("cap", given, name) for name in ("ceiling", "spend", "reserve"))
    rate = player.run.spend_rate_usd_micros_per_hour
    player.put_cap(Cap(scope, ceiling, spend, reserve, rate))


def _saved(player: Player, words: Sequence[str]) -> None:
    _nothing_more("saved", words)
    player.saved()


def _hold(player: Player, words: Sequence[str]) -> None:
    player.hold(_only_duration("hold", words))


def _gpus(player: Player, words: Sequence[str]) -> None:
    player.gpus_busy = tuple(None if one == "absent" else read_float(one) for one in words)


def _gpu(player: Player, words: Sequence[str]) -> None:
    """What the driver tells of one GPU's hardware from now on. XIDs are counted."""
    match words:
        case [place, "lost"] if is_whole(place):
            known = GpuFigures(is_lost=True)
        case [place, "hot"] if is_whole(place):
            known = replace(SOUND_GPU, clock_reasons=0x40)
        case [place, "xid", xid] if is_whole(place) and is_whole(xid):
            before = player.gpu_figures.get(int(place), SOUND_GPU)
            xids = (*before.xids, int(xid))[-XIDS_KEPT:]
            known = replace(before, xid_total=(before.xid_total or 0) + 1, xids=xids)
        case [place, "sound"] if is_whole(place):
            known = SOUND_GPU
        case _:
            raise SeriesError("gpu: write for example gpu 1 lost, gpu 0 xid 79, gpu 0 hot, or gpu 0 sound")
    player.gpu_figures[int(place)] = known


def _memory(player: Player, words: Sequence[str]) -> None:
    if len(words) not in (3, 4) or words[1] != "of" or words[3:] not in ([], ["group"]):
        raise SeriesError("memory: write for example memory 4 of 64, in GiB, or memory 1 of 8 group")
    left, total = (round(read_float(one) * 2**30) for one in (words[0], words[2]))
    of_run = ("run", "/job") if words[3:] else (None, None)
    player.apply(HostMemory(MonoNs(player.now), left, total, *of_run))


def _spot(player: Player, words: Sequence[str]) -> None:
    if not words or len(words) > 2:
        raise SeriesError("spot: write for example spot terminate 110s, or spot none")
    left_ns = DurationNs(_duration(words[1])) if words[1:] else None
    player.apply(SpotNotice(MonoNs(player.now), None if words[0] == "none" else words[0], left_ns))


def _answers(word: str, player: Player, words: Sequence[str]) -> None:
    if not isinstance(player, HaltPlayer):
        raise SeriesError(f"{word}: halts are not played here")
    halt_words.say(player, word, words)


WORDS: Final[Mapping[str, Callable[[Player, Sequence[str]], None]]] = {
    "hello": _hello,
    "steps": _steps,
    "stand": _stand,
    "work": _work,
    "phase": _phase,
    "quiet": _quiet,
    "blind": _blind,
    "lose": _lose,
    "bye": _bye,
    "restart": _restart,
    "attempt": _attempt,
    "rewind": _rewind,
    "money": _money,
    "cap": _cap,
    "saved": _saved,
    "hold": _hold,
    "gpus": _gpus,
    "gpu": _gpu,
    "memory": _memory,
    "spot": _spot,
    **{word: partial(_answers, word) for word in halt_words.WORDS},
}


def _nothing_more(word: str, words: Sequence[str]) -> None:
    if words:
        raise SeriesError(f'{word}: takes nothing more, and here is "{" ".join(words)}"')


def _connected(player: Player, word: str) -> None:
    """Require a hello first, except in a log, which has no ranks."""
    if not player.log and not player.run.ranks:
        raise SeriesError(f'{word}: no rank is connected; begin with "hello", or write log = true for a log')


def _ranked(player: Player, word: str) -> None:
    if player.log:
        raise SeriesError(f"{word}: a log has no ranks; leave it out, or leave log = true out")


def _duration(text: str) -> int:
    duration_ns = parse_duration(text)
    if duration_ns > parse_duration(DURATION_MAX):
        raise SeriesError(f'"{text}" is longer than {DURATION_MAX}')
    return duration_ns


def _only_duration(word: str, words: Sequence[str]) -> int:
    if len(words) != 1:
        raise SeriesError(f"{word}: takes one duration; write for example {word} 90s")
    return _duration(words[0])


def _only_rank(player: Player, word: str, words: Sequence[str]) -> int:
    if len(words) != 1:
        raise SeriesError(f"{word}: takes one rank; write for example {word} 0")
    _connected(player, word)
    return _rank(player, word, words[0])


def _rank(player: Player, word: str, text: str) -> int:
    if player.log or not is_whole(text) or int(text) not in player.ranks:
        known = "a log has none" if player.log else f"there are 0 to {player.ranks[-1]}"
        raise SeriesError(f'{word}: "{text}" is not a rank; {known}')
    return int(text)


def _settings(word: str, words: Sequence[str], known: Sequence[str] | Set[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for one in words:
        name, _, value = one.partition("=")
        if name not in known:
            raise SeriesError(f'{word}: "{name}" is unknown here; known: {", ".join(sorted(known))}')
        settings[name] = value or "true"
    return settings


def _by_rank(player: Player, word: str, words: Sequence[str]) -> dict[int, dict[str, str]]:
    """The settings of each rank."""
    common, own = _split(player, word, words)
    by_rank = {rank: _settings(word, [*common, *own.get(rank, [])], _BEAT_SETTINGS) for rank in player.ranks}
    for settings in by_rank.values():
        _phase_named(word, settings.get("phase", PHASES[0]))
        for name in ("count", "starts"):
            if not is_whole(settings.get(name, "0")):
                raise SeriesError(f'{word}: {name}: "{settings[name]}" is not a whole number')
        _duration(settings.get("fetched", "0s"))
    return by_rank


def _split(player: Player, word: str, words: Sequence[str]) -> tuple[list[str], dict[int, list[str]]]:
    """Words before the first "N:" apply to every rank, the rest to rank N."""
    common: list[str] = []
    own: dict[int, list[str]] = {}
    into = common
    for one in words:
        if one.endswith(":"):
            into = own.setdefault(_rank(player, word, one[:-1]), [])
        else:
            into.append(one)
    return common, own


def _dollars(settings: Mapping[str, str]) -> dict[str, UsdMicros]:
    return {name: usd(value) for name, value in settings.items()}


def _needed(word: str, given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        raise SeriesError(f"{word}: {name}=… is missing")
    return given[name]


def _whole(name: str, text: str) -> int:
    if not is_whole(text) or not 1 <= int(text) <= STEPS_MAX:
        raise SeriesError(f'steps: {name}: "{text}" is not a whole number from 1 to {STEPS_MAX:,}')
    return int(text)


def _pick(value: str, index: int) -> str | None:
    choices = value.split("/")
    chosen = choices[index % len(choices)]
    return None if chosen == "absent" else chosen


def _value(name: str, text: str) -> Any:
    """A field's value. SeriesError if no trainer could send it: it would test nothing."""
    if name in FLAG_FIELDS:
        if text not in ("true", "false"):
            raise SeriesError(f'steps: {name}: "{text}" is not true, false or absent')
        return text == "true"
    if name in WHOLE_FIELDS or name == "skipped":
        if not is_whole(text) or int(text) >= 2**63:
            raise SeriesError(f'steps: {name}: "{text}" is not a whole number or absent')
        return int(text)
    try:
        return read_float(text)
    except ValueError:
        raise SeriesError(f'steps: {name}: "{text}" is not a number or absent') from None
