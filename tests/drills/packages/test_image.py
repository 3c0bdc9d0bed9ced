"""The Dockerfile is built, and its image runs. No registry is asked: its base is made of this machine's own Python.

buildah, because it needs neither a daemon nor a container's namespaces: it builds and runs in a chroot.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from governor.cli.common import ExitCode

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"
BASE = "localhost/costgov-drill-base"
IMAGE = "localhost/costgov-drill"
BASE_PACKAGES = ("dash", "coreutils", "grep", "sed", "passwd", "login", "python3-venv")
BUILD_S_MAX = 600.0
RUN_S_MAX = 120.0


def closure(*wanted: str) -> set[str]:
    """Those packages and all that they need, as far as it is installed here."""
    form = "${Package}\t${Pre-Depends},${Depends},${Provides}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True).stdout
    needs = dict(line.split("\t") for line in listed.splitlines())
    found: set[str] = set()
    left = list(wanted)
    while left:
        name = left.pop()
        if name in needs and name not in found:
            found.add(name)
            left += re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", needs[name])
    return found


def pack_base(archive: Path) -> None:
    """A root file system with a Python, of the files that Debian's packages have here."""
    listed = subprocess.run(
        ["dpkg-query", "-L", *sorted(closure(*BASE_PACKAGES))], capture_output=True, text=True, check=True
    ).stdout
    with tarfile.open(archive, "w") as tar:
        for link in ("bin", "sbin", "lib", "lib64"):
            if Path("/", link).is_symlink():
                tar.add(Path("/", link), arcname=link)
        seen: set[Path] = set()
        for line in listed.splitlines():
            path = Path(line)
            path = path.parent.resolve() / path.name
            is_file = path.is_symlink() or path.is_file()
            if is_file and path.parent != Path("/") and path not in seen and "/share/doc/" not in line:
                seen.add(path)
                tar.add(path, arcname=path.relative_to("/"), recursive=False)
        for name, text in (("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("etc/group", "root:x:0:\n")):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, BytesIO(text.encode()))
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)


class Buildah:
    """buildah with a store of its own, which ends with the test."""

    def __init__(self, store: Path) -> None:
        self._store = store

    def __call__(self, verb: str, *arguments: str, check: bool = True, timeout_s: float = BUILD_S_MAX) -> str:
        found = self.result(verb, *arguments, timeout_s=timeout_s)
        assert not check or found.returncode == 0, f"buildah {verb}: {found.returncode}\n{found.stdout}{found.stderr}"
        return found.stdout.strip()

    def result(self, verb: str, *arguments: str, timeout_s: float = RUN_S_MAX) -> subprocess.CompletedProcess[str]:
        where = ["--root", f"{self._store}/root", "--runroot", f"{self._store}/run", "--storage-driver", "vfs"]
        return subprocess.run(
            ["buildah", *where, verb, *arguments], capture_output=True, text=True, timeout=timeout_s, cwd=ROOT
        )


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    for program in ("buildah", "dpkg-query"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian package {program.partition('-')[0]})")
    if os.geteuid() != 0:
        pytest.skip("needs root (a chroot)")
    return Buildah(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def container(buildah: Buildah, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    context = tmp_path_factory.mktemp("base")
    pack_base(context / "root.tar")
    (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
    buildah("bud", "--quiet", "--tag", BASE, str(context))
    (context / "root.tar").unlink()
    arguments = (f"BASE={BASE}", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels")
    options = ["--isolation", "chroot", "--network", "host", "--format", "docker", "--volume", f"{wheels}:/wheels:ro"]
    options += [word for argument in arguments for word in ("--build-arg", argument)]
    buildah("bud", "--quiet", *options, "--tag", IMAGE, "--file", str(DOCKERFILE), str(ROOT))
    name = buildah("from", "--pull-never", IMAGE)
    yield name
    buildah("rm", name)


def run(buildah: Buildah, container: str, *command: str) -> subprocess.CompletedProcess[str]:
    return buildah.result("run", "--isolation", "chroot", container, "--", *command)


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, "--failure-threshold", "style", DOCKERFILE], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "hadolint ignore" not in DOCKERFILE.read_text()


def test_the_image_has_the_command_and_is_nobody_special(buildah: Buildah, container: str) -> None:
    assert run(buildah, container, "costgov", "--version").stdout.startswith("costgov")
    who = "import os; print(os.getuid(), os.getgid())"
    assert run(buildah, container, "/opt/costgov/venv/bin/python", "-c", who).stdout.split() == ["977", "977"]


def test_the_image_carries_what_is_pinned_and_no_more(buildah: Buildah, container: str) -> None:
    each = "print(*(f'{one.name}=={one.version}' for one in d()))"
    program = f"from importlib.metadata import distributions as d; {each}"
    found = set(run(buildah, container, "/opt/costgov/venv/bin/python", "-c", program).stdout.split())
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pinned = {line for line in lines if line and not line.startswith("#")}
    ours = {one for one in found if one.startswith("costgov")}
    assert found - ours == pinned
    assert len(ours) == 2


def test_doctor_answers_in_it(buildah: Buildah, container: str) -> None:
    found = run(buildah, container, "costgov", "doctor", "--json")
    assert json.loads(found.stdout), found.stderr


def test_a_governed_command_ends_at_its_ceiling(buildah: Buildah, container: str) -> None:
    price = ("--ceiling", "2", "--price", "360")  # Ten cents a second, and some of them kept for the halt.
    found = run(buildah, container, "costgov", "run", *price, "--", "/bin/sh", "-c", "echo trains; exec sleep 600")
    assert found.returncode == ExitCode.HALTED, found.stdout + found.stderr
    assert "trains" in found.stdout
