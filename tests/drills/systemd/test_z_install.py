"""`make install` and `make uninstall` on a node that has costgov already. Runs last: it takes the service away."""

from __future__ import annotations

from pathlib import Path

from tests.drills.systemd.node import OFFLINE, Node

REPOSITORY = Path(__file__).parents[3]
SHARE = "/opt/costgov/share"
MONITORING = ("prometheus/costgov.rules.yml", "grafana/costgov.json")
HELP = (REPOSITORY / "deploy" / "help_files").read_text().split()


def install(node: Node, *arguments: str, check: bool = True) -> str:
    found = node.box.run("make", "-C", "/box/tree", *arguments, check=check, env=OFFLINE)
    assert check or found.returncode != 0, "it should have refused"
    return found.stdout + found.stderr


def exists(node: Node, path: str) -> bool:
    return node.box.run("test", "-e", path, check=False).returncode == 0


def test_an_interpreter_below_a_home_is_refused_in_one_line(node: Node) -> None:
    """It works for root, who installs, and not for the service's user, who runs it."""
    node.box.run("chmod", "0700", "/root")
    node.box.run("/usr/bin/python3", "-m", "venv", "--without-pip", "/root/python")
    before = node.box.run("readlink", "/opt/costgov/venv").stdout
    said = install(node, "install", "PYTHON=/root/python/bin/python", check=False)
    told = [line for line in said.splitlines() if line.startswith("make install:")]
    assert len(told) == 1
    assert "user costgov cannot run /root/python/bin/python" in told[0]
    assert "PYTHON=/usr/bin/python3" in told[0]
    assert node.box.run("readlink", "/opt/costgov/venv").stdout == before


def test_installing_again_keeps_the_configuration_and_restarts(started: Node) -> None:
    box = started.box
    box.run(
        "sh", "-c", "echo '# mine' >> /etc/costgov/costgov.toml; echo '# mine' >> /etc/costgov/policies.d/default.toml"
    )
    before = started.main_pid()
    said = install(started, "install")
    assert "kept your policies.d/default.toml" in said
    for path in ("costgov.toml", "policies.d/default.toml"):
        assert box.run("tail", "-n1", f"/etc/costgov/{path}").stdout == "# mine\n"
    assert started.main_pid() not in (0, before)
    assert box.run("ls", "/opt/costgov/releases").stdout.count("\n") == 1, "old virtualenvs stay behind"


def test_the_manual_and_the_completions_are_where_they_are_looked_for(started: Node) -> None:
    for file in HELP:
        assert "costgov" in started.box.run("cat", f"/usr/local/share/{file}").stdout
    page = started.box.run("cat", "/usr/local/share/man/man1/costgov.1").stdout
    assert page == (REPOSITORY / "deploy" / "man" / "costgov.1").read_text()


def test_rules_and_dashboard_are_at_hand_as_in_the_tree(started: Node) -> None:
    """Also after a second install, and when somebody has changed them: what is put in force is a copy elsewhere."""
    started.box.run("sh", "-c", f"echo mine >> {SHARE}/grafana/costgov.json")
    install(started, "install")
    for path in MONITORING:
        assert started.box.run("cat", f"{SHARE}/{path}").stdout == (REPOSITORY / "deploy" / path).read_text()


def test_uninstalling_keeps_state_and_purging_does_not(node: Node) -> None:
    install(node, "uninstall")
    assert not exists(node, "/opt/costgov")
    assert not exists(node, "/etc/systemd/system/costgov.service")
    assert not exists(node, "/usr/local/bin/costgov")
    assert not [file for file in HELP if exists(node, f"/usr/local/share/{file}")]
    assert exists(node, "/etc/costgov/costgov.toml")
    assert exists(node, "/var/lib/costgov")
    install(node, "uninstall", "PURGE=1")
    assert not exists(node, "/etc/costgov")
    assert not exists(node, "/var/lib/costgov")
    assert node.box.run("getent", "passwd", "costgov", check=False).returncode == 2
