"""The shared part of the price look-ups: JSON over HTTP under one deadline, unprintable keys, exact amounts.

A look-up sends only reads, and only to its configured host.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NoReturn

from governor.adapters.http.client import (
    HttpFailure,
    SecretFault,
    exchange,
    make_client,
    may_be_asked,
    origin,
    read_secret_file,
)
from governor.adapters.plugins import ConfigError, ConfigKey, Surroundings
from governor.core.base.units import MICROS_PER_USD, NS_PER_DAY, UsdMicros
from governor.core.money.prices import Day, Machine, Origin, PriceAnswer, PriceKind, Quote, day_text
from governor.remote_ports import PriceSource

BODY_BYTES_MAX: Final = 1024 * 1024  # A page of a hundred list prices is some 80 KB.
KEY_FILE_BYTES_MAX: Final = 4096  # A key is a line.
# For a whole question. A start waits for it, and a node without a price still starts.
DEADLINE_S: Final = 10.0
ABSURD_USD: Final = 10**12

TIMEOUT_KEY: Final = ConfigKey("timeout_s", "seconds", DEADLINE_S, "For the whole question, all its pages included.")
_KEY: Final = re.compile(r"[!-~]{1,512}")  # One printable word; nothing else fits a header.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # It becomes part of a path.

_EXPLAINED: Final[Mapping[str, str]] = {
    "timeout": "no answer in time",
    "connect_failed": "it cannot be reached; is outgoing HTTPS allowed?",
    "broken_off": "the connection broke",
    "too_large": "the answer is too large to be one",
    "malformed": "the answer is not the JSON that its documentation describes",
    "no_price": "the answer holds no price for this machine",
    "absurd_price": "the answer holds a price that no machine has",
    "other_machine": "the answer is about another machine",
    "not_running": "it says that this machine does not run, so its price now is not what it costs",
    "no_key": "there is no API key; set api_key_file",
    "key_not_readable": "the API key's file cannot be read",
    "key_readable_by_everyone": "others may read the API key's file; chmod o-r",
    "key_malformed": "the API key is not one printable word",
    "no_instance_id": "this machine's id is not known; set instance_id",
    "bad_instance_id": "the machine's id is not one; correct instance_id",
    "http_401": "the API key is not accepted",
    "http_403": "the API key may not read this",
    "http_404": "it does not know this machine",
    "http_429": "too many questions from this account; ask again later",
}


def explained(reason: str) -> str:
    """One line for a reason of the fixed set. An unknown status stands for itself."""
    known = _EXPLAINED.get(reason) or ("the provider has trouble" if reason.startswith("http_5") else "refused")
    return f"{known} ({reason})"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed question. `reason` is one of a fixed set, so that no URL, header or body can reach a log through it."""

    reason: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    value: str = field(repr=False)


def read_key(file: str | None, variable: str, name: str, surroundings: Surroundings) -> ApiKey | Failure:
    """The key from its file, else from `name` in $CREDENTIALS_DIRECTORY, else from the environment. Read each time."""
    directory = surroundings.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(file) if file else Path(directory) / name if directory else None
    if path is not None and (file or path.exists()):
        text = _key_file(path)
    else:
        text = surroundings.environ.get(variable) or Failure("no_key")
    if isinstance(text, Failure):
        return text
    return ApiKey(text.strip()) if _KEY.fullmatch(text.strip()) else Failure("key_malformed")


def _key_file(path: Path) -> str | Failure:
    found = read_secret_file(path, KEY_FILE_BYTES_MAX)
    if isinstance(found, SecretFault):
        is_open = found is SecretFault.READABLE_BY_EVERYONE
        return Failure("key_readable_by_everyone" if is_open else "key_not_readable")
    return found.decode("ascii", "replace")


def instance_id(configured: str | None, variable: str | None, surroundings: Surroundings) -> str | Failure:
    found = configured or (surroundings.environ.get(variable) if variable else None)
    if not found:
        return Failure("no_instance_id")
    return found if _ID.fullmatch(found) else Failure("bad_instance_id")


