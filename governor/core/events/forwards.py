"""What a rank's shim reports of forward passes that no optimizer step follows, though several steps' worth went by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

# The shim looks at one a second. So many that are not finite, and none that is, are no bad batch.
BROKEN_MIN: Final = 5


@dataclass(frozen=True, slots=True)
class Forwards:
    """`seen`: at how many of their outputs, or of their losses, the shim has looked."""

    count: int
    seen: int = 0
    nonfinite: int = 0

    @classmethod
    def read(cls, record: Mapping[str, Any] | None) -> Self | None:
        """Read the `forwards` of a beat. None: steps come, the shim is older, or what it says cannot be."""
        if record is None:
            return None
        told = [record.get(name, 0) for name in ("count", "seen", "nonfinite")]
        if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**53 for one in told):
            return None
        return cls(*told)

    @property
    def is_broken(self) -> bool:
        """Whether none of the outputs that were looked at is finite."""
        return self.nonfinite >= self.seen >= BROKEN_MIN
