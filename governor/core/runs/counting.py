"""Count the tokens of steps: by the total that a rank or a log tells, by the ranks' own totals, or by the step."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from governor.core.base.units import COUNT_MAX
from governor.core.events.inputs import Step
from governor.core.events.streams import Held, TokensSettled
from governor.core.runs.belief import AS_TOLD, TIMES_THE_LARGEST_MAX, Believed, Told
from governor.core.runs.rank_tokens import Counted
from governor.core.runs.state import Rank, Run

# So many steps and more ahead of the last one, and more than were heard since, no lost frames explain.
STEPS_AHEAD_MIN = 100
# Of a log's totals so many are kept. Then each second one goes, and what lies between two is in proportion.
LOG_TOTALS_MAX = 64


def count_step(run: Run, rank: Rank | None, step: Step, *, leads: bool, is_first: bool) -> Step | None:
    """Enter the tokens of a step. Return the lead's step whose figures count by now, with the tokens that it has.

    `is_first`: the first step of its attempt.
    """
    if run.belief.is_beyond:
        return None
    if is_first:
        run.belief.held = None  # What the last attempt told last, nobody has confirmed.
    size, place = run.data_parallel_size, rank.data_parallel_rank if rank is not None else None
    own = step.tokens_own_total
    if rank is None or size is None or place is None or own is None or _is_contradicted(run, step, own * size):
        return _count_alone(run, step, is_first=is_first) if leads else None
    shares = run.rank_tokens
    told = shares.tell(step, rank.rank, place, own)
    if leads and step.tokens_total is None:  # It has loaded a checkpoint that does not say what went before.
        return _count_alone(run, step, is_first=is_first)
    if leads:
        shares.wait(step)
    elif step.step not in shares.waiting:
        return None
    # A rank tells its place with its first batch. Stages of a pipeline that get no tokens never do.
    may_be_told = shares.is_patient and len(told) < size
    for one in run.ranks.values():
        other = one.data_parallel_rank
        if one.connection is not None and other not in told and (other is not None or may_be_told):
            if not shares.is_late:
                return None
            _turn(run, shares.waiting[max(shares.waiting)])
            return _count_together(run, shares.late(size))
    _turn(run, shares.waiting[step.step])
    return _count_together(run, shares.settle(step.step, told, size))


def take_training(run: Run, left: int, now: int, *, has_trained: bool) -> None:
    """The attempt's first step comes, in another training than the last one's. See TrainedCount.take_training()."""
    last = (run.counted_step, run.tokens_total, run.furthest) if run.counted_step is not None else None
    taken = run.trained_count.take_training(left, now, last, has_trained=has_trained)
    if taken is not None:
        (run.counted_step, run.tokens_total, run.furthest), run.counted_from = taken, None


def count_settled(run: Run, settled: TokensSettled) -> Step:
    """Count the tokens of a log that has ended by its best reading. Returns the step that they count with."""
    if settled.counts is None:
        step = Step(settled.at, None, run.run, 0, settled.step, tokens_total=settled.total)
    else:
        *earlier, (last, tokens) = settled.counts.lines
        held = Held(tuple(earlier)) if earlier else None
        run.counted_step = None  # Its lines were seen, and their tokens were not counted.
        step = Step(settled.at, None, run.run, 0, last, tokens=tokens, held=held)
    return count_step(run, None, step, leads=True, is_first=False) or step


def tokens_of_steps(run: Run) -> tuple[int, int] | None:
    """So many tokens in so many steps: those of the attempt, until one is the present one's. None: not known."""
    since, last, total = run.counted_from, run.counted_step, run.tokens_total
    if since is None or last is None or total is None or (run.trains_again and since[0] != run.attempt_at):
        return (run.tokens_per_step, 1) if run.tokens_per_step else None
    steps, tokens = last - since[1], total - since[2]
    if steps > 0 and tokens > 0:
        return tokens, steps
    first = run.step_tokens or run.tokens_per_step
    return (first, 1) if first else None


def tokens_at_last_step(run: Run) -> int | None:
    """The run's total at its last step, with as many tokens in each as in those so far. None: not known."""
    per_step, total, last = tokens_of_steps(run), run.tokens_total, run.counted_step
    if run.total_steps is None or per_step is None:
        return None
    if total is None or last is None or (run.trains_again and run.step is None):
        total = last = 0
    at_last = total + max(0, run.total_steps - last) * per_step[0] // per_step[1]
    return at_last if at_last <= COUNT_MAX else None  # Such a schedule only means that it has no end.


def _is_contradicted(run: Run, step: Step, own: int) -> bool:
    """Whether a rank says of itself and its like far more than of all the run."""
    return step.tokens_total is not None and not run.belief.may_be(own - step.tokens_total)


