"""Every price look-up against a server on loopback that answers as the provider's documentation has it, or as told."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from governor.adapters import prices
from governor.adapters.plugins import Surroundings
from governor.core.money.prices import Origin, PriceKind
from governor.remote_ports import PriceSource

SECRET = "SECRET0key-that-nobody-may-see"
TODAY = "2026-11-21"
WALL_NS = 1_795_262_400 * 10**9 + 5  # Noon of that day, in UTC.
HANG = -1  # A status that stands for no answer at all.


@dataclass
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    form: Mapping[str, list[str]]


Answer = tuple[int, bytes]


class Loopback:
    """One server for everything a look-up asks: the last answer registered for a path's beginning is given."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[str, Callable[[Asked], Answer]] = {}
        self.url = ""
        self._released = threading.Event()

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        for beginning in sorted(self.answers, key=len, reverse=True):
            if asked.path.startswith(beginning):
                status, body = self.answers[beginning](asked)
                if status == HANG:
                    self._released.wait(30)
                return status, body
        return 404, b"{}"

    def release(self) -> None:
        self._released.set()


@contextmanager
def loopback() -> Iterator[Loopback]:
    told = Loopback()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            form = parse_qs(self.rfile.read(length).decode())
            status, body = told.answer(Asked(self.command, self.path, dict(self.headers.items()), form))
            if status == HANG:
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_GET  # noqa: N815 - http.server names its methods so.

        def log_message(self, *args: object) -> None: ...  # Whoever wants to know reads `asked`.

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield told
        told.release()
        server.shutdown()
        thread.join()


WRONG: tuple[Any, ...] = (None, {}, [], "x", "", 0, -1, 10**30, True, [{}], {"a": []})


def _spoilt(document: Any) -> Iterator[Any]:
    """The document once for each of its values, at any depth, and each wrong thing in its place; and without it."""
    for place, value in list(document.items() if isinstance(document, dict) else enumerate(document)):
        inner = _spoilt(value) if isinstance(value, dict | list) else ()
        for other in (*WRONG, *inner):
            spoilt = document.copy()
            spoilt[place] = other
            yield spoilt
        without = document.copy()
        del without[place]
        yield without


def spoilt_json(body: bytes) -> Iterator[bytes]:
    return (json.dumps(one).encode() for one in _spoilt(json.loads(body)))


def spoilt_xml(body: bytes) -> Iterator[bytes]:
    """The document without each of its elements, with it empty, and with another in its place."""
    text = body.decode()
    for tag in re.findall(r"<(\w+)", text):
        for other in ("", f"<{tag}/>", "<item/>"):
            yield re.sub(f"<{tag}[ >].*</{tag}>", other, text, count=1).encode()


@dataclass
class Rig:
    """One look-up, its server, and how the answer that bears the price looks."""

    name: str
    server: Loopback
    priced: str  # The path whose answer bears the price.
    body: Callable[[Any], bytes]  # With this in the price's place; None: without the field.
    unit_usd: float = 1.0
    origin: Origin = Origin.MACHINE
    kind: PriceKind = PriceKind.ON_DEMAND
    config: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    has_key: bool = True
    spoil: Callable[[bytes], Iterator[bytes]] = spoilt_json

    def source(self, **config: Any) -> PriceSource:
        given = {"endpoint": self.server.url, **self.config, **config}
        return prices.load(self.name, given, {}, Surroundings(environ=self.environ, wall_ns=lambda: WALL_NS))

    def costs(self, price: Any) -> None:
        self.says(200, self.body(price))

    def says(self, status: int, body: bytes = b"{}") -> None:
        self.server.answers[self.priced] = lambda _: (status, body)


def runpod(server: Loopback) -> Rig:
    def body(price: Any) -> bytes:
        pod = {"id": "pod1", "status": "RUNNING", "gpu": {"id": "NVIDIA H200", "count": 2}, **_field("cost", price)}
        return json.dumps(pod).encode()

    environ = {"RUNPOD_POD_ID": "pod1", "RUNPOD_API_KEY": SECRET}
    return Rig("runpod", server, "/v2/pods/pod1", body, environ=environ)


