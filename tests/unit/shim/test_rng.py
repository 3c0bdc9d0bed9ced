"""Generator states survive a file, bit for bit."""

from __future__ import annotations

import json
import random
import sys

from trainer_shim.saving import rng


def test_python_continues_where_it_was() -> None:
    random.seed(5)
    random.gauss(0, 1)  # Leaves a cached second value behind.
    states = json.loads(json.dumps(rng.capture()))
    expected = [random.gauss(0, 1), random.random()]
    random.seed(6)
    rng.restore(states)
    assert expected == [random.gauss(0, 1), random.random()]


def test_only_what_the_trainer_has_loaded_is_captured() -> None:
    assert ("torch" in rng.capture()) == ("torch" in sys.modules)