def _last_believed(run: Run) -> tuple[int, int] | None:
    """The last step, and the total that was told with it."""
    if run.tokens_total is None:
        return None
    return run.counted_step if run.counted_step is not None else 0, run.tokens_total + run.trained_count.offset


def _weigh(run: Run, step: Step, told: Told, *, may_fall: bool) -> Believed | None:
    """Weigh a total that is told. The attempt's first shows from which checkpoint it goes on."""
    count = run.trained_count
    if not count.is_new:
        return run.belief.weigh(told, _last_believed(run), may_fall=may_fall)
    own_steps = _own_steps(run, step)
    own = (told.tokens if told.tokens is not None else run.belief.largest) * own_steps
    begun_at, begun = step.step - own_steps, told.total - own
    is_anew = run.trains_again and step.attempt_step == step.step
    is_known = is_apart = count.is_of_new_origin
    if not is_apart:
        count.go_to(begun_at, begun)
    last = _last_believed(run)
    if last is not None and count.last_told is not None:
        last = count.last_told
    ahead = told.total - last[1] if last is not None else 0
    is_far = is_apart or (bool(own) and last is not None and _is_far(run, step, begun_at, last[0], is_anew=is_anew))
    if is_far and not is_apart and ahead > TIMES_THE_LARGEST_MAX * own and last is not None:
        run.belief.skip(told, last[0], ahead - own)
        is_apart = True
    if is_apart:
        origin, apart = count.origin, (begun_at, begun)
        # An origin that says more than is told by now is not believed in that.
        if is_known and origin is not None and origin.tokens_total is not None and origin.tokens_total <= told.total:
            apart = origin.step, origin.tokens_total
        _go_on_apart(run, *apart)
    # Of tokens that are not told the largest step is no measure of what was trained again.
    knows = told.tokens is not None or is_far or begun - count.offset > (run.tokens_total or 0)
    if step.connection is not None and begun >= 0 and knows:
        count.begin_at(begun)
    return AS_TOLD if is_apart else run.belief.weigh(told, last, may_fall=may_fall)


def _turn(run: Run, step: Step) -> None:
    """Behind a load nothing of before says how many tokens a step has, and ranks count their own from nothing."""
    if step.connection is not None and run.trained_count.turn(step.attempt_step, run.last_trained):
        run.counted_from = run.belief.held = None
        run.rank_tokens.doubt()


def _own_steps(run: Run, step: Step) -> int:
    """How many steps the attempt has made since it loaded what it goes on from. Of one that does not say: this one."""
    return 1 if step.attempt_step is None else max(1, step.attempt_step - run.trained_count.loaded_at)


def _is_far(run: Run, step: Step, begun_at: int, last_step: int, *, is_anew: bool = False) -> bool:
    """Whether the attempt goes on from another run's checkpoint, by its distance: nobody knows whose it is."""
    since, count = run.counted_from, run.trained_count
    if step.connection is None or step.attempt_step is None or is_anew:
        return is_anew and step.connection is not None
    if count.origin is not None or (since is not None and since[0] == run.attempt_at and not count.loaded_at):
        return False
    furthest = run.furthest[0] if run.furthest is not None and not count.strands else 0
    return begun_at - max(last_step, furthest) > _lost_at_most(run)


def _lost_at_most(run: Run) -> int:
    """How many steps in a row may have gone unheard at the end of an attempt."""
    since, counted = run.counted_from, run.counted_step
    if since is None or counted is None:
        return STEPS_AHEAD_MIN
    return max(STEPS_AHEAD_MIN, counted - since[1])


def _go_on_apart(run: Run, step: int, total: int) -> None:
    """What the attempt trains begins with this step and total, of which nothing was trained here."""
    known, furthest, count = run.tokens_total, run.furthest, run.trained_count
    last = None if known is None else (run.counted_step or 0, known + count.offset)
    if last is not None and furthest is not None and furthest[1] > last[1] - count.offset:
        last = furthest[0], furthest[1] + count.offset
    trained = max(known or 0, count.trained if count.strands else furthest[1] if furthest is not None else 0)
    if count.origin is not None and count.origin.run:
        run.belief.begin_elsewhere(count.origin.run, step, total, count.origin.tokens_total)
    count.go_on_apart(step, total, last, trained)


def _take_total(run: Run, told: Told, believed: Believed) -> bool:
    """Let the run have this total. False: no run has so many."""
    if told.total > COUNT_MAX:
        run.belief.go_beyond(told)
        run.tokens_total = None
        return False
    if believed.skipped and run.tokens_total is not None:
        run.trained_count.jump(run.tokens_total + run.trained_count.offset + believed.skipped, believed.skipped)
    own = (told.tokens or 0) + (believed.held.tokens or 0 if believed.held is not None else 0)
    run.tokens_total = run.trained_count.of_told(told.total, own)
    return True


