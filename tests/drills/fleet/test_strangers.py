"""Datagrams of somebody who is on the nodes' network without their secret halt nothing, now or in the next launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.drills.components import needs
from tests.drills.fleet.conftest import MakeFleet
from tests.drills.fleet.nodes import until
from tests.drills.fleet.stranger import Stranger
from tests.drills.fleet.talking import BAD_RANK, Talk, talking

needs("torch")


def refused(talk: Talk) -> list[Mapping[str, int]]:
    return [governor.ask({"cmd": "status"})["governor"]["peers"]["refused"] for governor in talk.governors]


def assert_refused(talk: Talk, reasons: tuple[str, ...], send: Callable[[], int]) -> None:
    """Each governor counts all that `send` has sent it under these reasons, and goes on."""
    before = [sum(one.get(reason, 0) for reason in reasons) for one in refused(talk)]
    count = send()

    def counted() -> bool:
        now = [sum(one.get(reason, 0) for reason in reasons) for one in refused(talk)]
        return all(after - first >= count for first, after in zip(before, now, strict=True))

    until(counted, f"{count} datagrams are refused as {reasons}")


def test_a_stranger_on_the_network_halts_nothing_with_forged_or_recorded_messages(fleet: MakeFleet) -> None:
    made = fleet(3)
    with talking(made) as talk, Stranger(made[1]) as stranger:
        talk.begin(stop="processes")
        talk.training.steer("nan", BAD_RANK)
        talk.until_halted()
        until(lambda: stranger.listen() or len(stranger.halts()) > 6, "halts were recorded")
        recorded = [stranger.raw[place] for place in stranger.halts()]
        told = stranger.heard[stranger.halts()[-1]]

        def replay() -> int:
            for data in recorded:
                stranger.send(data, made.nodes)
            return len(recorded)

        # The launch has ended. Some are of now, and go to who has had them, or to whom they were not meant for.
        doubtful = ("stale", "again_or_late", "our_name", "from_ourselves")
        assert_refused(talk, doubtful, replay)
        assert [len(governor.incidents()) for governor in talk.governors] == [1, 1, 1]

        talk.training.forget()
        talk.training.launch()
        talk.training.know()
        talk.until_all_talk()
        assert_refused(talk, doubtful, replay)
        stranger.listen()
        newest = stranger.heard[-1]

        def forge() -> int:
            stranger.send(stranger.forge(told._replace(node="node9", epoch=bytes(8)), newest), made.nodes)
            stranger.send(b"halt drill", made.nodes)
            return 1

        assert_refused(talk, ("bad_signature", "stale"), forge)
        before = talk.training.step(0)
        talk.training.until_step(before + 20)
        assert talk.training.running() == list(talk.training.ranks)
        assert [len(governor.incidents()) for governor in talk.governors] == [1, 1, 1]
        assert [governor.stage() for governor in talk.governors] == [None] * 3
