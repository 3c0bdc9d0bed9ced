"""What providers answer: every cloud and every look-up of prices, through the transport of its HTTP client."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import httpx

from governor.adapters import clouds, prices
from governor.adapters.clouds.ec2.metadata import notice_of
from governor.adapters.plugins import Surroundings
from governor.core.events.inputs import BillingAnswer, StopAnswer
from tests.contract.prices.rigs import AZURE_ROW, SECRET, WALL_NS, azure_page, spot_history, spot_item
from tests.fuzz import mutate

HERE = "http://127.0.0.1:9"
INSTANCE = "i-0123456789abcdef0"
IDENTITY = {"instanceId": INSTANCE, "region": "us-east-1", "instanceType": "p5.48xlarge"}
ROLE = {
    "Code": "Success",
    "AccessKeyId": "AKID",
    "SecretAccessKey": SECRET,
    "Token": "tok",
    "Expiration": "2099-01-01T00:00:00Z",
}
DESCRIBED = (
    '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item><instancesSet><item>'
    f"<instanceId>{INSTANCE}</instanceId><instanceState><name>running</name></instanceState><launchTime>2026-11-01T00:00:00Z"
    "</launchTime><instanceLifecycle>spot</instanceLifecycle><rootDeviceType>ebs</rootDeviceType><spotInstanceRequestId>sir-1"
    "</spotInstanceRequestId><blockDeviceMapping><item><deviceName>/dev/sda1</deviceName><ebs><volumeId>vol-1</volumeId>"
    "<deleteOnTermination>true</deleteOnTermination></ebs></item></blockDeviceMapping><tagSet><item><key>k</key><value>v</value>"
    "</item></tagSet></item></instancesSet></item></reservationSet></DescribeInstancesResponse>"
).encode()
SPOT = (
    b"<DescribeSpotInstanceRequestsResponse><spotInstanceRequestSet><item><spotInstanceRequestId>sir-1</spotInstanceRequestId>"
    b"<type>persistent</type><state>active</state></item></spotInstanceRequestSet></DescribeSpotInstanceRequestsResponse>"
)
REFUSED = (
    b"<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>no</Message></Error></Errors></Response>"
)
STOPPED = (
    b"<StopInstancesResponse><instancesSet><item><instanceId>i-0</instanceId></item></instancesSet>"
    b"</StopInstancesResponse>"
)
VM = {"vmSize": "Standard_ND96isr_H100_v5", "location": "eastus", "priority": "Regular"}

Reply = tuple[int, bytes, dict[str, str]]
_SERVED: tuple[tuple[str, bytes], ...] = (
    ("/latest/api/token", b"token"),
    ("/latest/dynamic/instance-identity/document", json.dumps(IDENTITY).encode()),
    ("/latest/meta-data/instance-life-cycle", b"spot"),
    ("/latest/meta-data/placement/availability-zone", b"us-east-1a"),
    ("/latest/meta-data/iam/security-credentials/role", json.dumps(ROLE).encode()),
    ("/latest/meta-data/iam/security-credentials/", b"role"),
    ("/latest/meta-data/spot/instance-action", b'{"action": "stop", "time": "2026-11-23T00:00:00Z"}'),
    ("/metadata/instance/compute", json.dumps(VM).encode()),
    ("/api/retail/prices", azure_page({**AZURE_ROW, "retailPrice": 98.32}, following=None)),
    ("/api/v1/instances/", json.dumps({"data": {"id": "0920582c", "status": "active", "instance_type": {
        "name": "gpu_8x_h100_sxm5", "specs": {"gpus": 8}, "price_cents_per_hour": 2392}}}).encode()),
    ("/v2/pods/", json.dumps({"id": "pod1", "status": "RUNNING", "gpu": {"id": "H200", "count": 2},
     "cost": 7.98}).encode()),
    ("/api/v0/instances/", json.dumps({"instances": {"id": 77, "cur_state": "running", "num_gpus": 8,
     "gpu_name": "H100 SXM",
                                                     "dph_total": 17.5, "is_bid": True}}).encode()),
)  # fmt: skip
_BY_ACTION: dict[str, bytes] = {
    "DescribeInstances": DESCRIBED, "DescribeSpotInstanceRequests": SPOT, "StopInstances": STOPPED,
    "DescribeSpotPriceHistory": spot_history(spot_item("17.5")),
}  # fmt: skip
DATES = ("Mon, 23 Nov 2026 12:00:00 GMT", "Mon, 01 Jan 9999 00:00:00 GMT",
"Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
         "x", "", "Sun, 31 Dec 0001 23:59:59 -2359", "Thu, 01 Jan 1970 00:00:00 +99999999999")  # fmt: skip
ENVIRON = {
    "RUNPOD_POD_ID": "pod1", "RUNPOD_API_KEY": SECRET, "LAMBDA_API_KEY": SECRET, "CONTAINER_ID": "77",
    "CONTAINER_API_KEY": SECRET, "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": SECRET,
}  # fmt: skip
CONFIG: dict[str, dict[str, Any]] = {
    "aws": {"endpoint": HERE, "metadata_endpoint": HERE, "timeout_s": 5.0},
    "azure": {"endpoint": HERE, "metadata_endpoint": HERE},
    "lambda_cloud": {"endpoint": HERE, "instance_id": "0920582c"},
    "runpod": {"endpoint": HERE}, "vast": {"endpoint": HERE},
}  # fmt: skip


class Providers:
    """An input is a few replies, broken, to the questions of one adapter: whatever it asks next gets the next one."""

    name = "providers"
    share = 0.03
    block = 2_000

    def begin(self, work: Path) -> None: ...

    def draw(self, random: Random) -> Any:
        what = random.choice(("cloud", "cloud", "cloud", "price", "price", "notice"))
        name = "aws" if what == "cloud" else random.choice(sorted(CONFIG))
        if what == "notice":
            return what, name, mutate.damaged(random, mutate.encoded(random, mutate.broken(
                random, {"action": "stop", "time": "2026-11-23T00:00:00Z"})), 0.3), ""  # fmt: skip
        spoilt = random.choice((1, 1, 1, 2, 5))
        seeds = [random.randrange(2**32) for _ in range(spoilt)]
        first = random.choice((0, 0, 1, 2, 3, 4, 5, 6))  # The first question whose reply is broken.
        return (
            what,
            name,
            {first + place: seed for place, seed in enumerate(seeds)},
            random.choice(("stop", "billing", "preflight")),
        )

    def play(self, one: Any) -> None:
        what, name, spoilt, call = one
        if what == "notice":
            notice_of(spoilt)
            return
        surroundings = Surroundings(ENVIRON, lambda: WALL_NS, Path("/nonexistent"))
        server = _Server(spoilt)
        adapter: Any = (
            clouds.load("aws", CONFIG["aws"], surroundings)
            if what == "cloud"
            else prices.load(name, CONFIG[name], {}, surroundings)
        )
        connect(adapter, httpx.Client(transport=httpx.MockTransport(server.reply)))
        if what == "price":
            answer = adapter.ask()
            assert answer.problem is None or (answer.problem.isprintable() and SECRET not in answer.problem)
            assert answer.quote is None or isinstance(answer.quote.usd_micros_per_hour, int)
        elif call == "stop":
            reply = adapter.stop("run-7-1", 0)
            assert isinstance(reply.answer, StopAnswer)
            assert reply.reason.isprintable()
        elif call == "billing":
            seen = adapter.billing()
            assert isinstance(seen.answer, BillingAnswer)
            assert seen.provider_state.isprintable()
        else:
            assert all(problem.isprintable() for problem in adapter.preflight().problems)
        for thread in threading.enumerate():
            if thread.name == "http":
                thread.join(5)

    def end(self) -> None: ...


def connect(adapter: object, client: httpx.Client, depth: int = 4) -> None:
    """Give every part of the adapter that asks over HTTP this client."""
    for name, value in list(vars(adapter).items()) if hasattr(adapter, "__dict__") else ():
        if isinstance(value, httpx.Client):
            value.close()
            setattr(adapter, name, client)
        elif depth and type(value).__module__.startswith("governor."):
            connect(value, client, depth - 1)


class _Server:
    """Answers as documented, but for some of its replies."""

    def __init__(self, spoilt: dict[int, int | Reply]) -> None:
        self._spoilt, self._asked = spoilt, 0

    def reply(self, request: httpx.Request) -> httpx.Response:
        asked, self._asked = self._asked, self._asked + 1
        body = next((body for path, body in _SERVED if request.url.path.startswith(path)), None)
        if body is None:
            action = request.content.decode().partition("Action=")[2].partition("&")[0]
            body = _BY_ACTION.get(action, REFUSED)
        status, headers = (200 if body is not REFUSED else 403), {"Date": DATES[0]}
        if asked in self._spoilt:
            told = self._spoilt[asked]
            status, body, headers = _spoilt(Random(told), body) if isinstance(told, int) else told
        return httpx.Response(status, stream=httpx.ByteStream(body), headers=headers)


def _spoilt(random: Random, body: bytes) -> Reply:
    status = random.choice((200, 200, 200, 200, 204, 301, 400, 401, 404, 429, 500, 503, 999))
    headers = {"Date": random.choice(DATES), "Retry-After": random.choice((*mutate.TEXTS[1:4], "9" * 400))}
    try:
        document = json.loads(body)
        body = mutate.encoded(random, mutate.broken(random, document, random.choice((1, 1, 2))))
    except ValueError:
        text = body.decode()
        if "<" in text and random.random() < 0.6:
            at = random.choice([place for place, character in enumerate(text) if character == ">"]) + 1
            end = text.find("<", at)
            body = (text[:at] + random.choice(mutate.TEXTS) + text[max(at, end) :]).encode("utf-8", "surrogatepass")
        elif random.random() < 0.5:
            body = random.choice(mutate.TEXTS).encode("utf-8", "surrogatepass")
    return status, mutate.damaged(random, body, 0.4), headers
