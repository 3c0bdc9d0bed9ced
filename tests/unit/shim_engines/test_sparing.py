"""Which of a framework's own saves delete no older checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainer_shim.engines.base import Sparing
from trainer_shim.saving.newest_good import SPARED_MAX


def test_the_first_saves_after_a_nan_keep_all_and_then_the_limit_is_the_users_again() -> None:
    sparing, owner, seen = Sparing(), SimpleNamespace(limit=2), []
    for is_good in (True, *[False] * (SPARED_MAX + 1), True, False):
        with sparing.around_save(is_good, owner, "limit"):
            seen.append(owner.limit)
        assert owner.limit == 2, "behind each save"
    assert seen == [2, *[None] * SPARED_MAX, 2, 2, None]


def test_a_save_that_raises_leaves_the_users_limit() -> None:
    owner = SimpleNamespace(limit=2)
    with pytest.raises(OSError, match="full"), Sparing().around_save(False, owner, "limit"):
        raise OSError("full")
    assert owner.limit == 2


def test_a_framework_that_keeps_no_number_is_left_alone() -> None:
    with Sparing().around_save(False, None, "limit"):
        pass
