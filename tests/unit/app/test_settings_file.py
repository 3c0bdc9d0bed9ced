"""costgov.toml: layers, defaults, and one line per mistake that says where it is and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from governor.adapters import clouds, prices
from governor.app.settings_file import Settings, load_settings
from governor.settings.model import default_paths, trainer_socket
from governor.wire.control_client import SYSTEM_SOCKET, socket_paths
from governor.wire.jsonl import DEFAULT_FIELDS
from tests.paths import ROOT

REPOSITORY = ROOT
EXAMPLE = REPOSITORY / "deploy" / "costgov.toml.example"
HOME = {"HOME": "/home/ada", "XDG_RUNTIME_DIR": "/run/user/7"}


def config(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "costgov.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def good(path: Path | None, overrides: dict[str, object] | None = None, **environ: str) -> Settings:
    settings, problems = load_settings(path, overrides, {**HOME, **environ})
    assert problems == []
    assert settings is not None
    return settings


def bad(path: Path | None, overrides: dict[str, object] | None = None, **environ: str) -> list[str]:
    settings, problems = load_settings(path, overrides, {**HOME, **environ})
    assert settings is None
    assert all("\n" not in problem for problem in problems)
    return problems


def test_no_file_gives_the_documented_defaults() -> None:
    settings = good(None)
    assert (settings.observe, settings.node.price_usd_per_hour, settings.cloud.provider) == (False, None, "none")
    assert (settings.metrics.address, settings.metrics.port) == ("127.0.0.1", 9477)
    assert settings.trainer.allow_uids is None, "a per-node daemon watches trainers of every user"
    assert (settings.trainer.socket_mode, settings.control.mode) == (0o666, 0o660)


def test_the_example_parses_and_shows_the_defaults(tmp_path: Path) -> None:
    example = good(config(tmp_path, EXAMPLE.read_text()))
    assert good(None).model_dump() == example.model_dump()


def test_the_example_parses_with_every_commented_key_turned_on(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") if _is_commented_key(line) else line for line in EXAMPLE.read_text().splitlines()]
    settings = good(config(tmp_path, "\n".join(lines)))
    assert settings.node.price_usd_micros_per_hour == 22_000_000
    assert settings.jsonl[0].ended_by == ("pidfile", "/data/run7/pid")
    assert settings.jsonl[0].fields == {"step": "global_step", "loss": "train/loss", "tokens_per_second": "tps"}


def _is_commented_key(line: str) -> bool:
    first = line.removeprefix("# ").split(" ", maxsplit=1)
    return line.startswith("# ") and (first[0].startswith("[") or (len(first) > 1 and first[1].startswith("=")))


def test_every_key_of_the_model_is_in_the_example() -> None:
    text = EXAMPLE.read_text()
    for table, field in Settings.model_fields.items():
        assert table in text
        inner = getattr(field.annotation, "__args__", (field.annotation,))[0]
        for key in getattr(inner, "model_fields", {}):
            assert f"{key} = " in text or f"{key}," in text, f"{table}.{key} is not documented"


def test_command_line_beats_environment_beats_file(tmp_path: Path) -> None:
    path = config(tmp_path, '[metrics]\nport = 1\naddress = "::1"\n[log]\nlevel = "error"\n')
    settings = good(path, {"metrics": {"port": 3}}, COSTGOV_METRICS__PORT="2", COSTGOV_LOG__LEVEL="debug")
    assert (settings.metrics.port, settings.log.level, settings.metrics.address) == (3, "debug", "::1")


def test_the_page_is_on_loopback_alone_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Who opened the port for Prometheus has opened no page."""
    for metrics, has_page in (
        ("", True), ('address = "::1"', True), ('address = "0.0.0.0"', False), ('address = "localhost"', False),
        ('address = "0.0.0.0"\npage = true', True), ("page = false", False),
    ):  # fmt: skip
        assert good(config(tmp_path, f"[metrics]\n{metrics}\n")).metrics.has_page is has_page, metrics


def test_the_trainers_own_variables_are_not_ours() -> None:
    settings = good(
        None, COSTGOV_RUN="r1", COSTGOV_REQUIRED="1", COSTGOV_CONTROL="/x/c.sock", COSTGOV_SOCKET="/x/t.sock"
    )
    assert (str(settings.paths.control_socket), str(settings.paths.socket)) == ("/x/c.sock", "/x/t.sock")


