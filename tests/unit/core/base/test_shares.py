"""Who makes room: never somebody within a fair share, and nothing of worth before what is worth nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.shares import NOTHING, Claim, beyond, first_to_go

CLAIMS = st.lists(st.builds(Claim, st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=12)


def test_the_uid_with_most_gives_its_oldest_of_least_worth() -> None:
    claims = {"a": Claim(1, 2), "b": Claim(2, 2), "c": Claim(1, 1), "d": Claim(1, 1), "e": Claim(2, 1)}
    assert first_to_go(claims) == "c"


def test_what_is_worth_nothing_goes_first_whosever_it_is() -> None:
    claims = {"a": Claim(1, 2), "b": Claim(1, 1), "c": Claim(1, 1), "d": Claim(2, NOTHING)}
    assert first_to_go(claims) == "d"


@given(CLAIMS, st.integers(0, 12))
def test_nobody_within_a_fair_share_gives_anything_of_worth(given_claims: list[Claim], limit: int) -> None:
    claims = dict(enumerate(given_claims))
    gone = beyond(claims, limit)
    assert len(gone) == len(set(gone)) == max(0, len(claims) - limit)
    of_worth = [key for key in gone if claims[key].worth != NOTHING]
    kept = {key: claim for key, claim in claims.items() if key not in gone}
    if of_worth:
        assert all(claim.worth != NOTHING for claim in kept.values())
        held = Counter(claims[key].uid for key, claim in claims.items() if claim.worth != NOTHING)
        left = Counter(claim.uid for claim in kept.values())
        assert all(held[claims[key].uid] > max(left.values(), default=0) - 1 for key in of_worth)
        assert all(left[claims[key].uid] + 1 >= max(left.values(), default=0) for key in of_worth)


@given(CLAIMS, st.integers(0, 12))
def test_one_by_one_and_all_at_once_take_the_same_number_of_each_worth(given_claims: list[Claim], limit: int) -> None:
    claims = left = dict(enumerate(given_claims))
    one_by_one = []
    while len(left) > limit:
        one_by_one.append(first_to_go(left))
        left = {key: claim for key, claim in left.items() if key != one_by_one[-1]}
    at_once = beyond(claims, limit)
    worthless = [[key for key in gone if claims[key].worth == NOTHING] for gone in (one_by_one, at_once)]
    assert len(worthless[0]) == len(worthless[1])
