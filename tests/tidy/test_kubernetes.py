"""deploy/kubernetes by the schemas of Kubernetes itself, by the Pod Security Standards, and by our own names.

The schemas (kubernetes-validate) name a field that does not exist and a value of the wrong type. They have no enums:
those that matter are checked here. Kinds of other projects have no schema there: of these the pods are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from governor.adapters.schedulers.kube.owners import KINDS
from governor.app.settings_file import load_settings
from governor.cli.common import ExitCode

ROOT = Path(__file__).resolve().parents[2]
RENDERED = ROOT / "tests/golden/kubernetes"
EXAMPLES = ROOT / "deploy/kubernetes/examples"
FILES = sorted([*RENDERED.glob("*.yaml"), *EXAMPLES.glob("*.yaml")])
# Native sidecars are on by default from 1.29.
VERSIONS = ["1.29", "1.31", "1.33", "1.35", "1.37"]
OTHERS = {"jobset.x-k8s.io", "kubeflow.org", "ray.io", "monitoring.coreos.com"}
ENUMS = {
    "restartPolicy": {"Always", "Never", "OnFailure", "ExitCode"},
    "operator": {"In", "NotIn", "Exists", "Equal"},
    "action": {"Ignore", "FailJob", "Count", "FailIndex", "FailJobSet"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "protocol": {"TCP", "UDP"},
    "effect": {"NoSchedule", "NoExecute", "PreferNoSchedule"},
    "completionMode": {"Indexed", "NonIndexed"},
    "cleanPodPolicy": {"None", "Running", "All"},
    "medium": {"", "Memory"},
}
HOST_PATH_TYPES = {"Directory", "DirectoryOrCreate"}


def documents(path: Path) -> list[Any]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def walked(item: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(item, Mapping):
        yield item
    for below in item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ():
        yield from walked(below)


def pod_specs(item: Any) -> list[Any]:
    return [one for one in walked(item) if isinstance(one.get("containers"), list)]


def containers(spec: Any) -> list[Any]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_manifest_has_known_fields_of_the_right_type(path: Path, version: str) -> None:
    for item in documents(path):
        if item["apiVersion"].split("/")[0] not in OTHERS:
            kubernetes_validate.validate(item, version, strict=True)
        for spec in pod_specs(item):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
            policy = spec.get("restartPolicy")
            if policy == "ExitCode":  # The training operator's own word, of a replica.
                pod["spec"] = {**spec, "restartPolicy": "Never"}
            kubernetes_validate.validate(pod, version, strict=True)


def test_the_schemas_find_a_misspelt_field() -> None:
    item = documents(EXAMPLES / "job-sidecar.yaml")[0]
    item["spec"]["podFailurePolicies"] = item["spec"].pop("podFailurePolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(item, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_word_of_an_enum_is_one_of_it(path: Path) -> None:
    wrong = [
        (name, value)
        for item in documents(path)
        for part in walked(item)
        for name, value in part.items()
        if name in ENUMS and isinstance(value, str) and value not in ENUMS[name]
    ]
    assert not wrong


# --- Pod Security Standards -----------------------------------------------------------------------------------

# Of the level "restricted": what volumes may be.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


SECCOMP = {"RuntimeDefault", "Localhost"}


def restricted_faults(spec: Any) -> list[str]:
    """By https://kubernetes.io/docs/concepts/security/pod-security-standards, "baseline" and "restricted" together."""
    faults = [name for name in ("hostPID", "hostIPC", "hostNetwork") if spec.get(name)]
    for volume in spec.get("volumes", ()):
        faults += [f"volume {kind}" for kind in set(volume) - {"name"} if kind not in VOLUMES]
    pod = spec.get("securityContext", {})
    for one in containers(spec):
        own = one.get("securityContext", {})
        both = {**pod, **own}
        faults += ["privileged"] if own.get("privileged") else []
        faults += ["allowPrivilegeEscalation"] if own.get("allowPrivilegeEscalation") is not False else []
        faults += ["capabilities"] if own.get("capabilities", {}).get("drop") != ["ALL"] else []
        faults += ["added capability"] if set(own.get("capabilities", {}).get("add", ())) - {"NET_BIND_SERVICE"} else []
        faults += ["runAsNonRoot"] if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0 else []
        faults += (
            ["seccomp"] if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost") else []
        )
        faults += ["hostPort"] if any(port.get("hostPort") for port in one.get("ports", ())) else []
        faults += ["procMount"] if own.get("procMount", "Default") != "Default" else []
    return faults


@pytest.mark.parametrize("name", ["job", "job-sidecar", "pytorchjob", "jobset", "rayjob"])
def test_pods_without_the_daemonset_pass_the_level_restricted(name: str) -> None:
    specs = [spec for item in documents(EXAMPLES / f"{name}.yaml") for spec in pod_specs(item)]
    assert specs
    assert [restricted_faults(spec) for spec in specs] == [[] for _ in specs]