def _count_together(run: Run, counted: Counted) -> Step | None:
    told = Told(counted.step.step, counted.total, counted.tokens)
    believed = _weigh(run, counted.step, told, may_fall=True)  # An estimate of other ranks' may have been too high.
    if believed is None:
        run.rank_tokens.doubt()
        return None
    if not _take_total(run, told, believed):
        return None
    if counted.nonpad is not None and counted.tokens is not None:
        _count_nonpad(run, counted.nonpad, counted.tokens)
    _note(run, counted.step, counted.step.tokens)
    return counted.step


def _count_alone(run: Run, step: Step, *, is_first: bool) -> Step | None:
    tokens = step.tokens if step.tokens is not None else run.tokens_per_step
    believed: Believed | None = AS_TOLD
    _turn(run, step)
    if step.tokens_total is not None:
        if _is_usual(run, step, step.tokens_total):
            run.tokens_total = step.tokens_total - run.trained_count.offset
        else:
            believed, tokens = _weigh_total(run, step, step.tokens_total, tokens, is_first=is_first)
            step = replace(step, tokens=None) if tokens is None and step.tokens is not None else step
    elif tokens is not None:
        if step.held is not None:
            _count_held(run, step.held)
        believed = _count_tokens(run, step, tokens, is_first=is_first)
    if believed is None:
        return None
    if step.tokens_nonpad is not None and step.tokens is not None:
        _count_nonpad(run, step.tokens_nonpad, step.tokens)
    _note(run, step, tokens)
    if believed.held is not None and believed.held.tokens is not None:
        return replace(step, tokens=(tokens or 0) + believed.held.tokens)
    return step


def _is_usual(run: Run, step: Step, total: int) -> bool:
    """Whether a total needs no weighing, as nearly all: none is held, and a step before was as large."""
    known, last, belief, tokens = run.tokens_total, run.counted_step, run.belief, step.tokens
    count = run.trained_count
    if known is None or last is None or step.step <= last or belief.held is not None or count.is_new:
        return False
    known += count.offset
    return (
        known <= total <= known + belief.largest
        and total <= COUNT_MAX + min(0, count.offset)
        and (tokens or 0) <= belief.largest
    )


def _weigh_total(
    run: Run, step: Step, total: int, tokens: int | None, *, is_first: bool
) -> tuple[Believed | None, int | None]:  # fmt: skip
    """How the total is believed, and the step's tokens: None where it contradicts them."""
    last = _last_believed(run)
    told = Told(step.step, total, step.tokens)
    goes_back = is_first or run.trained_count.is_new or last is None or step.step <= last[0]
    believed = _weigh(run, step, told, may_fall=goes_back)
    if believed is not None and not _take_total(run, told, believed):
        believed = None
    rise = total - last[1] if last is not None else total
    return believed, None if tokens is not None and tokens > rise and not run.belief.may_be(tokens) else tokens


def _count_tokens(run: Run, step: Step, tokens: int, *, is_first: bool) -> Believed | None:
    """Count a step that tells no total. None: what it tells is not believed."""
    if step.connection is not None:
        told = Told(step.step, _told_by_steps(run, step, tokens, is_first=is_first), tokens)
        believed = run.belief.weigh(told, _last_believed(run), may_fall=True)
        return believed if believed is not None and _take_total(run, told, believed) else None
    last = _last_believed(run)
    steps = step.step - last[0] if last is not None else 1
    told = Told(step.step, tokens + (last[1] if last is not None else 0), tokens)
    believed = run.belief.weigh_line(told, steps)
    if believed is None:
        return None
    if believed.held is not None and believed.held.tokens is not None:
        run.tokens_total = _counted_of_log(run, believed.held.step, believed.held.tokens, is_first=False)
        run.counted_step = believed.held.step
    total = _counted_of_log(run, step.step, tokens, is_first=is_first)
    told = told._replace(total=total + run.trained_count.offset)
    return believed if _take_total(run, told, believed) else None


def _count_nonpad(run: Run, nonpad: int, tokens: int) -> None:
    run.nonpad_tokens = (run.nonpad_tokens or 0) + min(nonpad, tokens)
    run.nonpad_of_tokens += tokens


def _note(run: Run, step: Step, tokens: int | None) -> None:
    run.counted_step = step.step
    since = run.counted_from
    if since is None or since[0] != run.attempt_at or step.step < since[1]:
        run.counted_from = run.attempt_at, step.step, run.tokens_total or 0
    if run.furthest is None or step.step >= run.furthest[0]:
        run.furthest = step.step, run.tokens_total or 0
    run.trained_count.note(step.step, run.tokens_total or 0)
    run.step_tokens = tokens
    run.tokens_per_s = run.pace.count(step, tokens, run.tokens_total)


