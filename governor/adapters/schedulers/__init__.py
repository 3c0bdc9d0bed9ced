"""Schedulers whose jobs a halt may end, one module each. `found` tells which one is asked here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.plugins import ConfigError, Surroundings, checked
from governor.adapters.schedulers import kubernetes
from governor.adapters.schedulers.slurm import Slurm
from governor.core.base.identity import job_parts
from governor.remote_ports import Scheduler
from trainer_shim.launch import scheduler_job

TABLE: Final = "scheduler"


def found(use: str, tables: Mapping[str, Mapping[str, Any]], job: str, environ: Mapping[str, str]) -> Scheduler | None:
    """The one scheduler that is asked. `use`: "auto" | "slurm" | "kubernetes" | "off"; `job`: what costgov.toml names.

    Slurm's controller is asked once for its times. ConfigError: a fault in [scheduler.kubernetes], or a pod that has no
    API to ask where `use` names Kubernetes.
    """
    for name in tables:
        if name != kubernetes.NAME:
            raise ConfigError(f'{TABLE}: there is no table "{TABLE}.{name}"; known: {TABLE}.{kubernetes.NAME}')
    config = checked(f"{TABLE}.{kubernetes.NAME}", kubernetes.KEYS, tables.get(kubernetes.NAME, {}))
    slurm = Slurm.of({"auto": "auto", "slurm": "on"}.get(use, "off"), environ)
    if slurm is not None or use in ("slurm", "off"):
        return slurm
    if use == "auto" and not _is_pod_with_rights(config, job or scheduler_job(environ), environ):
        return None
    return kubernetes.build(config, Surroundings(environ=environ))


def _is_pod_with_rights(config: Mapping[str, Any], job: str, environ: Mapping[str, str]) -> bool:
    """Whether we know our own pod, an API to ask, and have the token of a service account.

    A governor for all pods of a node knows no own one: there `use = "kubernetes"` says it.
    """
    has_api = config["endpoint"] is not None or "KUBERNETES_SERVICE_HOST" in environ
    return job_parts(job)[0] == kubernetes.NAME and has_api and os.path.exists(str(config["token_file"]))
