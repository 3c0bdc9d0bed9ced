"""A cloud for the demo and the drills, all of it on 127.0.0.1: EC2 by moto, metadata and faults by this file.

    python examples/demo_cloud.py --ready-file cloud.json [--fault http_429 --fault-count 3] [--stopping-s 2]

moto's server plays EC2 and remembers what happened to the instance. In front of it stands a proxy which adds what moto
lacks (the `stopping` phase, throttling, lost replies, lies) and which is programmed through `POST /_control`. Beside it
runs a metadata service (IMDSv2) that names the instance moto really has. It ends with the process that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import logging
import os
import re
import secrets
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

REGION = "us-east-1"
IMAGE = "ami-12c6146b"
INSTANCE_TYPE = "p5.48xlarge"
ROLE = "costgov-demo"
CALLS_MAX = 10_000  # A demo makes some twenty.
CLOCK_TOLERANCE = timedelta(minutes=5)  # EC2's own.
HELD_S_MAX = 60.0  # A reply that never comes is held no longer than this.
EFFECTS = {"StopInstances", "TerminateInstances", "TerminateInstanceInAutoScalingGroup"}
REFUSALS = {
    "http_429": (429, "RequestThrottled"),
    "http_500": (500, "InternalError"),
    "http_503": (503, "RequestLimitExceeded"),
    "dryrun_denied": (403, "UnauthorizedOperation"),
    "denied": (403, "UnauthorizedOperation"),
    "unsupported": (400, "UnsupportedOperation"),
}
FAULTS = {kind: f"answered {status} {code}" for kind, (status, code) in REFUSALS.items()} | {
    "refuse": "answered with the fault's own status and code",
    "timeout_after_effect": "it happens, but the reply never comes",
    "broken_after_effect": "it happens, and the connection breaks",
    "keeps_running": "accepted, yet the instance runs on until a forced stop",
    "slow": "the reply takes `seconds`",
    "garbage": "200 with a page that is not EC2's",
}


@dataclasses.dataclass
class Fault:
    """One misbehaviour of the API, for the next `count` matching calls."""

    kind: str
    count: int = 1
    action: str = "*"  # One API action, or every one that could end an instance.
    seconds: float = 5.0
    status: int = 500
    code: str = ""

    def matches(self, action: str, form: dict[str, str]) -> bool:
        if self.kind == "dryrun_denied":
            return "DryRun" in form and self.action in ("*", action)
        if self.kind == "keeps_running":
            return action in EFFECTS and "DryRun" not in form and "Force" not in form and action != "TerminateInstances"
        return action == self.action or (self.action == "*" and action in EFFECTS and "DryRun" not in form)


@contextlib.contextmanager
def moto() -> Iterator[int]:
    """Run moto's server on a free port of loopback."""
    os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # Halves the start.
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield int(server.get_host_and_port()[1])
    server.stop()


