"""Weights & Biases: an offline run in DIR/offline-run-RUN, which `wandb sync` uploads. Nothing is sent from here.

Figures have `step` as their axis, which goes back where a run was resumed, and the wall time at which they were told:
`_timestamp`, the axis "Wall time" of W&B. `_runtime` ("Relative time (Process)") is of the export itself: W&B's own
service writes it over whatever is given. wire.jsonl knows such rows by a stamp that is older than their process.
Events are texts, of the key `events/NAME`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from governor.core.base.units import NS_PER_S
from governor.exports.form import ExportRefused, Of, Written
from governor.exports.owned import OwnFiles, own_files
from governor.exports.series import Happened, Item, Phase, Point
from governor.exports.spool import Spool, spool

NAME: Final = "wandb"
TARGET: Final = "DIR"
MEANING: Final = "An offline run in DIR/offline-run-RUN, for `wandb sync DIR/offline-run-RUN`. Needs costgov[wandb]."

PROJECT: Final = "costgov"
STEP: Final = "step"
PHASE: Final = "phase"
SUFFIX: Final = ".wandb"
FOLDER: Final = "offline-run-"  # By this name `wandb sync` knows a run that was never online.
_SETTINGS: Final = {
    "mode": "offline", "silent": True, "console": "off", "save_code": False, "disable_git": True, "disable_code": True,
    "x_disable_stats": True, "x_disable_meta": True,
}  # fmt: skip


class OfflineRun:
    """`forms.Form`."""

    def __init__(self, of: Of, own: OwnFiles, items: Spool) -> None:
        self._of = of
        self._own = own
        self._items = items
        self.put = items.put

    def finish(self, summary: Mapping[str, Any]) -> Written:
        series = hashlib.sha256(f"{self._items.digest()} {sorted(summary.items())}".encode()).hexdigest()
        if self._own.has(series):
            return self._own.unchanged()
        made = self._make(summary)
        (file,) = self._own.files.values()
        file.take(made)
        return self._own.commit(series)

    def _make(self, summary: Mapping[str, Any]) -> Path:
        """Have wandb write the run, and return its file."""
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        try:
            import wandb
        except ImportError as error:
            raise ExportRefused(f"W&B's own package writes this: pip install 'costgov[wandb]' ({error})") from error
        directory = self._own.beside / "wandb"
        directory.mkdir()
        run = wandb.init(
            project=PROJECT, id=run_id(self._of.run), name=self._of.run, dir=str(directory),
            settings=wandb.Settings(**_SETTINGS),
        )  # fmt: skip
        try:
            run.define_metric(STEP)
            run.define_metric("*", step_metric=STEP)
            for done, item in enumerate(self._items.items()):
                self._of.progress(done, self._items.count)
                row = _row(item)
                if row and item.step is not None:
                    run.log({**row, STEP: item.step, "_timestamp": item.wall / NS_PER_S})
            run.summary.update(dict(summary))
        finally:
            run.finish()
            wandb.teardown()  # Ends its own service, which would wait for our exit.
        found = sorted(directory.rglob(f"*{SUFFIX}"))
        if len(found) != 1:
            raise ExportRefused(f"{directory}: wandb wrote {len(found)} runs instead of one")
        return found[0]


def _row(item: Item) -> dict[str, Any]:
    if isinstance(item, Happened):
        return {f"events/{item.name}": item.text}
    if isinstance(item, Phase):
        return {PHASE: item.name}
    return dict(item.values) if isinstance(item, Point) else item.values()


def run_id(run: str) -> str:
    """W&B's ids have letters, digits and dashes. The same run has the same id, so a later upload goes on with it."""
    plain = "".join(one if one.isascii() and one.isalnum() else "-" for one in run)[:40].strip("-")
    return f"{plain or 'run'}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


@contextmanager
def open(target: str, of: Of) -> Iterator[OfflineRun]:  # noqa: A001 - what every form calls it.
    name = f"run-{run_id(of.run)}{SUFFIX}"
    with own_files(Path(target, FOLDER + of.run), of.run, (name,)) as own, spool() as items:
        yield OfflineRun(of, own, items)
