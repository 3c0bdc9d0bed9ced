"""Reads costgov.toml. The environment (COSTGOV_<TABLE>__<KEY>) overrides the file, the command line both.

Every problem is one line: where it is written, the key, what is wrong and what to do.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from governor.adapters import clouds, prices
from governor.adapters.alerting.tables import read as read_alert_tables
from governor.core.events.peers import NODE_BYTES_MAX
from governor.settings.model import SYSTEM_CONFIG, Paths, Settings, default_paths, logs_by_one_name
from governor.text.table import plain
from governor.wire.peers import SYSTEM_DIRECTORY, problem_of, user_directories
from governor.wire.toml_file import KeyPath, NotTomlError, key_lines, line_of, parse, read_bounded, show

__all__ = ["SYSTEM_CONFIG", "Settings", "load_settings", "paths_of_run"]

CONFIG_BYTES_MAX: Final = 1024 * 1024  # A larger file is not a configuration.
ENV_PREFIX: Final = "COSTGOV_"
# Short names for what a trainer, a command and the daemon must agree on. The shim knows the same two.
ENV_PATHS: Final = {"COSTGOV_SOCKET": "socket", "COSTGOV_CONTROL": "control_socket"}

# pydantic's words -> words for a TOML author.
_WORDS: Final = (
    ("Input should be", "must be"),
    ("String should have", "must have"),
    ("Tuple should have", "must have"),
    (" after validation", ""),
    ("a valid tuple", "a list of tables"),
    ("a valid dictionary", "a table"),
    ("an object", "a table"),
    ("Input is not a valid path for <class 'pathlib.Path'>", "must be a path in quotes"),
    ("a valid boolean", "true or false"),
)
# Several tokens, a tokenizer and a count of tokens are the model's, unless the word before says what they open.
_SECRET_KEY: Final = re.compile(
    r"secret|password|token(?!s|i[sz]|_(count|budget|total))|(api|auth|access|bearer)[_-]?tokens|api_?key|private_?key",
    re.IGNORECASE,
)
_SECRET_FILE_KEY: Final = re.compile(r"(secret|password|token|key|credentials?)_file$", re.IGNORECASE)
_REFERENCE_KEY: Final = re.compile(r"(_file|_path|_dir|_env)$")


@dataclass(frozen=True, slots=True)
class _Layers:
    """The three sources of a key, kept separate so that an error can say where it was written."""

    overrides: Mapping[str, Any]
    environment: Mapping[str, Any]
    file: Mapping[str, Any]
    text: str
    path: Path | None
    # COSTGOV_PATHS__SOCKET -> COSTGOV_SOCKET, if the short name was used.
    aliases: Mapping[str, str]

    def as_written(self, key_path: KeyPath) -> KeyPath:
        """The key by the name that it has where it was written: see logs_by_one_name()."""
        name, *rest = key_path
        layers = [(layer, logs_by_one_name(layer)) for layer in (self.overrides, self.environment, self.file)]
        written = next((layer for layer, one in layers if _holds(one, key_path)), None)
        written = written or next((layer for layer, one in layers if name in one), {})
        if name == "log" and "logging" in written:
            return ("logging", *rest)
        if name != "jsonl" or not isinstance(written.get("log"), list | tuple):
            return key_path
        others = written.get("jsonl", ())
        if not rest or not isinstance(others, list | tuple):
            return key_path if others else ("log",)
        number, *key = rest
        if not isinstance(number, int) or number < len(others):
            return key_path
        return ("log", number - len(others), *key)

    def where(self, key_path: KeyPath) -> str:
        if _holds(self.overrides, key_path):
            return "command line"
        if _holds(self.environment, key_path):
            name = ENV_PREFIX + "__".join(str(part).upper() for part in key_path)
            return f"environment {self.aliases.get(name, name)}"
        if self.path is None:
            return "settings"
        return f"{self.path}:{line_of(_key_lines(self.text), key_path)}"


@lru_cache(maxsize=1)
def _key_lines(text: str) -> dict[KeyPath, int]:
    # A file that is wrong everywhere has a thousand problems, and each of them asks for its line.
    return key_lines(text)


def load_settings(
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    run: str | None = None,
) -> tuple[Settings | None, list[str]]:
    """Read and check everything.

    `overrides` is nested as the file is. `path` None: there is no file. `run`: the one run that this governor is
    for;
    unconfigured paths and port are then the run's own. Returns (None, problems) if the settings cannot be used. In
    (settings, problems) each problem is a warning. A problem may repeat what the file says: it is one printable line.
    """
    settings, problems = _load(path, overrides, environ, run)
    return settings, [plain(problem) for problem in problems]


def _load(
    path: Path | None, overrides: Mapping[str, Any] | None, environ: Mapping[str, str] | None, run: str | None
) -> tuple[Settings | None, list[str]]:
    environ = os.environ if environ is None else environ
    text, problems = _read(path)
    if problems:
        return None, problems
    try:
        file = parse(text)
    except NotTomlError as error:
        return None, [f"{path}:{error.line}: {error}"]
    aliases = {f"{ENV_PREFIX}PATHS__{key.upper()}": name for name, key in ENV_PATHS.items() if environ.get(name)}
    layers = _Layers(overrides or {}, _from_environment(environ, run), file, text, path, aliases)
    try:
        settings = _merge(layers, environ, run)
    except ValidationError as error:
        return None, [_problem(detail, layers) for detail in error.errors(include_url=False, include_input=False)]
    except UnicodeEncodeError:
        return None, ["environment: a variable COSTGOV_... is not UTF-8; correct or remove it"]
    problems = [*_cloud_problems(settings, layers), *_price_problems(settings, layers)]
    problems += _peers_problems(settings, layers)
    problems += [
        f"{layers.where(('alert', one.place, one.key))}: {one.text}" for one in read_alert_tables(settings.alert)[1]
    ]
    return (None, problems) if problems else (settings, list(_permission_warnings(path, file)))


def paths_of_run(environ: Mapping[str, str], run: str) -> dict[str, Any]:
    """[paths] for the run `run`, with no file and no options: all of them are the run's own."""
    given = _from_environment(environ, run).get("paths", {})
    return default_paths(given, environ, os.geteuid(), run, _above(given, run))