def _told_by_steps(run: Run, step: Step, tokens: int, *, is_first: bool) -> int:
    """What a rank would tell as its total, which tells only tokens: by the number of its step."""
    count = run.trained_count
    if not count.is_new:
        return _counted_on(run, step, tokens, is_first=is_first) + count.offset
    own_steps, last_step = _own_steps(run, step), run.counted_step
    begun_at, origin = max(0, step.step - own_steps), count.origin
    is_near = last_step is None or not _is_far(run, step, begun_at, last_step)
    if is_near and not count.strands and not count.is_of_new_origin and (origin is None or last_step is None):
        count.begin_counting()
        is_near = step.attempt_step is not None and (last_step is not None or begun_at <= STEPS_AHEAD_MIN)
        total = _counted_on(run, step, tokens, is_first=is_first, is_near=is_near) + count.offset
        if is_near:
            count.begin_at(total - own_steps * tokens)
        return total
    begun = _begun_by_steps(run, begun_at, tokens)
    if begun is None:
        from_step, total = begun_at, begun_at * tokens
        if origin is not None:
            says, by_steps = origin.tokens_total, origin.step * tokens
            from_step, total = origin.step, says if says is not None and says <= COUNT_MAX else by_steps
        elif last_step is not None:
            told = Told(step.step, total + own_steps * tokens)
            run.belief.skip(told, last_step, total - (run.tokens_total or 0))
        _go_on_apart(run, from_step, total)
        begun = total + max(0, begun_at - from_step) * tokens
    count.begin_at(begun)
    return begun + own_steps * tokens


def _begun_by_steps(run: Run, begun_at: int, tokens: int) -> int | None:
    """The total that was told at this step by what the attempt goes on with. None: it goes on with nothing of it."""
    count, furthest = run.trained_count, run.furthest
    if count.strands or furthest is None or count.is_of_new_origin:
        return count.go_to_step(begun_at, tokens, None if count.origin is not None else _lost_at_most(run))
    if count.origin is None:
        return None
    count.begin_counting()
    return max(0, furthest[1] - (furthest[0] - begun_at) * tokens)


def _counted_on(run: Run, step: Step, tokens: int, *, is_first: bool, is_near: bool = False) -> int:
    """The token total at a step that does not report it, for example after a script loaded its own checkpoint.

    A rank takes every step, so the step's number decides. Steps before the last counted one were trained before. Steps
    in between were trained unheard: all where the attempt is known to go on from near by, as many else as it can have
    trained itself. Its checkpoint may be another run's. `is_first`: the first step of its attempt.
    """
    known, last = run.tokens_total or 0, run.counted_step
    if last is None:
        return known + (max(1, step.step) if is_near else 1) * tokens
    if is_first and step.step > last and run.furthest is not None and run.furthest[1] > known:
        # The previous attempt began further back than where this one goes on.
        last, known = run.furthest
    since = step.step - last
    return max(tokens, known + (since if is_near else min(since, run.attempt_step)) * tokens)


def _counted_of_log(run: Run, step: int, tokens: int, *, is_first: bool) -> int:
    """The token total at a line of a log, which may show any steps: each line beyond the furthest step adds its tokens.

    A step before that was trained before, and has the total that it had then. A log may have several lines of a step.
    """
    totals = run.log_totals
    if not totals and run.furthest is not None and run.furthest[1] > 0:  # An older journal has the furthest step alone.
        totals += [(0, 0), run.furthest] if run.furthest[0] > 0 else [run.furthest]
    is_next_line = step == run.counted_step and not is_first
    if totals and (step < totals[-1][0] or (step == totals[-1][0] and not is_next_line)):
        return _total_then(totals, step, tokens)
    total = max(run.tokens_total or 0, totals[-1][1] if totals else 0) + tokens
    if totals and step == totals[-1][0]:
        totals.pop()
    totals.append((step, total))
    if len(totals) > LOG_TOTALS_MAX:
        del totals[1:-1:2]
    return total


def _count_held(run: Run, held: Held) -> None:
    """Count lines that came before this one. What they were told to be until now was no total."""
    known = run.log_totals[-1] if run.log_totals else None
    if held.told is not None and run.tokens_total == held.told:
        run.tokens_total, run.furthest = known[1] if known else None, known
    run.counted_step = None  # The first of them is of another step than any line that has counted.
    for step, tokens in held.lines:
        run.tokens_total = _counted_of_log(run, step, tokens, is_first=False)
        run.counted_step = step


def _total_then(totals: list[tuple[int, int]], step: int, tokens: int) -> int:
    """`step`: not beyond the last of the totals. Of steps before the first one nothing is known."""
    place = bisect_left(totals, step, key=lambda one: one[0])
    to_step, to_total = totals[place]
    if place == 0:
        return min(tokens, to_total)
    from_step, from_total = totals[place - 1]
    return from_total + (to_total - from_total) * (step - from_step) // (to_step - from_step)