def test_sockets_follow_the_runtime_directory() -> None:
    settings = good(None, {"paths": {"runtime_dir": "/run/x"}})
    assert str(settings.paths.socket) == "/run/x/trainer.sock"


def test_systemd_directories_are_taken() -> None:
    paths = good(None, STATE_DIRECTORY="/var/lib/a:/var/lib/b", RUNTIME_DIRECTORY="/run/a").paths
    assert (str(paths.state_dir), str(paths.control_socket)) == ("/var/lib/a", "/run/a/control.sock")


def test_a_governor_beside_one_command_keeps_to_itself() -> None:
    home = {"HOME": HOME["HOME"]}
    settings, _ = load_settings(None, None, home, run="train-1")
    daemon = load_settings(None, None, home)[0]
    assert daemon is not None
    assert settings is not None
    assert settings.paths.state_dir == daemon.paths.state_dir / "runs" / "train-1"
    assert settings.paths.recordings_dir == daemon.paths.state_dir / "recordings", "bounded together"
    assert settings.paths.marks_dir == daemon.paths.marks_dir == daemon.paths.state_dir
    assert settings.paths.socket == daemon.paths.runtime_dir / "runs" / "train-1" / "trainer.sock"
    assert (settings.metrics.port, daemon.metrics.port) == (0, 9477)


@pytest.mark.parametrize("base", ["/x/runs/job7", "/x/runs", "/x/runs/job7/runs/train-1"])
def test_what_governors_share_is_above_what_was_made_for_a_run_whatever_directories_are_called(base: str) -> None:
    """A directory above one's own may be another user's."""
    inherited = {"COSTGOV_PATHS__STATE_DIR": base}
    for run, own in ((None, base), ("train-1", f"{base}/runs/train-1")):
        paths = load_settings(None, None, {**HOME, **inherited}, run=run)[0].paths  # type: ignore[union-attr]
        assert (str(paths.state_dir), str(paths.marks_dir)) == (own, base)
        assert str(paths.recordings_dir) == f"{base}/recordings"
        typed = load_settings(None, {"paths": {"state_dir": base}}, {**HOME, **inherited}, run=run)[0]
        assert typed is not None
        assert (str(typed.paths.state_dir), str(typed.paths.marks_dir)) == (base, base)
        assert str(typed.paths.recordings_dir) == f"{base}/recordings"


def test_where_marks_are_may_be_said(tmp_path: Path) -> None:
    assert str(good(None, COSTGOV_PATHS__MARKS_DIR="/m").paths.marks_dir) == "/m"


@pytest.mark.parametrize("environ", [{"HOME": "/h"}, {"HOME": "/h", "XDG_RUNTIME_DIR": "/r"}, {"XDG_STATE_HOME": "/s"}])
@pytest.mark.parametrize("uid", [0, 12345])
def test_commands_look_where_governors_listen(environ: dict[str, str], uid: int) -> None:
    environ = {"HOME": "/h", **environ}
    assert default_paths({}, environ, uid)["control_socket"] in socket_paths(environ)


def test_the_environment_says_where_to_look(tmp_path: Path) -> None:
    """On a machine of its own: on this one, governors may be alive."""
    system = str(tmp_path / "control.sock")
    assert socket_paths({"COSTGOV_CONTROL": "/x", "XDG_RUNTIME_DIR": "/r"}, system) == ("/x",)
    of_home = ("/h/.local/state/costgov/run/control.sock", "/h/.local/state/costgov/control.sock")
    assert socket_paths({"HOME": "/h"}, system) == (system, *of_home)
    assert socket_paths({"HOME": "/h", "XDG_RUNTIME_DIR": "/r"}, system) == (
        system,
        "/r/costgov/control.sock",
        *of_home,
    )
    assert socket_paths({"HOME": "/h"})[0] == SYSTEM_SOCKET == "/run/costgov/control.sock"


def test_commands_look_where_the_environment_puts_governors(tmp_path: Path) -> None:
    environ = {**HOME, "COSTGOV_PATHS__RUNTIME_DIR": str(tmp_path)}
    daemon, _ = load_settings(None, None, environ)
    run, _ = load_settings(None, None, environ, run="train-1")
    assert daemon is not None
    assert run is not None
    for settings in (daemon, run):
        settings.paths.runtime_dir.mkdir(parents=True, exist_ok=True)
        settings.paths.control_socket.touch()
    assert socket_paths(environ) == (str(daemon.paths.control_socket), str(run.paths.control_socket))
    assert socket_paths({**environ, "COSTGOV_PATHS__CONTROL_SOCKET": "/x/c.sock"}) == ("/x/c.sock",)


