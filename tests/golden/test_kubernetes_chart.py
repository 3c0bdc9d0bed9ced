"""What the Helm chart renders, word for word. Without helm (.ci/helm) the committed files stand for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.test_kubernetes import RENDERED, ROOT

CHART = ROOT / "deploy/kubernetes/costgov"
POLICY = ROOT / "policies/default.toml"
ALL = "rbac.cordonNodes=true,rbac.deleteOwners=true,metrics.expose=true,metrics.monitor=true,observe=true"
CASES = {
    "sidecar": [],
    "sidecar_all": [
        "--set",
        ALL,
        "--set-json",
        "priceUsdPerHour=22.5",
        "--set-file",
        f"policy={ROOT}/policies/default.toml",
    ],
    "daemonset": ["--set", "mode=daemonset"],
    "daemonset_all": ["--set", f"mode=daemonset,{ALL}", "--set-json", 'daemonset.nodeSelector={"gpu": "h100"}'],
}
HELM = shutil.which("helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm: .ci/helm brings it")


def helm(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    return subprocess.run([str(HELM), *arguments], env=environ, capture_output=True, text=True, timeout=120)


@needs_helm
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_chart_renders_what_is_committed(case: str, tmp_path: Path) -> None:
    done = helm(tmp_path, "template", "costgov", str(CHART), "--namespace", "ml", *CASES[case])
    assert done.returncode == 0, done.stderr
    golden = RENDERED / f"{case}.yaml"
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        golden.write_text(done.stdout)
    assert done.stdout == golden.read_text()


@needs_helm
@pytest.mark.parametrize("case", sorted(CASES))
def test_helm_finds_no_fault(case: str, tmp_path: Path) -> None:
    done = helm(tmp_path, "lint", "--strict", str(CHART), *CASES[case])
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize(
    "wrong",
    ["mode=both", "imagee.repository=x", "rbac.owners[0].verbs=*", "metrics.monitor=true", "priceUsdPerHour=-1"],
)
def test_a_misspelt_value_is_refused(wrong: str, tmp_path: Path) -> None:
    assert helm(tmp_path, "template", "costgov", str(CHART), "--set", wrong).returncode != 0


def test_every_rendering_is_one_of_the_cases() -> None:
    assert {path.stem for path in RENDERED.glob("*.yaml")} == set(CASES)