def second_place(paths: Paths, socket: Path, environ: Mapping[str, str]) -> str | None:
    """Where a socket is bound while its directory is gone. None: no logout takes it away."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    if not runtime or not socket.is_relative_to(runtime) or paths.state_dir.is_relative_to(runtime):
        return None
    return str(paths.state_dir / socket.name)


def places_told(paths: Paths, environ: Mapping[str, str]) -> list[str]:
    """What a start says of sockets that are not where they are looked for first."""
    first, *others = user_directories(environ, os.geteuid())
    directories = {str(paths.socket.parent), str(paths.control_socket.parent)}
    if directories in ({SYSTEM_DIRECTORY}, {first}):
        return []
    if len(directories) == 1 and directories <= {*others}:
        why = problem_of(first, os.geteuid()) or f"not in {first}"
        return [f"trainers and commands find this governor in {directories.pop()}; {why}"]
    told = f"COSTGOV_SOCKET={paths.socket} to trainers, and COSTGOV_CONTROL={paths.control_socket} to commands"
    return [f"its sockets are not where it is looked for: give {told}"]


def _read(path: Path | None) -> tuple[str, list[str]]:
    if path is None:
        return "", []
    try:
        data = read_bounded(path, CONFIG_BYTES_MAX)
    except OSError as error:
        return "", [f"{path}: {error.strerror}; give the right file with --config, or leave --config out for defaults"]
    if len(data) > CONFIG_BYTES_MAX:
        return "", [f"{path}: larger than {CONFIG_BYTES_MAX} bytes; this is not a costgov.toml"]
    try:
        return data.decode(), []
    except UnicodeDecodeError as error:
        return "", [f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8"]


def _from_environment(environ: Mapping[str, str], run: str | None) -> dict[str, Any]:
    """COSTGOV_METRICS__PORT=9478 -> {"metrics": {"port": "9478"}}. A value that begins like JSON is read as JSON.

    Names without a double underscore belong to the trainer's side (COSTGOV_RUN, COSTGOV_REQUIRED, …).
    Every child process inherits the environment. So with `run`, a run uses its own directories below the inherited
    ones, and COSTGOV_SOCKET is the socket of the governor that watches us, not one to serve.
    """
    data: dict[str, Any] = {}
    for name, key in ENV_PATHS.items():
        if environ.get(name) and not (run is not None and key == "socket"):
            data.setdefault("paths", {})[key] = environ[name]
    for name, value in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or not (name == "COSTGOV_OBSERVE" or "__" in name):
            continue
        *tables, key = name.removeprefix(ENV_PREFIX).lower().split("__")
        at = data
        for table in tables:
            inner = at.setdefault(table, {})
            at = inner if isinstance(inner, dict) else {}
        at[key] = _from_text(value)
    if run is not None:
        paths = data.get("paths", {})
        paths |= {key: f"{paths[key]}/runs/{run}" for key in ("state_dir", "runtime_dir") if key in paths}
    return data


def _above(of_environment: Mapping[str, Any], run: str | None) -> str | None:
    """The inherited state directory, below which `_from_environment` has put the run's own. None: it has put none."""
    state_dir = of_environment.get("state_dir")
    return state_dir.removesuffix(f"/runs/{run}") if run is not None and isinstance(state_dir, str) else None


def _from_text(value: str) -> Any:
    if value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # The key's own check reports the fault.
    return value


