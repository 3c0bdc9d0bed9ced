"""Whether the provider takes this machine back, asked for again and again beside the loop, and told as events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from governor.adapters.http.asker import Asker
from governor.core.base.units import DurationNs, MonoNs
from governor.core.events.events import Event
from governor.core.events.machine_events import SpotNotice
from governor.ports import Clock, Cloud, Notice

PERIOD_S: Final = 5.0  # AWS asks for this; of two minutes it is little, and of Google's half a minute, too.


@dataclass(slots=True)
class NoticeWatch:
    """A source of the loop. A provider that gives no notice is not asked."""

    cloud: Cloud | None
    clock: Clock
    _asker: Asker[Notice] | None = field(init=False)

    def __post_init__(self) -> None:
        cloud = self.cloud
        gives = cloud is not None and cloud.gives_notice
        self._asker = Asker("notices", PERIOD_S, cloud.notice) if cloud is not None and gives else None

    def poll(self, at: MonoNs) -> list[Event]:
        notice = self._asker.take() if self._asker is not None else None
        if notice is None:
            return []
        left = None if notice.at_wall is None else DurationNs(max(0, notice.at_wall - self.clock.wall()))
        return [SpotNotice(at, notice.action, left)]

    def close(self) -> None:
        if self._asker is not None:
            self._asker.close()
