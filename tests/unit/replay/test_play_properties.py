"""What holds for any healthy log: however much of it there is, the shipped policy leaves it alone."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.policy import Policy
from governor.policies.files import PACKAGED_POLICY
from governor.policies.parse import load_policies
from governor.replay.play import Replay

RECORDS = 400


def shipped() -> tuple[Policy, ...]:
    policies, problems = load_policies([("default.toml", PACKAGED_POLICY.read_text())])
    assert policies is not None, problems
    return policies.policies


SHIPPED = shipped()


def healthy(seed: int) -> list[dict[str, Any]]:
    """A loss that falls and spikes and comes back, steps that vary, evaluations that pause it, noise in the norm."""
    rng = random.Random(seed)
    step_s, noise, spiky = 10 ** rng.uniform(-1.5, 1.5), rng.uniform(0.0, 0.05), rng.random() < 0.5
    now, spike, records = rng.uniform(0, 1800), 0.0, []
    for step in range(1, RECORDS + 1):
        took_s = step_s * rng.uniform(0.95, 1.1) * (10 if rng.random() < 0.01 else 1)
        now += took_s
        spike = 0.8 * spike + (rng.uniform(0, 2) if spiky and rng.random() < 0.01 else 0.0)
        loss = 8.0 * step**-0.2 * (1 + rng.gauss(0, noise)) * (1 + spike)
        records.append(
            {"t": now, "step": step, "loss": loss, "grad_norm": rng.lognormvariate(0, 0.5), "step_time_s": took_s}
        )
        if step % 100 == 0:
            records.append({"t": now, "phase": "eval_start", "step": step})
            now += rng.uniform(1, 1200)
            records.append({"t": now, "phase": "eval_stop", "step": step, "val_loss": loss})
    return records


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_more_healthy_records_never_make_a_halt(seed: int) -> None:
    """Told with the record that did it: any part of a log that is quiet as a whole was quiet too."""
    replay = Replay(SHIPPED)
    for record in healthy(seed):
        assert replay.read(record) is None
        assert not [told for told in replay.verdicts if told.response == "halt"], record