def lambda_cloud(server: Loopback) -> Rig:
    def body(price: Any) -> bytes:
        kind = {"name": "gpu_8x_h100_sxm5", "specs": {"gpus": 8}, **_field("price_cents_per_hour", price)}
        return json.dumps({"data": {"id": "0920582c", "status": "active", "instance_type": kind}}).encode()

    environ = {"LAMBDA_API_KEY": SECRET}
    return Rig(
        "lambda_cloud", server, "/api/v1/instances/0920582c", body, 0.01,
        config={"instance_id": "0920582c"}, environ=environ,
    )  # fmt: skip


def vast(server: Loopback) -> Rig:
    def body(price: Any) -> bytes:
        instance = {"id": 77, "cur_state": "running", "num_gpus": 8, "gpu_name": "H100 SXM"}
        return json.dumps({"instances": {**instance, **_field("dph_total", price)}}).encode()

    environ = {"CONTAINER_ID": "77", "CONTAINER_API_KEY": SECRET}
    return Rig("vast", server, "/api/v0/instances/77/", body, environ=environ)


AZURE_ROW: dict[str, Any] = {
    "currencyCode": "USD", "armRegionName": "eastus", "armSkuName": "Standard_ND96isr_H100_v5", "type": "Consumption",
    "unitOfMeasure": "1 Hour", "skuName": "ND96isrH100v5", "meterName": "ND96isrH100v5", "isPrimaryMeterRegion": True,
    "productName": "Virtual Machines NDsr H100 v5 Series", "serviceName": "Virtual Machines",
}  # fmt: skip


def azure_page(*rows: Mapping[str, Any], following: str | None = None) -> bytes:
    return json.dumps({"Items": rows, "NextPageLink": following, "Count": len(rows)}).encode()


def azure(server: Loopback) -> Rig:
    compute = {"vmSize": "Standard_ND96isr_H100_v5", "location": "eastus", "priority": "Regular"}
    server.answers["/metadata/instance/compute"] = lambda asked: (
        (200, json.dumps(compute).encode()) if asked.headers.get("Metadata") == "true" else (400, b"")
    )
    return Rig(
        "azure", server, "/api/retail/prices", lambda price: azure_page({**AZURE_ROW, **_field("retailPrice", price)}),
        origin=Origin.LIST, config={"metadata_endpoint": server.url}, has_key=False,
    )  # fmt: skip


SPOT_ITEM = (
    "<item><instanceType>{type}</instanceType><productDescription>{product}</productDescription>{price}"
    "<timestamp>{stamp}</timestamp><availabilityZone>{zone}</availabilityZone></item>"
)


def spot_item(
    price: Any, stamp: str = "2026-11-20T23:00:00.000Z", zone: str = "us-east-1a", type: str = "p5.48xlarge",  # noqa: A002
    product: str = "Linux/UNIX",
) -> str:  # fmt: skip
    amount = "" if price is None else f"<spotPrice>{price}</spotPrice>"
    return SPOT_ITEM.format(type=type, product=product, price=amount, stamp=stamp, zone=zone)


def spot_history(*items: str) -> bytes:
    listed = "".join(items)
    return (
        '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<spotPriceHistorySet>{listed}</spotPriceHistorySet></DescribeSpotPriceHistoryResponse>"
    ).encode()


def aws(server: Loopback) -> Rig:
    document = {"instanceId": "i-0123456789abcdef0", "region": "us-east-1", "instanceType": "p5.48xlarge"}
    served = {
        "/latest/api/token": b"token",
        "/latest/dynamic/instance-identity/document": json.dumps(document).encode(),
        "/latest/meta-data/instance-life-cycle": b"spot",
        "/latest/meta-data/placement/availability-zone": b"us-east-1a",
    }
    for path, body in served.items():
        server.answers[path] = lambda _, body=body: (200, body)  # type: ignore[misc]
    rig = Rig(
        "aws", server, "/", lambda price: spot_history(spot_item(price)), kind=PriceKind.SPOT,
        config={"metadata_endpoint": server.url, "credentials": "environment"},
        environ={"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": SECRET}, spoil=spoilt_xml,
    )  # fmt: skip
    rig.costs(17.5)
    return rig


RIGS = {"aws": aws, "azure": azure, "lambda_cloud": lambda_cloud, "runpod": runpod, "vast": vast}


def _field(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {name: value}