class DemoCloud:
    """The whole cloud in this process. Use it as a context manager; every address is on loopback."""

    def __init__(self, *, stopping_s: float = 1.0, faults: tuple[Fault, ...] = (), moto_port: int = 0) -> None:
        self.moto_port = moto_port  # 0: start a moto of our own.
        self.lock = threading.Lock()
        self.stopping_s = stopping_s
        self.stopping_reads = 0  # Besides the time: so many answers still say "stopping". For tests without a clock.
        self.faults: list[Fault] = list(faults)
        self.calls: deque[dict[str, Any]] = deque(maxlen=CALLS_MAX)
        self.metadata_reads: deque[str] = deque(maxlen=CALLS_MAX)
        self.within: Callable[[Callable[[], Any]], Any] = lambda make: make()  # In whose network it listens.
        self.metadata_token, self.metadata_down = "", False
        self.spot_action: dict[str, str] | None = None  # The two-minute notice, as metadata shows it.
        self.reported_id: str | None = None  # What metadata claims in place of the truth.
        self.spot_request: dict[str, str] | None = None  # {"id": "sir-…", "type": "one-time"}: moto's own lacks both.
        self.extra_instance_xml = ""
        self.going_since: dict[str, float] = {}
        self.times_ended = 0  # How often a running instance was really ended.
        self.rotate_credentials()

    def __enter__(self) -> DemoCloud:
        self._stack = contextlib.ExitStack()
        self.moto_port = self.moto_port or self._stack.enter_context(moto())
        self.instance_id = self.launch()
        self._servers = self.within(lambda: [Server(ApiHandler, self), Server(MetadataHandler, self)])
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.endpoint, self.metadata_endpoint = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)
        self.control = f"{self.endpoint}/_control"
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._stack.close()

    def ready(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("endpoint", "metadata_endpoint", "instance_id", "control")}
        return {**found, "region": REGION, "pid": os.getpid()}

    def launch(self) -> str:
        """Start an instance with a 100 GiB data volume, which a stop does not free."""
        reply = self.moto(
            Action="RunInstances",
            ImageId=IMAGE,
            MinCount="1",
            MaxCount="1",
            InstanceType=INSTANCE_TYPE,
            **{"BlockDeviceMapping.1.DeviceName": "/dev/sdf", "BlockDeviceMapping.1.Ebs.VolumeSize": "100"},
        )
        found = re.search(r"<instanceId>(i-[0-9a-f]+)<", reply)
        assert found, reply
        return found[1]

    def state(self, instance_id: str | None = None) -> str:
        """What is really so, whatever the API says: the meter runs unless this is stopped or terminated."""
        reply = self.moto(Action="DescribeInstances", **{"InstanceId.1": instance_id or self.instance_id})
        found = re.search(r"<instanceState>.*?<name>([a-z-]+)</name>", reply)
        return found[1] if found else "absent"

    def moto(self, **form: str) -> str:
        """Call moto directly, past every fault."""
        form.setdefault("Version", "2016-11-15")
        return self.forward(urlencode(form).encode(), "ec2")[1].decode()

    def forward(self, body: bytes, service: str) -> tuple[int, bytes]:
        # moto finds the service in the credential scope, and checks no signature.
        scope = f"AWS4-HMAC-SHA256 Credential=demo/20260101/{REGION}/{service}/aws4_request"
        form = "application/x-www-form-urlencoded; charset=utf-8"
        connection = http.client.HTTPConnection("127.0.0.1", self.moto_port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", "/", body, {"Content-Type": form, "Authorization": scope})
            response = connection.getresponse()
            return response.status, response.read()

    def rotate_credentials(self) -> None:
        """Make the role's present credentials invalid, as the provider does every few hours."""
        self.credentials = {
            "Code": "Success",
            "AccessKeyId": f"ASIA{secrets.token_hex(8).upper()}",
            "SecretAccessKey": secrets.token_urlsafe(30),
            "Token": secrets.token_urlsafe(60),
            "Expiration": (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def take_fault(self, action: str, form: dict[str, str]) -> Fault | None:
        with self.lock:
            fault = next((fault for fault in self.faults if fault.count > 0 and fault.matches(action, form)), None)
            if fault is not None:
                fault.count -= 1
        return fault

    def shown(self, reply: str) -> str:
        """Change a truthful DescribeInstances reply into what EC2 would say: stopping takes a while."""
        on_the_way = {
            "80</code><name>stopped": "64</code><name>stopping",
            "48</code><name>terminated": "32</code><name>shutting-down",
        }
        with self.lock:
            since = self.going_since.get(self.instance_id)
            going = since is not None and (time.monotonic() - since < self.stopping_s or self.stopping_reads > 0)
            self.stopping_reads = max(0, self.stopping_reads - int(going))
            extra = self.extra_instance_xml
            if self.spot_request is not None:
                extra += "<instanceLifecycle>spot</instanceLifecycle>"
                extra += f"<spotInstanceRequestId>{self.spot_request['id']}</spotInstanceRequestId>"
        for final, before in on_the_way.items() if going else ():
            reply = reply.replace(final, before)
        return reply.replace("<hypervisor>", f"{extra}<hypervisor>") if extra else reply


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], cloud: DemoCloud) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.cloud = cloud

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # A client that hung up is one of the faults.
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def reply(self, status: int, body: str | bytes, content_type: str = "text/xml") -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class ApiHandler(Handler):
    """The proxy in front of moto's EC2."""

    def do_GET(self) -> None:
        cloud = self.server.cloud
        if urlsplit(self.path).path != "/_control":
            return self.reply(404, "not found")
        with cloud.lock:
            seen = {"calls": list(cloud.calls), "faults": [dataclasses.asdict(fault) for fault in cloud.faults]}
        return self.reply(200, json.dumps({**seen, "state": cloud.state()}), "application/json")

    def do_POST(self) -> None:
        cloud = self.server.cloud
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if urlsplit(self.path).path == "/_control":
            return self.control(json.loads(body))
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        action = form.get("Action", "")
        ids = [value for name, value in form.items() if name.startswith("InstanceId")]
        with cloud.lock:
            flags = {"dry_run": "DryRun" in form, "force": "Force" in form, "params": sorted(form)}
            cloud.calls.append({"action": action, "ids": ids, "agent": self.headers.get("User-Agent", ""), **flags})
        if f"Credential={cloud.credentials['AccessKeyId']}/" not in self.headers.get("Authorization", ""):
            return self.refuse(401, "AuthFailure")
        signed_at = datetime.strptime(self.headers["X-Amz-Date"], "%Y%m%dT%H%M%S%z")
        if abs(datetime.now(UTC) - signed_at) > CLOCK_TOLERANCE:
            return self.refuse(400, "RequestExpired")
        return self.answer(action, form, body, cloud.take_fault(action, form))

    def answer(self, action: str, form: dict[str, str], body: bytes, fault: Fault | None) -> None:
        cloud = self.server.cloud
        kind = fault.kind if fault else ""
        if fault and (kind == "refuse" or kind in REFUSALS):
            return self.refuse(*REFUSALS.get(kind, (fault.status, fault.code)))
        if fault and kind == "garbage":
            return self.reply(200, fault.code or "<html><body>Please accept our terms</body></html>", "text/html")
        if kind == "slow" and fault:
            self.hold(fault.seconds)
        if kind == "keeps_running":
            return self.reply(200, _stopping_reply(action, cloud.instance_id))
        status, reply = self.perform(action, form, body)
        if kind == "timeout_after_effect":
            return self.hold(HELD_S_MAX)
        if kind == "broken_after_effect":
            return self.connection.close()
        return self.reply(status, reply)

    def perform(self, action: str, form: dict[str, str], body: bytes) -> tuple[int, bytes]:
        cloud = self.server.cloud
        request = cloud.spot_request
        if request is not None and action == "DescribeSpotInstanceRequests":
            return 200, _spot_reply(action, request).encode()
        if request is not None and action == "CancelSpotInstanceRequests":
            with cloud.lock:
                cloud.spot_request = {**request, "state": "cancelled"}
            return 200, _spot_reply(action, cloud.spot_request).encode()
        service = "autoscaling" if action.endswith("AutoScalingGroup") else "ec2"
        status, reply = cloud.forward(body, service)
        if status == 200 and action in EFFECTS:
            with cloud.lock:
                cloud.going_since.setdefault(cloud.instance_id, time.monotonic())
                cloud.times_ended += reply.count(b"<previousState><code>16<")
        if action == "DescribeInstances":
            reply = cloud.shown(reply.decode()).encode()
        return status, reply

    def control(self, orders: dict[str, Any]) -> None:
        """{"faults": [{"kind": …, "count": …, "action": …, "seconds": …}], "rotate_credentials": true, …}"""
        cloud = self.server.cloud
        with cloud.lock:
            if "faults" in orders:
                cloud.faults = [Fault(**fault) for fault in orders["faults"]]
            for name in ("stopping_s", "stopping_reads", "spot_action", "spot_request", "reported_id"):
                if name in orders:
                    setattr(cloud, name, orders[name])
        if orders.get("rotate_credentials"):
            cloud.rotate_credentials()
        self.reply(200, "{}", "application/json")

    def refuse(self, status: int, code: str) -> None:
        error = f"<Error><Code>{code}</Code><Message>Refused by the demo's fault proxy.</Message></Error>"
        self.reply(status, f"<Response><Errors>{error}</Errors></Response>")

    def hold(self, seconds: float) -> None:
        """Say nothing until the caller hangs up or the time is over."""
        ends_at = time.monotonic() + min(seconds, HELD_S_MAX)
        while (left := ends_at - time.monotonic()) > 0:
            if select.select([self.connection], [], [], min(left, 0.2))[0]:
                break
        self.close_connection = True


def _stopping_reply(action: str, instance_id: str) -> str:
    item = f"<instanceId>{instance_id}</instanceId><currentState><code>64</code><name>stopping</name></currentState>"
    return f"<{action}Response><instancesSet><item>{item}</item></instancesSet></{action}Response>"


def _spot_reply(action: str, request: dict[str, str]) -> str:
    item = f"<spotInstanceRequestId>{request['id']}</spotInstanceRequestId><type>{request['type']}</type>"
    item = f"<item>{item}<state>{request.get('state', 'active')}</state></item>"
    return f"<{action}Response><spotInstanceRequestSet>{item}</spotInstanceRequestSet></{action}Response>"


class MetadataHandler(Handler):
    """IMDSv2: nothing without a token."""

    def do_PUT(self) -> None:
        cloud = self.server.cloud
        if self.path != "/latest/api/token" or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
            return self.reply(400, "")
        cloud.metadata_token = secrets.token_urlsafe(24)
        return self.reply(200, cloud.metadata_token, "text/plain")

    def do_GET(self) -> None:
        cloud = self.server.cloud
        cloud.metadata_reads.append(self.path)
        if cloud.metadata_down:
            return self.reply(503, "")
        if not cloud.metadata_token or self.headers.get("X-aws-ec2-metadata-token") != cloud.metadata_token:
            return self.reply(401, "")
        instance_id = cloud.reported_id or cloud.instance_id
        identity = {"instanceId": instance_id, "region": REGION, "instanceType": INSTANCE_TYPE}
        documents = {
            "/latest/dynamic/instance-identity/document": json.dumps(identity),
            "/latest/meta-data/instance-id": instance_id,
            "/latest/meta-data/placement/availability-zone": f"{REGION}a",
            "/latest/meta-data/instance-life-cycle": "spot" if cloud.spot_request else "on-demand",
            "/latest/meta-data/iam/security-credentials/": ROLE,
            f"/latest/meta-data/iam/security-credentials/{ROLE}": json.dumps(cloud.credentials),
        }
        if cloud.spot_action is not None:
            documents["/latest/meta-data/spot/instance-action"] = json.dumps(cloud.spot_action)
        body = documents.get(self.path)
        return self.reply(404, "") if body is None else self.reply(200, body, "text/plain")


@contextlib.contextmanager
def ended_by_parent_or_signal() -> Iterator[int]:
    """Yield a descriptor that becomes readable when the parent dies, or on SIGTERM and SIGINT."""
    readable, writable = os.pipe()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: os.write(writable, b"x"))
    # A pidfd of the parent, because PR_SET_PDEATHSIG already fires when the thread that started us ends.
    parent = os.pidfd_open(os.getppid())
    with contextlib.closing(select.epoll()) as either:
        either.register(readable, select.EPOLLIN)
        either.register(parent, select.EPOLLIN)
        yield either.fileno()


def main() -> int:
    kinds = "\n".join(f"  {kind:22} {meaning}" for kind, meaning in FAULTS.items())
    parser = argparse.ArgumentParser(epilog=f"faults:\n{kinds}", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ready-file", type=Path, required=True, help="JSON: endpoint, metadata_endpoint, …")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), default=[], help="may be repeated")
    parser.add_argument("--fault-count", type=int, default=1, help="how many calls each fault spoils")
    parser.add_argument("--stopping-s", type=float, default=1.0, help="how long the stopping phase lasts")
    options = parser.parse_args()
    faults = tuple(Fault(kind, options.fault_count) for kind in options.fault)
    with ended_by_parent_or_signal() as ended, DemoCloud(stopping_s=options.stopping_s, faults=faults) as cloud:
        unfinished = options.ready_file.with_name(options.ready_file.name + ".tmp")
        unfinished.write_text(json.dumps(cloud.ready(), indent=2) + "\n")
        unfinished.rename(options.ready_file)
        select.select([ended], [], [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
