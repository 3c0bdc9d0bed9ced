"""Which addresses are known, for how long, and who goes where there is no room; names, and their worker."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pytest

from governor.adapters.peers.addresses import FORGOTTEN_NS, MET_MAX, TOLD_ON_NS, Addresses, Source
from governor.adapters.peers.envelope import ADDRESSES_TOLD_MAX, NONCE_USABLE_NS, Address
from governor.adapters.peers.lookups import WAITING_MAX, Found, Lookups, address
from governor.settings.peers import HostPort

NONCE = b"n" * 16
SAFETY_S = 30


def at(number: int) -> Address:
    return Address(f"10.0.{number // 256}.{number % 256}", 9479)


def none_is_ours(_: Address) -> bool:
    return False


def known(addresses: Addresses, now_ns: int) -> set[Address]:
    usable, silent = addresses.split(now_ns)
    return {*(one for one, _ in usable), *silent}


def test_who_does_not_answer_for_an_hour_is_forgotten_unless_configured() -> None:
    addresses = Addresses(none_is_ours)
    for number, source in enumerate(Source):
        addresses.add(at(number), source, 0)
    addresses.answered(at(0), "node-a", NONCE, 1)
    addresses.forget(FORGOTTEN_NS + 1)
    assert known(addresses, 0) == {at(0), at(list(Source).index(Source.CONFIGURED))}
    addresses.forget(FORGOTTEN_NS + 2)
    assert known(addresses, 0) == {at(list(Source).index(Source.CONFIGURED))}


def test_a_launch_that_names_an_address_again_has_it_known_for_another_hour() -> None:
    addresses = Addresses(none_is_ours)
    addresses.add(at(1), Source.MET, 0)
    addresses.add(at(1), Source.MET, FORGOTTEN_NS)
    addresses.forget(FORGOTTEN_NS + 1)
    assert known(addresses, 0) == {at(1)}


def test_whose_number_is_still_worth_something() -> None:
    addresses = Addresses(none_is_ours)
    addresses.add(at(1), Source.CONFIGURED, 0)
    assert addresses.split(0) == ([], [at(1)])
    addresses.answered(at(1), "node-a", NONCE, 0)
    assert addresses.split(NONCE_USABLE_NS) == ([(at(1), NONCE)], [])
    assert addresses.split(NONCE_USABLE_NS + 1) == ([], [at(1)])
    addresses.answered(at(1), "node-a", NONCE, 0, usable_ns=4 * NONCE_USABLE_NS)
    assert addresses.split(4 * NONCE_USABLE_NS) == ([(at(1), NONCE)], []), "it beats less often"


def test_others_are_told_of_who_answered_just_now_in_turns() -> None:
    addresses = Addresses(none_is_ours)
    addresses.add(at(999), Source.CONFIGURED, 0)
    for number in range(2 * ADDRESSES_TOLD_MAX):
        addresses.answered(at(number), f"node-{number}", NONCE, 0)
    turns = [addresses.to_tell(TOLD_ON_NS) for _ in range(2)]
    assert {len(turn) for turn in turns} == {ADDRESSES_TOLD_MAX}
    assert set().union(*turns) == {at(number) for number in range(2 * ADDRESSES_TOLD_MAX)}
    assert addresses.to_tell(TOLD_ON_NS + 1) == []


@pytest.mark.parametrize(
    ("worse", "better"), [(Source.TOLD, Source.MET), (Source.MET, Source.ANSWERED), (Source.TOLD, Source.CONFIGURED)]
)
def test_where_there_is_no_room_what_is_worth_less_goes(worse: Source, better: Source) -> None:
    addresses = Addresses(none_is_ours, most=2)
    addresses.add(at(1), worse, 0)
    addresses.add(at(2), better, 0)
    addresses.add(at(3), better, 1)
    addresses.add(at(4), worse, 2)
    assert known(addresses, 0) == {at(2), at(3)}
    assert addresses.refused_total == 1


def test_a_sender_that_was_silent_for_a_minute_gives_way_to_one_that_speaks() -> None:
    addresses = Addresses(none_is_ours, most=1)
    addresses.answered(at(1), "node-a", NONCE, 0)
    addresses.answered(at(2), "node-b", NONCE, TOLD_ON_NS)
    assert known(addresses, 0) == {at(1)}
    addresses.answered(at(2), "node-b", NONCE, TOLD_ON_NS + 1)
    assert known(addresses, 0) == {at(2)}


def test_launches_name_no_more_than_their_part() -> None:
    addresses = Addresses(none_is_ours)
    for number in range(MET_MAX + 10):
        addresses.add(at(number), Source.MET, number)
    assert known(addresses, 0) == {at(number) for number in range(10, MET_MAX + 10)}


@pytest.mark.parametrize("ip", ["224.0.0.1", "255.255.255.255", "0.0.0.0", "::", "ff02::1"])
def test_an_address_of_many_or_of_nobody_is_none(ip: str) -> None:
    addresses = Addresses(none_is_ours)
    addresses.add(Address(ip, 9479), Source.MET, 0)
    addresses.add(Address("10.0.0.1", 0), Source.MET, 0)
    assert (len(addresses), addresses.refused_total) == (0, 2)


def test_our_own_address_is_not_kept() -> None:
    addresses = Addresses(lambda one: one == at(1))
    addresses.add_told([at(1), at(2)], at(3), 0)
    assert known(addresses, 0) == {at(2)}


def test_anothers_loopback_is_not_ours() -> None:
    here, link = Address("127.0.0.1", 1), Address("fe80::1", 1)
    addresses = Addresses(none_is_ours)
    addresses.add_told([here, link], at(3), 0)
    assert len(addresses) == 0
    addresses.add_told([here, link], Address("127.0.0.1", 2), 0)
    assert known(addresses, 0) == {here}


def test_what_a_configured_name_stood_for_before_may_be_forgotten() -> None:
    addresses = Addresses(none_is_ours)
    addresses.add_named("node-1", [at(1), at(2)], 0)
    addresses.add_named("node-1", [at(2), at(3)], 1)
    addresses.forget(FORGOTTEN_NS + 2)
    assert known(addresses, 0) == {at(2), at(3)}


@pytest.mark.parametrize(
    ("ip", "one"),
    [
        ("::ffff:10.0.0.5", Address("10.0.0.5", 9)), ("10.0.0.5", Address("10.0.0.5", 9)),
        ("::ffff:a00:5", Address("10.0.0.5", 9)), ("FD00:0::5", Address("fd00::5", 9)),
        ("fe80::1%lo", Address("fe80::1", 9, 1)), ("fe80::1%nowhere", Address("fe80::1", 9)),
    ],
)  # fmt: skip
def test_an_address_has_one_form(ip: str, one: Address) -> None:
    assert address(ip, 9) == one


class Asked:
    """A resolver that hangs until it may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.names: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[Address]:
        assert self.may_go_on.wait(SAFETY_S)
        self.names.append(host)
        if host == "nobody":
            raise OSError("no such name")
        return [Address(f"10.0.0.{number}", port) for number in (1, 1, *range(2, 20))]


