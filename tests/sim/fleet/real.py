"""The adapter for etcd over one kept connection: a history makes two thousand calls, and the adapter connects for each.

Bodies, answers and their meaning are the adapter's own; only how the bytes travel is replaced.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from governor.adapters.etcd.gateway import failure, parsed
from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.core.events.fleet_store import Answer
from governor.remote_ports import FleetReply

TIMEOUT_S = 60.0  # The histories' own faults are virtual: a store that is slow here is only slow.


class KeptAlive(EtcdStore):
    def __init__(self, url: str) -> None:
        super().__init__(EtcdConfig((url,)), whole_s=TIMEOUT_S)
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._connection.close()
        super().close()

    def _post(
        self, url: str, path: str, body: dict[str, Any], ends_at: float
    ) -> tuple[int, Mapping[str, Any] | None, FleetReply]:
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        found = parsed(answer.read())
        if answer.status != 200 or found is None:
            return answer.status, found, failure(answer.status, found)
        return 200, found, FleetReply(Answer.READ)
