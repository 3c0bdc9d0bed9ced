"""The table [fleet] of costgov.toml: an etcd that governors share, and budgets over all their runs."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from governor.core.base.units import UsdMicros, usd
from governor.core.fleet.scopes import checked_scope
from governor.core.fleet.shared import BUDGETS_MAX, SharedBudget
from governor.core.money.budgets import checked_ceiling
from governor.settings.values import AbsolutePath, Table, Text

ENDPOINTS_MAX: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _scope(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError('must be a scope in quotes such as "label:team=nlp" or "fleet"')
    return checked_scope(value)


def _ceiling(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r:.40} is not an amount in dollars")
    return checked_ceiling(usd(value))


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError(f'"{text[:63]}" is no name of a fleet: letters, digits, ".", "_" and "-", at most 63')
    return text


class FleetBudget(BaseModel):
    """A ceiling that all runs of the fleet share which its scope covers."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    scope: Annotated[str, BeforeValidator(_scope)]
    ceiling_usd: Annotated[int, BeforeValidator(_ceiling)]  # In micro-dollars once parsed.


class Fleet(Table):
    """Without endpoints there is no fleet: nothing is asked, and nothing waits."""

    etcd: tuple[Text, ...] = Field(default=(), max_length=ENDPOINTS_MAX)
    name: Annotated[Text, AfterValidator(_name)] = "main"  # Rows are below costgov/NAME/.
    user: Text | None = None
    password_file: AbsolutePath | None = None
    ca_file: AbsolutePath | None = None
    cert_file: AbsolutePath | None = None
    key_file: AbsolutePath | None = None
    plain: bool = False  # http beyond this machine.
    sweep: bool = False  # Look after machines of silent governors: settle what has ended, stop what is used up.
    budget: tuple[FleetBudget, ...] = Field(default=(), max_length=BUDGETS_MAX)

    @model_validator(mode="after")
    def _whole(self) -> Fleet:
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user and password_file belong together")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together")
        if self.budget and not self.etcd:
            raise ValueError('a [[fleet.budget]] needs etcd = ["https://10.0.0.1:2379"]: it is shared through it')
        scopes = [one.scope for one in self.budget]
        twice = next((scope for scope in scopes if scopes.count(scope) > 1), None)
        if twice is not None:
            raise ValueError(f'two budgets have scope = "{twice}"; keep one')
        return self

    @property
    def is_enabled(self) -> bool:
        return bool(self.etcd)

    @property
    def label(self) -> str:
        """As metrics tell it. Empty without a fleet."""
        return self.name if self.is_enabled else ""

    @property
    def budgets(self) -> tuple[SharedBudget, ...]:
        return tuple(SharedBudget(one.scope, UsdMicros(one.ceiling_usd)) for one in self.budget)

    def __repr__(self) -> str:  # Endpoints may hold what belongs into password_file.
        return f"Fleet(name={self.name!r}, etcd={len(self.etcd)} endpoints)"

    __str__ = __repr__
