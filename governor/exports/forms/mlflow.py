"""MLflow: a run of the experiment `costgov`, in a folder or on a tracking server.

Figures are metrics by step. Events are counted by the metric `events/NAME`; their words are the artifact events.jsonl.
An earlier export of the run, known by its tags, is deleted when the new one is complete, and nothing else is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from governor.core.base.units import NS_PER_MS, utc_text
from governor.exports.form import ExportRefused, Of, Written
from governor.exports.series import Happened, Item, Point
from governor.exports.spool import Spool, spool

NAME: Final = "mlflow"
TARGET: Final = "DIR|URI"
MEANING: Final = "A run of MLflow's experiment costgov, in DIR or on the server at URI. Needs costgov[mlflow]."

EXPERIMENT: Final = "costgov"
RUN_TAG: Final = "costgov.run"
SERIES_TAG: Final = "costgov.series"
BATCH: Final = 1_000  # MLflow's own limit.
FOUND_MAX: Final = 100
WHY_CHARS_MAX: Final = 200
_AUTHORITY: Final = re.compile(r"//[^/\s]*@")
# A server is asked before anything is read; a mistyped one is told of in a second. Neither is ours to override.
_ENVIRON: Final = {
    "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_LOGGING_LEVEL": "ERROR", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}  # fmt: skip
_NOT_IN_NAMES: Final = re.compile(r"[^\w./ -]", re.ASCII)


class Run:
    """`forms.Form`."""

    def __init__(self, uri: str, of: Of, items: Spool) -> None:
        self._where = _shown(uri)
        self._of = of
        self._items = items
        self.put = items.put
        self._client, self._errors = _client(uri)
        with self._told():
            found = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment = found.experiment_id if found is not None else None

    def finish(self, summary: Mapping[str, Any]) -> Written:
        series = hashlib.sha256(f"{self._items.digest()} {sorted(summary.items())}".encode()).hexdigest()
        with self._told():
            if self._experiment is None:
                self._experiment = self._client.create_experiment(EXPERIMENT)
            earlier = self._client.search_runs(
                [self._experiment], f"tags.`{RUN_TAG}` = '{self._of.run}'", max_results=FOUND_MAX
            )
            same = [one for one in earlier if one.data.tags.get(SERIES_TAG) == series]
            if same:
                return Written((self._path(same[0].info.run_id),), is_unchanged=True)
            made, ended = self._make(summary)
            self._client.set_tag(made, SERIES_TAG, series)
            self._client.set_terminated(made, end_time=ended)
            for one in earlier:
                self._client.delete_run(one.info.run_id)
        return Written((self._path(made),), is_unchanged=False)

    def _make(self, summary: Mapping[str, Any]) -> tuple[str, int | None]:
        """The new run, and the last moment in it, in ms."""
        from mlflow.entities import Metric, Param

        first = next(self._items.items(), None)
        begun = at = None if first is None else first.wall // NS_PER_MS
        info = self._client.create_run(
            self._experiment, start_time=begun, tags={RUN_TAG: self._of.run}, run_name=self._of.run
        ).info
        batch: list[Any] = []
        counts = Counter[str]()
        with tempfile.TemporaryDirectory(prefix="costgov-export-") as beside:
            events = Path(beside, "events.jsonl")
            with events.open("w", encoding="utf-8") as file:
                for done, item in enumerate(self._items.items()):
                    self._of.progress(done, self._items.count)
                    if isinstance(item, Happened):
                        counts[item.name] += 1
                        head = {"timestamp": utc_text(item.wall), "step": item.step}
                        file.write(json.dumps({**head, "event": item.name, "text": item.text}) + "\n")
                    at = item.wall // NS_PER_MS
                    if item.step is not None:
                        batch += [Metric(_name(name), value, at, item.step) for name, value in _row(item, counts)]
                    while len(batch) >= BATCH:
                        self._client.log_batch(info.run_id, batch[:BATCH])
                        del batch[:BATCH]
            params = [Param(name, str(value)) for name, value in summary.items()]
            self._client.log_batch(info.run_id, batch, params)
            self._client.log_artifact(info.run_id, str(events))
        return str(info.run_id), at

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            # Its words may hold the URI, with a user and a password.
            why = _AUTHORITY.sub("//", " ".join(str(error).split()))[:WHY_CHARS_MAX]
            raise ExportRefused(f"{self._where}: MLflow refuses: {why}") from error

    def _path(self, run_id: str) -> str:
        return f"{self._where.rstrip('/')}, run {run_id}"


def _row(item: Item, counts: Counter[str]) -> list[tuple[str, float]]:
    if isinstance(item, Happened):
        return [(f"events/{item.name}", counts[item.name])]
    return [*(item.values if isinstance(item, Point) else item.values()).items()]


def _name(series: str) -> str:
    return _NOT_IN_NAMES.sub("_", series)


def _client(uri: str) -> tuple[Any, type[Exception]]:
    for name, value in _ENVIRON.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ExportRefused(f"MLflow's own package writes this: pip install 'costgov[mlflow]' ({error})") from error
    return MlflowClient(tracking_uri=uri), MlflowException


def _uri(target: str) -> str:
    """A server's URI as it is. A folder as a file URI: new, empty, or a store of MLflow already."""
    if urlsplit(target).scheme in ("http", "https"):
        return target
    directory = Path(target.removeprefix("file://")).absolute()
    try:
        within = sorted(os.listdir(directory)) if directory.exists() else []
        is_store = any((directory / name / "meta.yaml").is_file() for name in within)
    except OSError as error:
        raise ExportRefused(f"{directory}: {error.strerror}; name a directory of yours") from error
    if within and not is_store:
        raise ExportRefused(f"{directory}: holds something else than MLflow's store; name another directory")
    return directory.as_uri()


def _shown(uri: str) -> str:
    """Without a user, a password or a query."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return uri
    return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")


@contextmanager
def open(target: str, of: Of) -> Iterator[Run]:  # noqa: A001 - what every form calls it.
    with spool() as items:
        yield Run(_uri(target), of, items)
