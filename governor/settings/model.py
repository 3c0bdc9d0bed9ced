"""The tables and keys of costgov.toml, with their defaults. `governor.settings.load_settings` fills them."""

from __future__ import annotations

import grp
import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from governor.core.base.units import NS_PER_S, UsdMicros, parse_duration, usd
from governor.core.money.budgets import BUDGETS_MAX
from governor.core.money.prices import GPUS_MAX, STALE_AFTER_DAYS, PriceKind, span_of
from governor.settings.fleet import Fleet
from governor.settings.money import LINES_MAX, BudgetTable, LineTable, named_apart, one_of_each
from governor.settings.peers import Peers
from governor.settings.streams import ALERT_RECEIVERS_MAX, JSONL_STREAMS_MAX, Alert, Jsonl
from governor.settings.values import AbsolutePath, Dollars, IdleStop, Mode, Table, Text, Uids
from governor.wire.peers import SYSTEM_DIRECTORY, chosen_directory, lasting_directory

SYSTEM_CONFIG: Final = "/etc/costgov/costgov.toml"
SYSTEM_POLICIES_DIR: Final = "/etc/costgov/policies.d"
SYSTEM_STATE_DIR: Final = "/var/lib/costgov"
SYSTEM_RUNTIME_DIR: Final = SYSTEM_DIRECTORY
TRAINER_SOCKET: Final = "trainer.sock"
SOCKET_PATH_BYTES: Final = 103  # What the kernel takes, less ".new" (adapters.trainers.listener).
ASK_AGAIN_MIN_NS: Final = 10 * NS_PER_S


class Node(Table):
    """The machine that is billed."""

    name: Text = Field(default_factory=socket.gethostname)
    # None: ask the provider.
    price_usd_per_hour: Dollars | None = Field(default=None, gt=0, lt=1e6, allow_inf_nan=False)
    price_source: Text = "costgov.toml"
    # The day of that price. None: it is restated at every start and never stale.
    price_as_of: Text | None = None
    price_kind: PriceKind = PriceKind.ON_DEMAND
    # Metric label, and the job that `stop = "job"` ends. None: as the run says.
    scheduler_job: Text | None = None
    # Stop the machine after it was unused for so long. None: the policies decide.
    idle_stop: IdleStop = None

    @field_validator("price_as_of")
    @classmethod
    def _date(cls, value: str | None) -> str | None:
        if value is not None:
            span_of(value)
        return value

    @property
    def price_usd_micros_per_hour(self) -> UsdMicros | None:
        return None if self.price_usd_per_hour is None else usd(self.price_usd_per_hour)


class Paths(Table):
    """File paths. load_settings fills what is left out; see `default_paths`."""

    state_dir: AbsolutePath
    runtime_dir: AbsolutePath
    policies_dir: AbsolutePath = Path(SYSTEM_POLICIES_DIR)
    socket: AbsolutePath
    control_socket: AbsolutePath
    recordings_dir: AbsolutePath
    marks_dir: AbsolutePath  # Of halt_marks.jsonl, which the service and every `costgov run` below it share.


class Trainer(Table):
    """The users whose trainers may connect. By default all; a run belongs to the first uid seen with it."""

    allow_uids: Uids = Field(default="any")  # type: ignore[assignment]  # The text form: the validator makes None of it.
    socket_mode: Mode = Field(default="0666")  # type: ignore[assignment]


def _usual_group() -> str | None:
    """ "costgov" if that group exists and we may assign it to a file. Otherwise no group is admitted."""
    try:
        gid = grp.getgrnam("costgov").gr_gid
    except KeyError:
        return None
    return "costgov" if os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()) else None


class Control(Table):
    """The group that may halt and hold, besides root, the daemon's own user and the run's owner."""

    group: Text | None = Field(default_factory=_usual_group)
    mode: Mode = Field(default="0660")  # type: ignore[assignment]


def _check_tables(model: BaseModel, where_keys_belong: str) -> None:
    for key, value in (model.__pydantic_extra__ or {}).items():
        if not isinstance(value, dict):
            raise ValueError(f'unknown key "{key}"; {where_keys_belong}')