def test_the_daemonset_asks_for_no_more_than_it_needs() -> None:
    for case in ("daemonset", "daemonset_all"):
        (spec,) = [spec for item in documents(RENDERED / f"{case}.yaml") for spec in pod_specs(item)]
        wanted = ["added capability", "hostPID", "runAsNonRoot", "volume hostPath", "volume hostPath"]
        assert sorted(restricted_faults(spec)) == wanted
        (container,) = spec["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["KILL", "SYS_PTRACE"]}
        assert not {one["hostPath"]["type"] for one in spec["volumes"] if "hostPath" in one} - HOST_PATH_TYPES


def test_without_the_daemonset_the_chart_runs_nothing() -> None:
    for case in ("sidecar", "sidecar_all"):
        assert [spec for item in documents(RENDERED / f"{case}.yaml") for spec in pod_specs(item)] == []


# --- what belongs together --------------------------------------------------------------------------------------


def sidecars() -> list[tuple[str, Any]]:
    paths = sorted(EXAMPLES.glob("*.yaml"))
    found = [(path.name, spec) for path in paths for item in documents(path) for spec in pod_specs(item)]
    return [(name, spec) for name, spec in found if len(spec.get("initContainers", ())) > 1]


def test_a_sidecar_is_native_and_alone_has_the_token() -> None:
    assert [name for name, _ in sidecars()] == ["job-sidecar.yaml", "rayjob.yaml"]
    for _, spec in sidecars():
        (first, governor), (trainer,) = spec["initContainers"], spec["containers"]
        assert governor["restartPolicy"] == "Always"
        assert spec["shareProcessNamespace"] is True
        assert spec["automountServiceAccountToken"] is False
        mounts = [{one["name"] for one in container["volumeMounts"]} for container in (governor, trainer)]
        assert ["account" in one for one in mounts] == [True, False]
        # What the first one makes is what both mount: in an emptyDir itself the governor does not listen.
        assert "/sockets/own" in first["command"]
        for container in (governor, trainer):
            (sockets,) = [one for one in container["volumeMounts"] if one["name"] == "sockets"]
            assert (sockets["mountPath"], sockets["subPath"]) == ("/run/costgov", "own")
        # One user: else neither signals nor the socket's owner would fit.
        assert not [one for one in (governor, trainer) if "runAsUser" in one["securityContext"]]


def test_every_volume_that_is_mounted_exists() -> None:
    for path in FILES:
        for spec in [spec for item in documents(path) for spec in pod_specs(item)]:
            mounted = {one["name"] for container in containers(spec) for one in container.get("volumeMounts", ())}
            assert mounted == {one["name"] for one in spec.get("volumes", ())}, path.name


@pytest.mark.parametrize("name", ["job", "job-sidecar", "jobset", "job-of-daemonset"])
def test_a_halted_job_is_failed_and_not_restarted(name: str) -> None:
    parts = [part for item in documents(EXAMPLES / f"{name}.yaml") for part in walked(item)]
    (policy,) = [part["podFailurePolicy"] for part in parts if "podFailurePolicy" in part]
    first, second = policy["rules"]
    assert (first["action"], first["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    codes = second["onExitCodes"]
    assert (second["action"], codes["operator"]) == ("FailJob", "In")
    assert {ExitCode.HALTED, ExitCode.NEEDS_HUMAN} <= set(codes["values"])
    (spec,) = [spec for item in documents(EXAMPLES / f"{name}.yaml") for spec in pod_specs(item)]
    assert codes["containerName"] == spec["containers"][0]["name"]
    assert spec["restartPolicy"] == "Never"  # A podFailurePolicy needs it.


def rules(case: str, kind: str) -> list[Any]:
    return [rule for item in documents(RENDERED / f"{case}.yaml") if item["kind"] == kind for rule in item["rules"]]


def test_the_role_has_what_the_adapter_asks_for_and_no_more() -> None:
    plurals = {(kind.group, kind.plural) for kind in KINDS.values()}
    for case, verbs in (("sidecar", ["get", "patch"]), ("sidecar_all", ["get", "patch", "delete"])):
        pods, *owners = rules(case, "Role")
        assert (pods["resources"], pods["verbs"]) == (["pods"], ["get", "list", "delete"])
        assert owners
        for rule in owners:
            assert rule["verbs"] == verbs
            assert (rule["apiGroups"][0], rule["resources"][0]) in plurals
    assert rules("sidecar", "ClusterRole") == []
    assert rules("sidecar_all", "ClusterRole") == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    ]


@pytest.mark.parametrize("case", ["sidecar", "sidecar_all", "daemonset", "daemonset_all"])
def test_the_rendered_configuration_is_one_that_the_governor_takes(case: str, tmp_path: Path) -> None:
    (item,) = [one for one in documents(RENDERED / f"{case}.yaml") if "costgov.toml" in one.get("data", {})]
    (tmp_path / "costgov.toml").write_text(item["data"]["costgov.toml"])
    _, governor = sidecars()[0][1]["initContainers"]
    # A name in $(...) is the kubelet's to replace.
    environ = {one["name"]: str(one.get("value", "gpu-1")) for one in governor["env"]}
    environ = {name: value.replace("$(POD_NAMESPACE)/$(POD_NAME)", "ml/llm-0") for name, value in environ.items()}
    settings, problems = load_settings(tmp_path / "costgov.toml", environ=environ)
    assert settings is not None, problems
    assert problems == []
    assert (settings.node.name, settings.node.scheduler_job) == ("gpu-1", "kubernetes:ml/llm-0")
    assert settings.observe is case.endswith("all")
    assert settings.node.price_usd_per_hour == (22.5 if case == "sidecar_all" else None)


def test_the_charts_policy_is_the_shipped_one() -> None:
    """Without one nothing is judged."""
    shipped = (ROOT / "policies/default.toml").read_text()
    assert (ROOT / "deploy/kubernetes/costgov/files/default.toml").read_text() == shipped
    for case in ("sidecar", "daemonset"):
        (item,) = [one for one in documents(RENDERED / f"{case}.yaml") if "policy.toml" in one.get("data", {})]
        assert item["data"]["policy.toml"].strip() == shipped.strip()
