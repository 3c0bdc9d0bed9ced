"""Governors as etcd sees them: connections of plain asyncio, which keep a lease, write rows and watch one key.

An HTTP client of Python would be what is measured: httpx made 73 transactions a second where these make 1,649.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from dataclasses import replace
from typing import Any, Final

from governor.adapters.etcd.gateway import b64, kept_of, parsed, range_body, transaction_body
from governor.core.fleet.scopes import (
    GrantRow,
    Holder,
    Kept,
    ScopeRow,
    Transaction,
    compares,
    grant_key,
    granted,
    scope_key,
    scope_row,
    text_of,
)

KEEP_ALIVE_S: Final = 5.0
WRITE_S: Final = 60.0
LEASE_S: Final = 30
KILL_SWITCH: Final = "/costgov/bench/kill"
PRESENCE: Final = "/costgov/bench/presence/"
SCOPES: Final = 20  # Teams: a grant's transaction meets those of its own team alone.
CONFLICTS_MAX: Final = 20
MORE_USD_MICROS: Final = 1_000_000


class Wire:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        return self._streams

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        reader, writer = await self.open()
        await self._send(writer, path, body)
        head = await reader.readuntil(b"\r\n\r\n")
        if b"chunked" in head.lower():
            data = b""
            while (size := int((await reader.readline()).strip(), 16)) > 0:
                data += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            data = await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        return parsed(data)

    async def _send(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        writer.write(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(content)) + content
        )
        await writer.drain()

    async def watch(self, key: str, told: asyncio.Queue[float]) -> None:
        """Put the moment of each event of that key."""
        reader, writer = await self.open()
        await self._send(writer, "/v3/watch", {"create_request": {"key": b64(key)}})
        await reader.readuntil(b"\r\n\r\n")
        while True:
            size = int((await reader.readline()).strip() or b"0", 16)
            data = await reader.readexactly(size)
            if b'"events"' in data or b'"created"' in data:
                told.put_nowait(time.monotonic())
            await reader.readline()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Client:
    """One governor with one run."""

    def __init__(self, number: int, port: int, calls: Counter[str]) -> None:
        self.number = number
        self._calls, self._wire, self._watch = calls, Wire(port), Wire(port)
        self.told: asyncio.Queue[float] = asyncio.Queue()
        self.scope = Kept(scope_key(f"team-{number % SCOPES}"))
        holder = Holder(f"node-{number:04}", "0d1e2f3a-0000-4000-8000-00000000beef", f"ledger-{number}")
        self._grant = Kept(grant_key(holder, f"team-{number % SCOPES}", f"llama-{number}"))
        self._row: GrantRow | None = None
        self._lease = ""
        self.late_ms: list[float] = []

    async def live(self, length: float) -> None:
        """Begin somewhere in the minute, and go on until cancelled. `length`: of a minute, for a quick look."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch.watch(KILL_SWITCH, self.told))
            try:
                await self._round(length)
            finally:
                watching.cancel()
                self._wire.close()
                self._watch.close()

    async def _round(self, length: float) -> None:
        self._lease = (await self._wire.post("/v3/lease/grant", {"TTL": str(LEASE_S)}))["ID"]
        await self._present()
        writes = length * ((self.number * 0.618) % 1.0)
        begun = time.monotonic() - KEEP_ALIVE_S * ((self.number * 0.381) % 1.0)
        start = time.monotonic()
        while True:
            begun += KEEP_ALIVE_S
            await asyncio.sleep(max(0.0, begun - time.monotonic()))
            await self._timed("/v3/lease/keepalive", {"ID": self._lease})
            if time.monotonic() - start >= writes:
                writes += length
                await self._present()
                await self._raise()

    async def _timed(self, path: str, body: dict[str, Any]) -> Any:
        begun = time.monotonic()
        found = await self._wire.post(path, body)
        self.late_ms.append((time.monotonic() - begun) * 1e3)
        self._calls[path] += 1
        return found

    async def _present(self) -> None:
        row = {"v": 1, "node": f"node-{self.number}", "instance": "i-0123456789abcdef0", "cloud": "aws", "runs": 1,
               "rate_usd_micros_per_hour": 98_320_000, "seen_wall_ns": time.time_ns()}  # fmt: skip
        key = b64(f"{PRESENCE}node-{self.number:04}")
        await self._timed("/v3/kv/put", {"key": key, "value": b64(json.dumps(row)), "lease": self._lease})

    async def _raise(self) -> None:
        """Ask for more, as often as another one of the team was quicker."""
        for _ in range(CONFLICTS_MAX):
            before = scope_row(self.scope) if self.scope.revision else ScopeRow(10**15)
            assert before is not None
            row = self._row or GrantRow(0, rate_usd_micros_per_hour=98_320_000, instance="start-1")
            more = row.granted_usd_micros + MORE_USD_MICROS
            to = replace(row, granted_usd_micros=more, seen_wall_ns=time.time_ns(), request=f"request-{more}")
            after = granted(before, self._row, to)
            puts = ((self.scope.key, text_of(after)), (self._grant.key, text_of(to)))
            found = await self._timed(
                "/v3/kv/txn", transaction_body(Transaction(compares(self.scope, self._grant), puts))
            )
            if found.get("succeeded"):
                revision = int(found["header"]["revision"])
                self.scope = Kept(self.scope.key, puts[0][1], revision)
                self._grant, self._row = Kept(self._grant.key, puts[1][1], revision), to
                return
            self._calls["conflicts"] += 1
            kvs = found["responses"][0]["response_range"].get("kvs", [])
            self.scope = kept_of(kvs[0]) if kvs else Kept(self.scope.key)


async def shout(port: int, clients: list[Client], word: str) -> list[float]:
    """Write the kill switch; milliseconds until each client has been told."""
    wire = Wire(port)
    begun = time.monotonic()
    await wire.post("/v3/kv/put", {"key": b64(KILL_SWITCH), "value": b64(word)})
    heard = await asyncio.gather(*(client.told.get() for client in clients))
    wire.close()
    return [(at - begun) * 1e3 for at in heard]


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


async def stored(port: int) -> dict[str, int]:
    """etcd's own words: bytes of its file, bytes in use, revisions."""
    wire = Wire(port)
    found = await wire.post("/v3/maintenance/status", {})
    kv = await wire.post("/v3/kv/range", range_body(KILL_SWITCH))
    wire.close()
    names = {"file": "dbSize", "used": "dbSizeInUse", "raft": "raftIndex"}
    return {**{name: int(found[key]) for name, key in names.items()}, "revision": int(kv["header"]["revision"])}