def test_names_are_looked_up_elsewhere_and_a_bound_holds() -> None:
    asked = Asked()
    lookups = Lookups(asked)
    hosts = [HostPort(f"node-{number}", 9479) for number in range(2 * WAITING_MAX)]
    taken = [lookups.ask(host, Source.MET) for host in hosts]
    assert WAITING_MAX <= taken.count(True) <= WAITING_MAX + 1  # One more, if the worker has taken one already.
    assert not lookups.ask(hosts[0], Source.MET)
    assert lookups.take() == []
    asked.may_go_on.set()
    found = _taken(lookups, taken.count(True))
    assert [one.host for one in found] == [host for host, was in zip(hosts, taken, strict=True) if was]
    assert {len(one.addresses) for one in found} == {8}
    assert lookups.ask(hosts[0], Source.MET)
    lookups.close()
    assert not lookups.ask(hosts[1], Source.MET)


def test_a_name_that_nobody_knows_has_no_addresses() -> None:
    asked = Asked()
    asked.may_go_on.set()
    lookups = Lookups(asked)
    lookups.ask(HostPort("nobody", 9479), Source.CONFIGURED)
    assert [one.addresses for one in _taken(lookups, 1)] == [()]
    lookups.close()


def _taken(lookups: Lookups, number: int) -> list[Found]:
    found: list[Found] = []
    while len(found) < number:
        found += lookups.take()
        os.sched_yield()
    return found
