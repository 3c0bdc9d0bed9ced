"""Whom we will not watch: the rank is told why, and so are people, once per process and reason."""

from __future__ import annotations

from typing import Final

from governor.core.base.identity import ConnectionId, Peer
from governor.core.base.units import MonoNs
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect, Refuse
from governor.core.events.events import BadHello

REFUSALS_REMEMBERED_MAX: Final = 1_024  # Four times the connections of the inbox; a retry each 30 s is no news.


def on_bad_hello(node: Node, event: BadHello) -> list[Effect]:
    node.frames_lost_total += 1
    return refuse(node, event.connection, event.peer, event.why, event.at)


def refuse(node: Node, connection: ConnectionId, peer: Peer, reason: str, at: MonoNs) -> list[Effect]:
    effects: list[Effect] = [Refuse(connection, reason)]
    node.idle.refused_at = at
    if node.refusals.pop(peer.process, None) != reason:
        text = f"pid {peer.process.pid} trains UNWATCHED, its hello was refused: {reason}"
        effects.append(Alarm("hello_refused", None, text))
    node.refusals[peer.process] = reason
    if len(node.refusals) > REFUSALS_REMEMBERED_MAX:
        del node.refusals[next(iter(node.refusals))]
    return effects
