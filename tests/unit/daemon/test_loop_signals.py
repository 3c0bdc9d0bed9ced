"""What a governor that has ended leaves of its signals: handlers that do nothing, and nobody to wake."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from governor.daemon.loop import Daemon
from tests.contract.fakes import FakeServiceManager
from tests.unit.core.engine.test_step import make_node

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    signal.set_wakeup_fd(-1)
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("handlers")
def test_the_number_of_its_pipe_is_another_files_next_and_no_signal_writes_there() -> None:
    """As here, where it fails by a fault of its own: the governor after it opens a journal first."""
    nothing: Any = None
    daemon = Daemon(make_node(), nothing, FakeServiceManager(), lambda: (None, []))
    daemon.install_signals()
    assert not daemon.run()
    for end in daemon._wake:
        end.close()
    assert signal.set_wakeup_fd(-1) == -1
    signal.raise_signal(signal.SIGTERM)  # Whoever ends is not cut short.