class Cloud(BaseModel):
    """One provider, and its own table [cloud.<provider>], which its adapter checks."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    provider: Text = "none"

    @model_validator(mode="after")
    def _only_tables(self) -> Cloud:
        _check_tables(self, "a provider's keys stand in its own table [cloud.<provider>]")
        return self

    @property
    def config(self) -> Mapping[str, Any]:
        """The chosen provider's table. It may hold paths of secrets, so neither log nor print it."""
        found: Mapping[str, Any] = (self.__pydantic_extra__ or {}).get(self.provider, {})
        return found

    @property
    def tables(self) -> Mapping[str, Mapping[str, Any]]:
        return self.__pydantic_extra__ or {}

    def __repr__(self) -> str:
        return f"Cloud(provider={self.provider!r})"

    __str__ = __repr__


def _ask_again(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError('must be "auto", "off" or a duration such as "10m"')
    if value not in ("auto", "off") and parse_duration(value) < ASK_AGAIN_MIN_NS:
        raise ValueError(f'"{value}" is more often than every 10s: no price moves so fast, and somebody has to answer')
    return value


AskAgain = Annotated[str, AfterValidator(_ask_again)]


class SchedulerTable(BaseModel):
    """The scheduler whose jobs a halt may end, and the own table of Kubernetes, which its adapter checks.

    `auto`: Slurm in a job of its own or where its configuration stands, else Kubernetes in a pod that knows its name.
    """

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    use: Literal["auto", "slurm", "kubernetes", "off"] = "auto"
    # Take a node from the scheduler when its hardware failed: drain (Slurm), cordon (Kubernetes).
    drain: bool = False

    @model_validator(mode="after")
    def _only_tables(self) -> SchedulerTable:
        _check_tables(self, "keys of Kubernetes stand in its own table [scheduler.kubernetes]")
        return self

    @property
    def tables(self) -> Mapping[str, Mapping[str, Any]]:
        return self.__pydantic_extra__ or {}

    def __repr__(self) -> str:
        return f"SchedulerTable(use={self.use!r})"

    __str__ = __repr__


class Price(BaseModel):
    """Where the price comes from if node.price_usd_per_hour is not set. Each look-up has a table [price.<look-up>]."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True, validate_default=True)

    # auto: the look-up of cloud.provider, if there is one. none: no look-up.
    source: Text = "auto"
    # The machine to look up in the built-in table, if the look-up does not name it.
    provider: Text | None = None
    instance: Text | None = None
    gpu: Text | None = None
    gpus: int | None = Field(default=None, ge=1, le=GPUS_MAX)
    kind: PriceKind | None = None
    stale_after_days: int = Field(default=STALE_AFTER_DAYS, ge=1, le=3650)
    # auto: a spot price every 5 minutes, any other hourly. off: only at the start.
    ask_again: AskAgain = "auto"

    @model_validator(mode="after")
    def _only_tables(self) -> Price:
        _check_tables(self, "a look-up's keys stand in its own table [price.<look-up>]")
        return self

    @property
    def tables(self) -> Mapping[str, Mapping[str, Any]]:
        return self.__pydantic_extra__ or {}

    def __repr__(self) -> str:
        return f"Price(source={self.source!r})"

    __str__ = __repr__


class Metrics(Table):
    """The Prometheus endpoint, and a page for people. Neither has a password, so it is on loopback by default."""

    enabled: bool = True
    address: Text = "127.0.0.1"
    port: int = Field(default=9477, ge=0, le=65535)  # 0: any free port, printed at start.
    page: bool | None = None  # None: only on loopback. Who opened the port for Prometheus has opened no page.

    @property
    def has_page(self) -> bool:
        return _is_loopback(self.address) if self.page is None else self.page


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # The port is not opened there, and start-up says so.
        return False


class Record(Table):
    """Recordings of runs for `costgov policy replay`. Sizes are compressed, as on disk."""

    enabled: bool = True
    # For one run: its oldest sixteenth goes first.
    run_max_mb: int = Field(default=256, ge=1, le=1_000_000)
    # For all runs: the largest recording gives first.
    node_max_mb: int = Field(default=1024, ge=1, le=10_000_000)
    keep_days: int = Field(default=30, ge=1, le=3650)
    # For the journal (100 MB), whose rows are worth more.
    leave_free_mb: int = Field(default=256, ge=1, le=10_000_000)

    @model_validator(mode="after")
    def _fits(self) -> Record:
        if self.run_max_mb > self.node_max_mb:
            raise ValueError(f"run_max_mb {self.run_max_mb} is more than node_max_mb {self.node_max_mb}, all runs' own")
        return self


class Log(Table):
    level: Literal["debug", "info", "warning", "error"] = "info"


class Redact(Table):
    keys: tuple[Text, ...] = Field(default=(), max_length=64)  # Beside those of core.base.secrets.


def logs_by_one_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Take `[[log]]` for `[[jsonl]]`. The `[log]` of costgov's own lines is `[logging]` then."""
    found = dict(given)
    if isinstance(found.get("log"), list | tuple):
        others = found.get("jsonl", ())
        if isinstance(others, list | tuple):  # Else that key's own check reports the fault.
            found["jsonl"] = [*others, *found.pop("log")]
    if "logging" in found and "log" not in found:
        found["log"] = found.pop("logging")
    return found


class Settings(BaseSettings):
    """All of costgov.toml, checked. Frozen; load_settings constructs it."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _logs(cls, given: Any) -> Any:
        return logs_by_one_name(given) if isinstance(given, Mapping) else given

    # Decide and record but change nothing, whatever the policies say.
    observe: bool = False
    node: Node = Field(default_factory=Node)
    paths: Paths
    trainer: Trainer = Field(default_factory=Trainer)
    control: Control = Field(default_factory=Control)
    cloud: Cloud = Field(default_factory=Cloud)
    price: Price = Field(default_factory=Price)
    scheduler: SchedulerTable = Field(default_factory=SchedulerTable)
    metrics: Metrics = Field(default_factory=Metrics)
    peers: Peers = Field(default_factory=Peers)
    fleet: Fleet = Field(default_factory=Fleet)
    record: Record = Field(default_factory=Record)
    log: Log = Field(default_factory=Log)
    redact: Redact = Field(default_factory=Redact)
    alert: tuple[Alert, ...] = Field(default=(), max_length=ALERT_RECEIVERS_MAX)
    jsonl: tuple[Jsonl, ...] = Field(default=(), max_length=JSONL_STREAMS_MAX)
    line: Annotated[tuple[LineTable, ...], AfterValidator(named_apart)] = Field(default=(), max_length=LINES_MAX)
    budget: Annotated[tuple[BudgetTable, ...], AfterValidator(one_of_each)] = Field(default=(), max_length=BUDGETS_MAX)


def default_paths(
    given: Mapping[str, Any], environ: Mapping[str, str], uid: int, run: str | None = None, above: str | None = None
) -> dict[str, Any]:
    """Fill what [paths] leaves out: systemd's assignment, else the system's directories, else the user's.

    Root, and a user who may write the system's directories (the service's own), gets those. `run` names a run with
    its own governor: its directories are below those, so that neither governor disturbs the other. `above`: the
    directory below which a given `state_dir` was made for the run. No name of a directory says that.
    """
    paths, lasting = dict(given), lasting_directory(environ, uid)
    below = f"/runs/{run}" if run is not None else ""
    if "state_dir" not in paths:
        assigned = environ.get("STATE_DIRECTORY", "").split(":")[0]  # Set by systemd; several are joined by colons.
        above = assigned or _system(SYSTEM_STATE_DIR, uid) or lasting
        paths["state_dir"] = above + below
    shared = above if above is not None else str(paths["state_dir"])
    if not shared.startswith("/"):
        shared = SYSTEM_STATE_DIR  # A wrong path is reported once.
    # All recordings of a user share one directory, because one limit bounds them together.
    paths.setdefault("recordings_dir", f"{shared}/recordings")
    paths.setdefault("marks_dir", shared)
    vanishes = False
    if "runtime_dir" not in paths:
        assigned = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
        systems = assigned or _system(SYSTEM_RUNTIME_DIR, uid)
        user = chosen_directory(environ, uid)
        vanishes = run is not None and systems is None and not user.startswith(f"{lasting}/")
        paths["runtime_dir"] = (systems or user) + below
    paths.setdefault("socket", trainer_socket(str(paths["state_dir"]), paths["runtime_dir"], may_vanish=vanishes))
    paths.setdefault("control_socket", f"{paths['runtime_dir']}/control.sock")
    return paths


def trainer_socket(state_dir: str, runtime_dir: str, *, may_vanish: bool) -> str:
    """The trainer socket's default path. `may_vanish`: a logout removes the runtime directory, and the command goes on.

    A trainer that it restarts has the path in its environment. The control socket is looked for after a new login.
    """
    lasting = f"{state_dir}/{TRAINER_SOCKET}"
    may_vanish = may_vanish and len(os.fsencode(lasting)) <= SOCKET_PATH_BYTES
    return lasting if may_vanish else f"{runtime_dir}/{TRAINER_SOCKET}"


def _system(directory: str, uid: int) -> str | None:
    return directory if uid == 0 or os.access(directory, os.W_OK) else None
