"""What every price look-up keeps to: the provider's figure exactly, or no figure and one clear line; and no secret."""

from __future__ import annotations

import json
import time

import pytest

from governor.adapters import prices
from governor.adapters.http.price_lookup import read_key
from governor.adapters.plugins import Surroundings
from governor.core.money.prices import Day, PriceAnswer, RemarkKind, choose, span_of
from tests.contract.prices.rigs import HANG, RIGS, SECRET, TODAY, Rig
from tests.tidy import gates

TODAY_DAY = Day(span_of(TODAY)[0])
STATUSES = (301, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503)
BODIES = {
    "nothing": b"",
    "no JSON": b"<html>Sign in to the hotel's network</html>",
    "cut off": b'{"data": {"id": "0920582c"',
    "a list": b"[]",
    "a text": b'"17.5"',
    "null": b"null",
    "another object": b'{"hello": "world"}',
    "not a number": b'{"id": "pod1", "status": "RUNNING", "cost": NaN}',
    "an exponent": b'{"id": "pod1", "status": "RUNNING", "cost": 1e9999999999999999999}',
    "a nest": b"[" * 200_000,
    "not text": b"\xff\xfe\x00",
    "objects where others belong": b'{"data": [1], "instances": [1], "Items": {"a": 1}, "id": {}, "cost": {}}',
}


def test_every_look_up_is_in_this_suite() -> None:
    gates.nothing_missing(
        gates.without_a_rig("price look-up", prices.names(), RIGS, "tests/contract/prices/rigs.py RIGS")
    )


@pytest.mark.parametrize(("figure", "micros"), [(55.04, 55_040_000), (3592, 3_592_000_000), (0.236555, 236_555)])
def test_the_providers_figure_comes_through_exactly(rig: Rig, figure: float, micros: int) -> None:
    rig.costs(figure)
    answer = rig.source().ask()
    assert answer.problem == ""
    quote = answer.quote
    assert quote is not None
    assert quote.usd_micros_per_hour == round(micros * rig.unit_usd)
    assert (quote.as_of, quote.origin, quote.kind) == (TODAY, rig.origin, rig.kind)
    assert quote.source
    assert answer.machine is not None


def test_it_only_reads_and_only_from_its_own_host(rig: Rig) -> None:
    rig.costs(2.5)
    rig.source().ask()
    methods = {(asked.method, asked.path.partition("?")[0]) for asked in rig.server.asked}
    posts = {path for method, path in methods if method == "POST"}
    assert posts <= ({"/"} if rig.name == "aws" else set())
    assert {asked.form.get("Action", [""])[0] for asked in rig.server.asked if asked.method == "POST"} <= {
        "DescribeSpotPriceHistory",
        "DescribeInstances",
    }
    assert {path for method, path in methods if method == "PUT"} <= {"/latest/api/token"}


@pytest.mark.parametrize("status", STATUSES)
def test_a_refusal_is_unknown_and_one_line(rig: Rig, status: int) -> None:
    rig.says(status, json.dumps({"error": SECRET}).encode())
    _unknown(rig.source().ask(), f"http_{status}")


@pytest.mark.parametrize("kind", BODIES)
def test_what_is_no_answer_is_unknown(rig: Rig, kind: str) -> None:
    rig.says(200, BODIES[kind])
    _unknown(rig.source().ask(), "(")


def test_a_missing_figure_is_unknown(rig: Rig) -> None:
    rig.costs(None)
    _unknown(rig.source().ask(), "no_price")


@pytest.mark.parametrize("figure", ["cheap", "", "1e5", "NaN", "Infinity", "0x10"])
def test_a_text_in_the_figures_place_is_unknown(rig: Rig, figure: str) -> None:
    rig.costs(figure)
    _unknown(rig.source().ask(), "no_price")


@pytest.mark.parametrize("figure", [True, [17.5], {"usd": 17.5}])
def test_something_else_in_the_figures_place_is_unknown(rig: Rig, figure: object) -> None:
    rig.costs(figure)
    _unknown(rig.source().ask(), "no_price")


@pytest.mark.parametrize("figure", [0, 0.0, -1, -0.5, 0.0000001])
def test_nothing_and_less_is_refused_in_one_line(rig: Rig, figure: float) -> None:
    rig.costs(f"{figure:.7f}" if rig.name == "aws" else figure)
    answer = rig.source().ask()
    assert answer.quote is not None
    chosen = choose([answer.quote], None, None, TODAY_DAY)
    assert chosen.quote is None
    assert [remark.kind for remark in chosen.remarks] == [RemarkKind.REFUSED, RemarkKind.UNKNOWN]
    assert answer.quote.source in chosen.remarks[0].line


def test_whatever_one_value_of_the_answer_is_the_question_ends_in_an_answer(rig: Rig) -> None:
    source, spoilt = rig.source(), list(rig.spoil(rig.body(17.5)))
    assert len(spoilt) > 12
    for body in spoilt:
        rig.says(200, body)
        answer = source.ask()
        if answer.quote is None:
            assert answer.problem, body
            _unknown(answer, "")
        else:
            assert "\n" not in answer.quote.text, body


@pytest.mark.parametrize("figure", [b"1e400000", b"-1e400000", b"1" * 400])
def test_a_price_beyond_all_reason_is_unknown(rig: Rig, figure: bytes) -> None:
    rig.says(200, rig.body(12345).replace(b"12345", figure))
    _unknown(rig.source().ask(), "_price)")


def test_a_million_an_hour_is_refused_in_one_line(rig: Rig) -> None:
    rig.costs(1_000_001 / rig.unit_usd)
    answer = rig.source().ask()
    assert answer.quote is not None
    assert [remark.kind for remark in choose([answer.quote], None, None, TODAY_DAY).remarks] == [
        RemarkKind.REFUSED,
        RemarkKind.UNKNOWN,
    ]


def test_a_provider_that_does_not_answer_is_left_at_the_deadline(rig: Rig) -> None:
    rig.says(HANG)
    source = rig.source(timeout_s=0.3)
    begun = time.monotonic()
    _unknown(source.ask(), "timeout")
    assert time.monotonic() - begun < 25.0  # The server would hold it for thirty.
    assert source.bound_s < 20


def test_a_provider_that_is_not_there_is_unknown(rig: Rig) -> None:
    _unknown(rig.source(endpoint="http://127.0.0.1:9").ask(), "connect_failed")


def test_no_secret_is_in_any_representation(rig: Rig) -> None:
    for say in (lambda: rig.costs(2.5), lambda: rig.says(401), lambda: rig.says(200, SECRET.encode())):
        say()
        source = rig.source()
        answer = source.ask()
        assert SECRET not in f"{source!r}{answer!r}{vars(source).get('_api')!r}"
    if rig.has_key and rig.name != "aws":
        assert {asked.headers["Authorization"] for asked in rig.server.asked} == {f"Bearer {SECRET}"}
    # A key goes nowhere but into its header.
    assert SECRET not in "".join(asked.path for asked in rig.server.asked)


def test_a_key_shows_nothing_of_itself() -> None:
    key = read_key(None, "A_KEY", "a", Surroundings(environ={"A_KEY": SECRET}))
    assert SECRET not in f"{key!r}{key!s}"


def _unknown(answer: PriceAnswer, told: str) -> None:
    assert answer.quote is None
    assert told in answer.problem
    assert "\n" not in answer.problem
    assert len(answer.problem) < 160
    assert SECRET not in repr(answer)