def _merge(layers: _Layers, environ: Mapping[str, str], run: str | None) -> Settings:
    tables = (layer.get("paths") for layer in (layers.file, layers.environment, layers.overrides))
    of_file, of_environment, of_options = (table if isinstance(table, Mapping) else {} for table in tables)
    given: dict[str, Any] = {**of_file, **of_environment, **of_options}
    above = None if "state_dir" in of_options else _above(of_environment, run)
    defaults: dict[str, Any] = {"paths": default_paths(given, environ, os.geteuid(), run, above)}
    if run is not None:
        defaults["metrics"] = {"port": 0}  # The well-known port is for the node's own governor.

    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            # We read the environment ourselves: we can say where a key was written, and we refuse unknown ones.
            del env_settings, dotenv_settings, file_secret_settings
            # A layer's own name of a table, so that a level in the environment replaces no [[log]] of the file.
            below = (logs_by_one_name(layers.environment), logs_by_one_name(layers.file), defaults)
            return (init_settings, *(InitSettingsSource(settings_cls, dict(layer)) for layer in below))

    return Layered(**logs_by_one_name(layers.overrides))


def _problem(detail: ErrorDetails, layers: _Layers) -> str:
    key_path = tuple(part for part in detail["loc"] if part != "[key]")
    written = layers.as_written(key_path)
    dotted, where = show(written), layers.where(written)
    if detail["type"] == "extra_forbidden":
        return f"{where}: {dotted}: unknown key; {_suggestion(key_path)}"
    if detail["type"] == "missing":
        return f"{where}: {dotted}: is missing; add it"
    message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    for theirs, ours in _WORDS:
        message = message.replace(theirs, ours)
    return f"{where}: {dotted}: {_one_line(message)}"


def _suggestion(key_path: KeyPath) -> str:
    model: type[BaseModel] = Settings
    for part in key_path[:-1]:
        if isinstance(part, int):
            continue
        annotation: Any = model.model_fields[part].annotation
        model = getattr(annotation, "__args__", (annotation,))[0]  # tuple[Jsonl, ...] -> Jsonl
    known = sorted(model.model_fields)
    close = [
        f'"{name}"' for name in known if name.startswith(f"{key_path[-1]}_")
    ]  # Half of a name is like the shortest.
    close = close or [f'"{name}"' for name in difflib.get_close_matches(str(key_path[-1]), known, n=1)]
    return f"did you mean {' or '.join(close)}?" if close else f"known here: {', '.join(known)}"


def _cloud_problems(settings: Settings, layers: _Layers) -> Iterator[str]:
    """Check the names only. The provider's adapter alone knows its keys, and checks them."""
    known = clouds.names()
    chosen = settings.cloud.provider
    if chosen not in known:
        where = layers.where(("cloud", "provider"))
        yield f'{where}: cloud.provider: there is no provider "{chosen}"; known: {", ".join(known)}'
    for name in settings.cloud.tables:
        if name not in known:
            yield f"{layers.where(('cloud', name))}: cloud.{name}: no such provider; known: {', '.join(known)}"


def _price_problems(settings: Settings, layers: _Layers) -> Iterator[str]:
    known = prices.names()
    if settings.price.source not in ("auto", "none", *known):
        where = layers.where(("price", "source"))
        yield f'{where}: price.source: no look-up "{settings.price.source}"; known: auto, none, {", ".join(known)}'
    for name in settings.price.tables:
        if name not in known:
            yield f"{layers.where(('price', name))}: price.{name}: no such look-up; known: {', '.join(known)}"


def _peers_problems(settings: Settings, layers: _Layers) -> Iterator[str]:
    name = settings.node.name
    if settings.peers.is_enabled and not (name.isprintable() and len(name.encode()) <= NODE_BYTES_MAX):
        where = layers.where(("node", "name"))
        yield f"{where}: node.name: other nodes know this one by it: printable, and at most {NODE_BYTES_MAX} bytes"


def _permission_warnings(path: Path | None, file: Mapping[str, Any]) -> Iterator[str]:
    if path is None:
        return
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"{path}: others may write it, and it names commands that the daemon runs; chmod go-w {path}"
    secrets = [key for key, _ in _leaves(file) if _SECRET_KEY.search(key) and not _REFERENCE_KEY.search(key)]
    if secrets and mode & stat.S_IROTH:  # The group is the service's own, as installed.
        yield f"{path}: holds {', '.join(secrets)} and others may read it; chmod o-r {path}"
    for key, value in _leaves(file):
        if _SECRET_FILE_KEY.search(key):
            yield from _secret_file_warnings(key, value)


def _secret_file_warnings(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, str):
        return  # A number would be one of our own descriptors.
    try:
        mode = os.stat(value).st_mode
    except (OSError, ValueError):
        return  # The adapter reports an absent or unreadable file itself.
    if mode & stat.S_IROTH:
        yield f"{value}: named by {key} and others may read it; chmod o-r {value}"


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
            for number, one in enumerate(value, 1):
                yield from _leaves(one, f"{prefix}{key}[{number}].")
        else:
            yield f"{prefix}{key}", value


def _holds(data: Any, key_path: KeyPath) -> bool:
    for part in key_path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _one_line(text: str) -> str:
    return " ".join(text.split())