class JsonApi:
    """GETs of JSON from one host, one question after another."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._timeout_s = timeout_s
        self._client = make_client()

    def begin(self) -> float:
        """Begin a question. All its requests end by the returned time (time.monotonic)."""
        return time.monotonic() + self._timeout_s

    def get(self, target: str, ends_at: float, headers: Mapping[str, str], key: ApiKey | None = None) -> Any | Failure:
        """GET a path of the endpoint, or a whole URL below it. Numbers are int and Decimal, exact."""
        url = target if "://" in target else self.endpoint + target
        if origin(url) != origin(self.endpoint):
            return Failure("malformed")  # A link to another host is not followed.
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            return Failure("timeout")
        authorization = {"Authorization": f"Bearer {key.value}"} if key is not None else {}
        reply = exchange(
            self._client, "GET", url, headers={"Accept": "application/json", **headers, **authorization},
            deadline_s=left_s, body_bytes_max=BODY_BYTES_MAX,
        )  # fmt: skip
        if isinstance(reply, HttpFailure):
            return Failure(reply.reason)
        if reply.status != 200:
            return Failure(f"http_{reply.status}")
        try:
            return json.loads(reply.body, parse_float=Decimal, parse_constant=_not_json)
        # An exponent beyond Decimal's, or nesting beyond Python's.
        except (ValueError, ArithmeticError, RecursionError):
            return Failure("malformed")


@dataclass(frozen=True, slots=True)
class InstanceReading:
    """What an answer states about one machine."""

    instance: Mapping[str, Any]
    instance_id: object  # Compared with the requested id.
    machine: Machine
    # The present price of a stopped machine is not what it costs.
    runs: bool
    price: UsdMicros | Failure
    source: str
    basis: str


@dataclass(frozen=True, slots=True)
class KeyedLookUp:
    """A look-up that asks one question about this machine, with a key. Most providers' look-ups are of this kind.

    `{id}` in `target` is replaced. `read` gets the answer's object.
    """

    name: str
    target: str
    read: Callable[[Mapping[str, Any]], InstanceReading | Failure]
    id_variable: str  # The environment variable with the machine's id.
    id_meaning: str
    key_variable: str
    endpoint: str

    @property
    def keys(self) -> tuple[ConfigKey, ...]:
        where = f"Default: {self.name} in $CREDENTIALS_DIRECTORY, else ${self.key_variable}."
        return (
            ConfigKey("instance_id", "text", None, self.id_meaning),
            ConfigKey("api_key_file", "text", None, where),
            TIMEOUT_KEY,
            ConfigKey("endpoint", "text", self.endpoint, "API URL. Plain http only on loopback."),
        )

    def build(self, config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
        return _KeyedSource(self, config, surroundings)


class _KeyedSource:
    """`ports.PriceSource`."""

    def __init__(self, look_up: KeyedLookUp, config: Mapping[str, Any], surroundings: Surroundings) -> None:
        self.name = look_up.name
        self.bound_s = float(config["timeout_s"])
        self._look_up = look_up
        self._config = config
        self._surroundings = surroundings
        self._api = JsonApi(checked_endpoint(f"{self.name}.endpoint", config["endpoint"]), self.bound_s)

    def ask(self) -> PriceAnswer:
        machine_id = instance_id(self._config["instance_id"], self._look_up.id_variable, self._surroundings)
        if isinstance(machine_id, Failure):
            return unanswered(machine_id)
        key = read_key(self._config["api_key_file"], self._look_up.key_variable, self.name, self._surroundings)
        if isinstance(key, Failure):
            return unanswered(key)
        found = self._api.get(self._look_up.target.replace("{id}", machine_id), self._api.begin(), {}, key)
        reading = found if isinstance(found, Failure) else self._look_up.read(mapping(found))
        if isinstance(reading, Failure):
            return unanswered(reading)
        if reading.instance_id != machine_id:
            return unanswered(Failure("other_machine" if "id" in reading.instance else "malformed"))
        price = reading.price if reading.runs else Failure("not_running")
        if isinstance(price, Failure):
            return unanswered(price, reading.machine)  # The machine is known all the same.
        kind, gpus = reading.machine.kind or PriceKind.ON_DEMAND, reading.machine.gpus
        quote = Quote(price, reading.source, today(self._surroundings), kind, reading.basis, Origin.MACHINE, gpus)
        return PriceAnswer(quote, machine=reading.machine)


def unanswered(failure: Failure, machine: Machine | None = None) -> PriceAnswer:
    return PriceAnswer(problem=explained(failure.reason), machine=machine)


def _not_json(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity are not JSON and not prices.


def checked_endpoint(name: str, url: str) -> str:
    """Accept https, or plain http on a loopback or link-local address. ConfigError otherwise."""
    if not may_be_asked(url, link_local=True):
        raise ConfigError(f"price.{name}: must be an https URL, or plain http on a loopback or link-local address")
    return url


def usd_micros(value: object, units_per_usd: int = 1) -> UsdMicros | Failure:
    """An amount as micro-dollars, rounded to the nearest. 0 and less pass: `choose` refuses them with a line."""
    if isinstance(value, str):
        value = _decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return Failure("no_price")
    if not -ABSURD_USD < value < ABSURD_USD:
        return Failure("absurd_price")
    return UsdMicros(int((Decimal(value) * MICROS_PER_USD / units_per_usd).to_integral_value()))


def _decimal(text: str) -> Decimal | None:
    return Decimal(text) if re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{1,12})?", text) else None


def count_of(value: object) -> int | None:
    return value if isinstance(value, int) else None


def mapping(value: object) -> Mapping[str, Any]:
    """The object, or an empty one if the provider sent something else."""
    return value if isinstance(value, dict) else {}


def text_of(value: object) -> str | None:
    """A name from the provider if it can be shown, else None."""
    return value if isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable() else None


def today(surroundings: Surroundings) -> str:
    return day_text(Day(surroundings.wall_ns() // NS_PER_DAY))
