"""The life of the Debian package on one node, from its install to its purge. Each test goes on from the last one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.systemd.booted import BootedSystemd, missing
from tests.drills.systemd.node import Node

ROOT = Path(__file__).resolve().parents[3]
ADDRESS = "https://packages.example.com/costgov_0.1.0-1_amd64.deb"
POSTINST = "/var/lib/dpkg/info/costgov.postinst"
HELP = (
    "man/man1/costgov.1.gz",
    "bash-completion/completions/costgov",
    "zsh/vendor-completions/_costgov",
    "fish/vendor_completions.d/costgov.fish",
)


@pytest.fixture(scope="module")
def packages(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, and a newer one."""
    for program in ("dpkg-deb", "apt-get"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (a Debian system)")
    out = tmp_path_factory.mktemp("packages")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "OUT": str(out)}
    subprocess.run([ROOT / "deploy/deb/build.sh"], env={**os.environ, **offline}, check=True)
    (package,) = out.glob("*.deb")
    make_newer(package, tmp_path_factory.mktemp("newer") / "tree")
    return out


def make_newer(package: Path, tree: Path) -> None:
    """The same package as of another build, with another default policy. A second build would take twice as long."""
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    (release,) = (tree / "opt/costgov/releases").iterdir()
    old = release.name
    new = old.removesuffix("-1") + "-2"
    release = release.rename(release.with_name(new))
    venv = tree / "opt/costgov/venv"
    venv.unlink()
    venv.symlink_to(f"/opt/costgov/releases/{new}")
    for file in [tree / "DEBIAN/control", tree / "DEBIAN/md5sums", *(release / "bin").iterdir()]:
        if not file.is_symlink():
            file.write_text(file.read_text().replace(old, new))
    with (tree / "etc/costgov/policies.d/default.toml").open("a") as policy:
        policy.write("# of the newer version\n")
    newer = package.with_name(package.name.replace(old, new))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, newer], check=True)


@pytest.fixture(scope="module")
def node(packages: Path) -> Iterator[Node]:
    lacking = missing()
    if lacking:
        pytest.skip(f"a booted systemd needs {lacking}")
    with BootedSystemd({packages: "/box/packages", ROOT: "/box/tree"}) as box:
        # A machine that is itself a container may forbid every start: this box is none.
        box.run("rm", "-f", "/usr/sbin/policy-rc.d")
        yield Node(box)


def apt_install(node: Node, revision: str, *options: str) -> str:
    (package,) = node.box.run("sh", "-c", f"echo /box/packages/costgov_*-{revision}_*.deb").stdout.split()
    keep = ("-o", "Dpkg::Options::=--force-confold")
    return node.box.run("apt-get", "install", "-qq", "-y", *keep, *options, package).stdout


def package_and_digest(node: Node) -> tuple[str, str]:
    digest, package = node.box.run("sh", "-c", "sha256sum /box/packages/costgov_*-1_*.deb").stdout.split()
    return package, digest


def exists(node: Node, path: str) -> bool:
    return node.box.run("test", "-e", path, check=False).returncode == 0


def is_active(node: Node) -> bool:
    return node.box.property("costgov", "ActiveState") == "active"


def test_an_install_needs_no_network_and_starts_nothing(node: Node) -> None:
    apt_install(node, "1")
    assert node.box.run("costgov", "--version").stdout.startswith("costgov")
    assert node.box.property("costgov", "UnitFileState") == "disabled"
    assert not is_active(node)
    assert node.box.run("stat", "-c", "%U:%G %a", "/etc/costgov/costgov.toml").stdout == "root:costgov 640\n"
    assert [file for file in HELP if exists(node, f"/usr/share/{file}")] == list(HELP)
    verified = node.box.run("dpkg", "--verify", "costgov").stdout
    assert verified == "", "dpkg finds other files than it was given"


def test_the_service_watches_and_answers(node: Node) -> None:
    node.box.run("systemctl", "enable", "--now", "--quiet", "costgov")
    assert is_active(node)
    node.box.run("costgov", "status")
    node.box.run("runuser", "-u", "costgov", "--", "costgov", "doctor")


def test_an_upgrade_keeps_what_is_the_operators_and_restarts(node: Node) -> None:
    for file in ("costgov.toml", "policies.d/default.toml"):
        node.box.run("sh", "-c", f"echo '# mine' >> /etc/costgov/{file}")
    node.box.run("touch", "/var/lib/costgov/kept", "/opt/costgov/venv/lib/by-hand")
    before = node.main_pid()
    apt_install(node, "2")
    node.wait_for_another(before)
    assert is_active(node)
    for file in ("costgov.toml", "policies.d/default.toml"):
        assert node.box.run("tail", "-n1", f"/etc/costgov/{file}").stdout == "# mine\n"
    assert exists(node, "/etc/costgov/policies.d/default.toml.dpkg-dist"), "the newer policy is to be had"
    assert exists(node, "/var/lib/costgov/kept")
    assert node.box.run("ls", "/opt/costgov/releases").stdout.endswith("-2\n"), "the old virtualenv stays behind"
    assert node.box.run("ls", "/opt/costgov/releases").stdout.count("\n") == 1


