"""Governors as etcd sees them: connections of plain asyncio, which keep a lease, write rows and wait for orders.

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

from governor.adapters.etcd.gateway import WatchSeen, b64, kept_of, parsed, range_body, transaction_body, watch_body
from governor.core.base.units import WallNs
from governor.core.events.fleet_orders import Act, Order
from governor.core.fleet.cost_rows import cost_key
from governor.core.fleet.orders import ORDER_ROWS, order_key, order_text
from governor.core.fleet.presence import NodeRow, RunRow, live_key, node_key, row_text, run_key
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
from governor.daemon.fleet.sweep import ROLES

# As the daemon's: daemon/fleet/presence.py and orders.py.
KEEP_ALIVE_S: Final = 10.0
WRITE_S: Final = 60.0
LEASE_S: Final = 30
WAIT_S: Final = 30.0
SETTLED_S: Final = 5.0  # Each reads within a second and waits again.
ROLE_EVERY: Final = 3  # Keep-alives: who looks at silent governors is asked each 30 s.
TELLER: Final = f"{ROLES}teller"
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

    async def wait(self, after: int) -> bool:
        """Whether an order has changed behind this revision, within WAIT_S. The connection is of no use after it."""
        reader, writer = await self.open()
        await self._send(writer, "/v3/watch", watch_body(ORDER_ROWS, after))
        await reader.readuntil(b"\r\n\r\n")
        seen, body = WatchSeen(), b""
        try:
            async with asyncio.timeout(WAIT_S):
                while not seen.is_enough(body):
                    size = int((await reader.readline()).strip() or b"0", 16)
                    body += await reader.readexactly(size)
                    await reader.readline()
        except TimeoutError:
            return False
        return bool(seen.changed_at)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Client:
    """One governor with one run."""

    def __init__(self, number: int, port: int, calls: Counter[str]) -> None:
        self.number = number
        self._calls, self._wire, self._port = calls, Wire(port), port
        self.told: asyncio.Queue[float] = asyncio.Queue()  # When the orders had been read, each time they had changed.
        self.scope = Kept(scope_key(f"team-{number % SCOPES}"))
        self._holder = Holder(f"node-{number:04}", "0d1e2f3a-0000-4000-8000-00000000beef", f"ledger-{number}")
        self._grant = Kept(grant_key(self._holder, f"team-{number % SCOPES}", f"llama-{number}"))
        self._row: GrantRow | None = None
        self._lease = ""
        self.late_ms: list[float] = []

    async def live(self, length: float) -> None:
        """Begin somewhere in the minute, and go on until cancelled. `length`: of a minute, for a quick look."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._obey())
            try:
                await self._round(length)
            finally:
                watching.cancel()
                self._wire.close()

    async def _obey(self) -> None:
        """Read, wait behind that, and read again: with a connection for each, as the daemon has.

        A change comes with the watch, and counts as told then. The read behind it waits up to a second, as there.
        """
        is_new = True
        while True:
            read, waits = Wire(self._port), Wire(self._port)
            try:
                found = await read.post("/v3/kv/range", range_body(ORDER_ROWS, True, 256))
                self._calls["orders"] += 1
                if is_new:
                    self.told.put_nowait(time.monotonic())
                is_new = False
                if await waits.wait(int(found["header"]["revision"])):
                    self.told.put_nowait(time.monotonic())
                    await asyncio.sleep((self.number * 0.618) % 1.0)
            finally:
                read.close()
                waits.close()

    async def _round(self, length: float) -> None:
        self._lease = (await self._wire.post("/v3/lease/grant", {"TTL": str(LEASE_S)}))["ID"]
        live = Transaction((), ((live_key(self._holder), "{}"),), lease=int(self._lease))
        await self._timed("/v3/kv/txn", transaction_body(live))
        await self._present()
        writes = length * ((self.number * 0.618) % 1.0)
        begun = time.monotonic() - KEEP_ALIVE_S * ((self.number * 0.381) % 1.0)
        start, kept = time.monotonic(), self.number
        while True:
            begun += KEEP_ALIVE_S
            await asyncio.sleep(max(0.0, begun - time.monotonic()))
            await self._timed("/v3/lease/keepalive", {"ID": self._lease})
            kept += 1
            if kept % ROLE_EVERY == 0:
                role = Transaction(((TELLER, 0),), ((TELLER, self._holder.text),), lease=int(self._lease))
                await self._timed("/v3/kv/txn", transaction_body(role))
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
        """The rows of a node and its run, in one transaction."""
        node = NodeRow(f"node-{self.number:04}", time.time_ns(), "aws", "i-0123456789abcdef0", "eu-1", "0.1")
        run = RunRow(
            f"llama-{self.number}", 1000, "training", True, "stage4", {"team": "nlp"}, "job-1", 1_000, None, 8, 8,
            time.time_ns() % 10**9, 98_320_000, 10**9, 86_400,
        )  # fmt: skip
        rows = ((node_key(self._holder), row_text(node)), (run_key(self._holder, run.run), row_text(run)))
        costs = ((cost_key(20_000, self._holder, run.run), row_text(run)),)  # Of the size of a row of costs.
        for puts in (rows, costs):
            await self._timed("/v3/kv/txn", transaction_body(Transaction((), puts)))

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
    """Give an order; milliseconds until each client has it. All wait again before the next one."""
    wire, key = Wire(port), order_key("halt-00000a")
    order = Order("halt-00000a", Act.HALT, "fleet", word, "bench", WallNs(time.time_ns()))
    begun = time.monotonic()
    await wire.post("/v3/kv/put", {"key": b64(key), "value": b64(order_text(order))})
    told = await asyncio.gather(*(client.told.get() for client in clients))
    wire.close()
    await asyncio.sleep(SETTLED_S)
    return [(at - begun) * 1e3 for at in told]


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


async def stored(port: int) -> dict[str, int]:
    """etcd's own words: bytes of its file, bytes in use, revisions."""
    wire = Wire(port)
    found = await wire.post("/v3/maintenance/status", {})
    kv = await wire.post("/v3/kv/range", range_body(ORDER_ROWS))
    wire.close()
    names = {"file": "dbSize", "used": "dbSizeInUse", "raft": "raftIndex"}
    return {**{name: int(found[key]) for name, key in names.items()}, "revision": int(kv["header"]["revision"])}