def test_each_run_has_its_own_below_the_directories_of_the_environment() -> None:
    environ = {**HOME, "COSTGOV_PATHS__STATE_DIR": "/s", "COSTGOV_PATHS__RUNTIME_DIR": "/d"}
    settings, problems = load_settings(None, None, environ, run="train-1")
    assert problems == []
    assert settings is not None
    paths = settings.paths
    assert (str(paths.state_dir), str(paths.runtime_dir)) == ("/s/runs/train-1", "/d/runs/train-1")
    assert (str(paths.socket), str(paths.control_socket)) == (
        "/d/runs/train-1/trainer.sock",
        "/d/runs/train-1/control.sock",
    )
    assert str(good(None, **environ).paths.state_dir) == "/s", "the service has them for itself"


def test_a_run_does_not_serve_the_socket_that_its_own_watcher_serves() -> None:
    settings, _ = load_settings(None, None, {**HOME, "COSTGOV_SOCKET": "/outer/trainer.sock"}, run="inner")
    assert settings is not None
    own = (settings.paths.runtime_dir, settings.paths.state_dir)
    assert settings.paths.socket in [directory / "trainer.sock" for directory in own]
    assert {directory.parts[-2:] for directory in own} == {("runs", "inner")}


def test_a_command_without_root_finds_its_socket_where_no_logout_removes_it() -> None:
    def socket(state: str, *, may_vanish: bool = True) -> str:
        return trainer_socket(state, "/run/user/7/costgov/runs/mine", may_vanish=may_vanish)

    assert socket("/h/costgov/runs/mine") == "/h/costgov/runs/mine/trainer.sock"
    assert socket("/h/costgov/runs/mine", may_vanish=False) == "/run/user/7/costgov/runs/mine/trainer.sock"
    longest = "/" + "x" * (103 - len("//trainer.sock"))
    assert socket(longest) == f"{longest}/trainer.sock"
    assert socket(longest + "x").startswith("/run/user/7/"), "the kernel would not take it"