def test_a_stopped_service_stays_stopped(node: Node) -> None:
    node.box.run("systemctl", "stop", "costgov")
    apt_install(node, "2", "--reinstall")
    node.box.run(POSTINST, "configure", "0.1.0-1")
    node.box.run(POSTINST, "configure", "0.1.0-1")
    assert not is_active(node)
    assert node.box.property("costgov", "UnitFileState") == "enabled"
    node.box.run("costgov", "--version")


def test_make_install_is_refused_beside_the_package(node: Node) -> None:
    refused = node.box.run("make", "-C", "/box/tree", "install", check=False)
    assert refused.returncode != 0
    assert "apt-get remove" in refused.stderr
    assert not exists(node, "/usr/local/bin/costgov")


def test_removing_ends_the_watch_and_keeps_config_and_state(node: Node) -> None:
    node.box.run("systemctl", "start", "costgov")
    governor = node.main_pid()
    node.box.run("touch", "/opt/costgov/venv/lib/by-hand")
    node.box.run("apt-get", "remove", "-qq", "-y", "costgov")
    assert not node.is_alive(governor)
    for path in ("/opt/costgov", "/usr/bin/costgov", "/usr/lib/systemd/system/costgov.service"):
        assert not exists(node, path), path
    assert node.box.run("find", "/etc/systemd/system", "-name", "costgov*").stdout == ""
    assert exists(node, "/var/lib/costgov/kept")
    assert exists(node, "/etc/costgov/costgov.toml")


def test_purging_leaves_nothing(node: Node) -> None:
    node.box.run("apt-get", "purge", "-qq", "-y", "costgov")
    for path in (ROOT / "deploy" / "purged").read_text().split():
        assert not exists(node, path), path
    assert node.box.run("getent", "passwd", "costgov", check=False).returncode == 2


def test_the_package_is_refused_beside_make_install(node: Node) -> None:
    node.box.run("ln", "-s", "/opt/costgov/venv/bin/costgov", "/usr/local/bin/costgov")
    refused = node.box.run("sh", "-c", "dpkg -i /box/packages/costgov_*-1_*.deb", check=False)
    assert refused.returncode != 0
    assert "make uninstall" in refused.stderr
    assert not exists(node, "/opt/costgov")


def test_user_data_of_a_cloud_installs_and_starts_it(node: Node) -> None:
    """cloud-init reads our user data as on a new machine. Only the package's address is another."""
    if shutil.which("cloud-init") is None:
        pytest.skip("needs cloud-init (Debian package cloud-init)")
    box = node.box
    box.run("rm", "-f", "/usr/local/bin/costgov", "/etc/cloud/cloud-init.disabled")
    package, digest = package_and_digest(node)
    text = (ROOT / "deploy/cloud-init/costgov.yaml").read_text()
    text = text.replace(ADDRESS, f"file://{package}").replace("0" * 64, digest)
    assert text.count(digest) == 1
    assert text.count(package) == 1
    box.write("/var/lib/cloud/seed/nocloud/user-data", text)
    box.write("/var/lib/cloud/seed/nocloud/meta-data", "instance-id: drill\n")
    box.write("/etc/cloud/cloud.cfg.d/99-drill.cfg", "datasource_list: [NoCloud]\n")  # Others wait for a network.
    box.run("cloud-init", "init", check=False)
    for module in ("write_files", "runcmd", "scripts_user"):
        box.run("cloud-init", "single", "--name", module, "--frequency", "always")
    assert is_active(node), box.run("cat", "/var/log/cloud-init.log").stdout[-4000:]
    assert box.property("costgov", "UnitFileState") == "enabled"
    assert box.run("stat", "-c", "%U:%G %a", "/etc/costgov/costgov.toml").stdout == "root:costgov 640\n"
    assert "22" in box.run("costgov", "status").stdout


def test_user_data_is_what_cloud_init_takes(tmp_path: Path) -> None:
    if shutil.which("cloud-init") is None:
        pytest.skip("needs cloud-init (Debian package cloud-init)")
    good = ROOT / "deploy/cloud-init/costgov.yaml"
    bad = tmp_path / "bad.yaml"
    bad.write_text(good.read_text().replace("content: |", "contents: |"))
    codes = [subprocess.run(["cloud-init", "schema", "--config-file", file]).returncode for file in (good, bad)]
    assert codes == [0, 1]
