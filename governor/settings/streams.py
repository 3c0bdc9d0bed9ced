"""The [[log]] (or [[jsonl]]) and [[alert]] tables of costgov.toml: logs that are followed, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from governor.settings.values import AbsolutePath, Table, Text
from governor.wire import files
from governor.wire.formats import GPUS_MAX, LENGTH_MAX, NAMES
from governor.wire.jsonl import DEFAULT_FIELDS
from trainer_shim.wire import LABELS_MAX

# Each has a thread, and two more for its attempts.
ALERT_RECEIVERS_MAX: Final = 8
# One per run on the node. Each costs a descriptor and a read per tick.
JSONL_STREAMS_MAX: Final = 64
JSONL: Final = "jsonl"
FORMATS: Final = (JSONL, *files.NAMES, *NAMES)  # What a log may be said to be.
JSONL_FIELDS: Final = tuple(sorted(DEFAULT_FIELDS))


class Jsonl(Table):
    """A log of a trainer without the shim, what it is, and how to end that trainer."""

    by_option: ClassVar[bool] = False

    path: AbsolutePath
    run: Text
    format: Text = JSONL
    # Of a text log, where it does not say so itself.
    sequence_length: int | None = Field(default=None, ge=1, le=LENGTH_MAX)
    gpus: int | None = Field(default=None, ge=1, le=GPUS_MAX)
    stage: Text | None = None
    labels: dict[Text, Text] = Field(default_factory=dict, max_length=LABELS_MAX)
    fields: dict[str, Text] = Field(default_factory=dict)  # Our name -> the name in the file.
    pidfile: AbsolutePath | None = None
    unit: Text | None = None
    cgroup: AbsolutePath | None = None
    job: Text | None = None

    @field_validator("format")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in FORMATS:
            raise ValueError(f'"{value}" is no format; known: {", ".join(FORMATS)}')
        return value

    @field_validator("fields")
    @classmethod
    def _known(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in JSONL_FIELDS:
                raise ValueError(f'"{name}" is not a measurement; left of "=" stands one of: {", ".join(JSONL_FIELDS)}')
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Jsonl:
        given = [key for key in ("pidfile", "unit", "cgroup", "job") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both name the processes; keep one")
        return self

    @property
    def ended_by(self) -> tuple[str, str] | None:
        """How to find the run's processes, such as ("unit", "train.service"). None: only the instance can stop."""
        for key in ("pidfile", "unit", "cgroup", "job"):
            value = getattr(self, key)
            if value is not None:
                return key, str(value)
        return None


class OptionLog(Jsonl):
    """The log of `costgov run --log-format`: advice about it speaks of options and not of its table."""

    by_option: ClassVar[bool] = True


class Alert(BaseModel):
    """A receiver of alarms and halts. The other keys belong to its kind; its adapter checks them."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True, validate_default=True)

    kind: Text
    name: Text | None = None  # In logs and metrics. Default: its host.
    # Names of alarms, "halt", or prefixes with a star. Empty: all.
    only: tuple[Text, ...] = ()
    min_severity: Literal["info", "warning", "critical"] = "info"

    @property
    def config(self) -> Mapping[str, Any]:
        """May hold a secret in its URL, so neither log nor print it."""
        return self.__pydantic_extra__ or {}

    def __repr__(self) -> str:
        return f"Alert(kind={self.kind!r})"

    __str__ = __repr__