CLOUDS, PRICES = ", ".join(clouds.names()), ", ".join(prices.names())
MISTAKES = [
    ("[metrics]\nprot = 1\n", ':2: metrics.prot: unknown key; did you mean "port"?'),
    ("[paths]\nstate_dir = 3\n", ":2: paths.state_dir: must be a path in quotes"),
    ("\n\nobsrve = true\n", ':3: obsrve: unknown key; did you mean "observe"?'),
    ("[metrics]\nport = 70000\n", ":2: metrics.port: must be less than or equal to 65535"),
    (
        "[node]\nprice_usd_per_hour = -5\n",
        ":2: node.price_usd_per_hour: -5 is not an amount in dollars; write it without a sign: none is below 0",
    ),
    ("[node]\nprice_usd_per_hour = 0\n", ":2: node.price_usd_per_hour: must be greater than 0"),
    (
        "[node]\nprice = -5\n",
        ':2: node.price: unknown key; did you mean "price_as_of" or "price_kind" or "price_source" or '
        '"price_usd_per_hour"?',
    ),
    ("[node]\nprice_usd_per_hour = nan\n", ":2: node.price_usd_per_hour: must be a finite number"),
    ('[node]\nprice_as_of = "lately"\n', ':2: node.price_as_of: "lately" is not a date'),
    ('[node]\nprice_kind = "cheap"\n', ":2: node.price_kind: must be 'on-demand', 'spot', 'reserved' or 'internal'"),
    (
        '[price]\nsource = "gcp"\n',
        f':2: price.source: no look-up "gcp"; known: auto, none, {", ".join(prices.names())}',
    ),
    ("[price.gcp]\n", f":1: price.gcp: no such look-up; known: {PRICES}"),
    ("[price]\nstale = 3\n", ':1: price: unknown key "stale"; a look-up\'s keys stand in its own table'),
    ("[price]\nstale_after_days = 0\n", ":2: price.stale_after_days: must be greater than or equal to 1"),
    ("[record]\nrun_max_mb = 9\nnode_max_mb = 8\n", ":1: record: run_max_mb 9 is more than node_max_mb 8"),
    ("[record]\nkeep_days = 0\n", ":2: record.keep_days: must be greater than or equal to 1"),
    ("[node]\nidle_stop = 15\n", ':2: node.idle_stop: must be "off" or a time in quotes such as "15m"'),
    ('[node]\nidle_stop = "0s"\n', ':2: node.idle_stop: would stop the node at once; write "off" or a time'),
    ('[node]\nidle_stop = "soon"\n', ':2: node.idle_stop: "soon" is not a duration'),
    ("[trainer]\nsocket_mode = 660\n", ':2: trainer.socket_mode: must be an octal mode in quotes such as "0660"'),
    (
        '[trainer]\nallow_uids = ["no-such-user"]\n',
        ':2: trainer.allow_uids: there is no user "no-such-user" on this machine; correct the name or give its uid',
    ),
    (
        '[cloud]\nprovider = "gpc"\n',
        f':2: cloud.provider: there is no provider "gpc"; known: {CLOUDS}',
    ),
    ('[cloud]\nregion = "x"\n', ':1: cloud: unknown key "region"; a provider\'s keys stand in its own table'),
    ("[cloud.awz]\nx = 1\n", f":1: cloud.awz: no such provider; known: {CLOUDS}"),
    ('[paths]\nstate_dir = "here"\n', ":2: paths.state_dir: must be an absolute path"),
    ('[[jsonl]]\npath = "/a"\nrun = "r"\n[[jsonl]]\npath = "/b"\n', ":4: jsonl[2].run: is missing; add it"),
    ('[[jsonl]]\npath = "/a"\nrun = "r"\nfields = { stp = "s" }\n', ':4: jsonl[1].fields: "stp" is not a measurement'),
    (
        '[[jsonl]]\npath = "/a"\nrun = "r"\npidfile = "/p"\nunit = "u"\n',
        ":1: jsonl[1]: pidfile and unit both name the processes; keep one",
    ),
    ('[[log]]\npath = "/a"\nrun = "r"\nformt = "csv"\n', ':4: log[1].formt: unknown key; did you mean "format"?'),
    ('[node]\n[[log]]\npath = "/a"\n', ":2: log[1].run: is missing; add it"),
    (
        '[[log]]\npath = "/a"\nrun = "r"\n[[jsonl]]\npath = "/b"\nrun = "s"\n[[log]]\npath = "c"\nrun = "t"\n',
        ":8: log[2].path: must be an absolute path",
    ),
    ('[[log]]\npath = "/a"\nrun = "r"\n[[jsonl]]\npath = "/b"\n', ":4: jsonl[1].run: is missing; add it"),
    ('[logging]\nlevl = "info"\n', ':2: logging.levl: unknown key; did you mean "level"?'),
    ('[logging]\nlevel = "loud"\n[[log]]\npath = "/a"\nrun = "r"\n', ":2: logging.level: must be "),
    ("[node]\n" + '[[log]]\npath = "/a"\nrun = "r"\n' * 65, ":2: log: must have at most 64 items, not 65"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_a_mistake_is_one_line_with_file_line_and_key(tmp_path: Path, text: str, expected: str) -> None:
    path = config(tmp_path, text)
    (problem,) = bad(path)
    assert problem.startswith(f"{path}{expected}")


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    assert len(bad(config(tmp_path, "a = 1\nb = 2\n[log]\nlevel = 'loud'\n"))) == 3


def test_a_number_for_the_tables_of_logs_is_told_beside_tables_of_the_other_name(tmp_path: Path) -> None:
    path = config(tmp_path, 'jsonl = 3\n[[log]]\npath = "/a"\nrun = "r"\n')
    told = bad(path)
    assert any(problem.startswith(f"{path}:1: jsonl: must be a") for problem in told)


def test_a_mistake_in_the_environment_names_the_variable() -> None:
    assert bad(None, COSTGOV_METRICS__PRT="1")[0].startswith("environment COSTGOV_METRICS__PRT: metrics.prt: unknown")
    assert bad(None, COSTGOV_CONTROL="relative")[0].startswith("environment COSTGOV_CONTROL: paths.control_socket: ")


def test_a_level_from_elsewhere_leaves_the_followed_logs_of_the_file(tmp_path: Path) -> None:
    path = config(tmp_path, '[[log]]\npath = "/a"\nrun = "r"\n')
    for settings in (
        good(path, COSTGOV_LOG__LEVEL="debug"), good(path, COSTGOV_LOGGING__LEVEL="debug"),
        good(path, {"log": {"level": "debug"}}),
    ):  # fmt: skip
        assert ([one.run for one in settings.jsonl], settings.log.level) == (["r"], "debug")
    told = bad(path, COSTGOV_LOG__LEVEL="loud")
    assert told[0].startswith("environment COSTGOV_LOG__LEVEL: log.level: must be ")


def test_a_mistake_on_the_command_line_says_so() -> None:
    assert bad(None, {"log": {"level": "loud"}})[0].startswith("command line: log.level: must be")


def test_what_is_no_configuration_at_all(tmp_path: Path) -> None:
    assert bad(tmp_path / "absent.toml")[0].startswith(f"{tmp_path}/absent.toml: No such file or directory; ")
    assert bad(config(tmp_path, "= 3"))[0].startswith(f"{tmp_path}/costgov.toml:1: not TOML: ")
    (tmp_path / "b.toml").write_bytes(b"a = '\xff'")
    assert "not UTF-8" in bad(tmp_path / "b.toml")[0]
    (tmp_path / "c.toml").write_bytes(b"#" * (2 << 20))
    assert "larger than" in bad(tmp_path / "c.toml")[0]


@pytest.mark.parametrize(
    "key",
    ["token", "bearer_token", "authToken", "accesstoken", "token_2", "hf-token", "auth_tokens", "API_TOKENS", "apikey",
     "api_key", "private_key", "db_password", "secret_access_key"],
)  # fmt: skip
def test_a_key_that_is_named_as_secrets_are_is_warned_of(tmp_path: Path, key: str) -> None:
    path = config(tmp_path, f'[cloud]\nprovider = "aws"\n[cloud.aws]\n{key} = "hunter2"\n', mode=0o644)
    settings, warnings = load_settings(path, None, HOME)
    assert settings is not None
    assert warnings == [f"{path}: holds cloud.aws.{key} and others may read it; chmod o-r {path}"]


@pytest.mark.parametrize("key", sorted(name for name in DEFAULT_FIELDS if "token" in name))
def test_the_fields_of_a_log_are_no_secrets(tmp_path: Path, key: str) -> None:
    path = config(tmp_path, f'[[jsonl]]\npath = "/l"\nrun = "r"\nfields = {{ {key} = "x" }}\n', mode=0o644)
    assert good(path).jsonl  # Without a warning.


@pytest.mark.parametrize("key", ["tokenizer", "tokens", "total_tokens", "token_budget", "tokenisation"])
def test_a_label_about_the_models_tokens_is_no_secret(tmp_path: Path, key: str) -> None:
    path = config(tmp_path, f'[[jsonl]]\npath = "/l"\nrun = "r"\nlabels = {{ {key} = "x" }}\n', mode=0o644)
    assert good(path).jsonl  # Without a warning.


def test_a_secret_never_shows(tmp_path: Path) -> None:
    path = config(tmp_path, '[cloud]\nprovider = "aws"\n[cloud.aws]\nsecret_access_key = "hunter2"\n', mode=0o644)
    settings, warnings = load_settings(path, None, HOME)
    assert settings is not None
    assert warnings == [f"{path}: holds cloud.aws.secret_access_key and others may read it; chmod o-r {path}"]
    assert "hunter2" not in repr(settings) + str(settings.cloud) + "".join(warnings)


def test_a_file_that_others_may_write_is_warned_of(tmp_path: Path) -> None:
    settings, warnings = load_settings(config(tmp_path, "", mode=0o666), None, HOME)
    assert settings is not None
    assert "others may write it" in warnings[0]


def test_allow_uids_takes_names_and_numbers(tmp_path: Path) -> None:
    assert good(config(tmp_path, '[trainer]\nallow_uids = ["root", 1001, "7"]\n')).trainer.allow_uids == {0, 7, 1001}


def test_nothing_is_read_from_this_process_but_what_is_given() -> None:
    assert "COSTGOV_LOG__LEVEL" not in os.environ
    assert good(None).log.level == "info"
