"""What the launch says about this rank: read from the environment once, at attach()."""

from __future__ import annotations

import os
import re
import sys
import time
import zlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from .connection.forwarded import with_forwarded as with_forwarded
from .connection.starts import Default, born, host_of, restart_of, restarts_of
from .guard import print_line
from .version import __version__
from .wire import LABELS_MAX, LIST_ITEMS_MAX, PATH_CHARS_MAX, TEXT_CHARS_MAX

_ABSENT_RUN_IDS = frozenset(("", "none", "default"))  # What torchrun says when nobody named the rendezvous.
# An eighth of a packet: with the largest labels it still fits.
_ARGV_CHARS_MAX = 8 * 1024
_RANKS_MAX = 2**31 - 1  # MPI and torch count ranks in a C int. More is a typing error, over which we would loop.
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_YES, _NO = frozenset(("1", "true", "yes", "on")), frozenset(("", "0", "false", "no", "off"))


class Place(NamedTuple):
    """Who this rank is."""

    run: str
    attempt: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


class Launch:
    """Rank, run and attempt of this process."""

    def __init__(self, environ: Mapping[str, str], checkpoint_dir: Optional[str]) -> None:
        self.rank = _rank(environ, "RANK", "SLURM_PROCID")
        self.local_rank = _rank(environ, "LOCAL_RANK", "SLURM_LOCALID")
        self.world_size = max(1, _rank(environ, "WORLD_SIZE", "SLURM_NTASKS", absent=1))
        distributed = _initialized_distributed()
        if distributed is not None:  # The process group is right where an inherited environment is not.
            self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
        if max(self.rank, self.local_rank, self.world_size) > _RANKS_MAX:
            raise ValueError("RANK, LOCAL_RANK or WORLD_SIZE is above %d: no number of ranks" % _RANKS_MAX)
        self.run = environ.get("COSTGOV_RUN") or _derived_run(checkpoint_dir)
        self.attempt = _attempt(environ, distributed, self.world_size)
        self.stage = environ.get("COSTGOV_STAGE") or None
        self.labels = parse_labels(environ.get("COSTGOV_LABELS", ""))
        for name, value in scheduler_labels(environ).items():
            self.labels.setdefault(name, value)


def slurm_job(environ: Mapping[str, str]) -> str:
    """Return the job as `scancel` ends it: an element of an array alone, a heterogeneous job as a whole."""
    whole = environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_JOB_ID_HET_GROUP_0")
    array, element = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and element:  # The last element's own number is the array's.
        return "%s_%s" % (array, element)
    return whole or environ.get("SLURM_JOB_ID", "")


def scheduler_job(environ: Mapping[str, str]) -> str:
    """Return the job in which we are: "4711" of Slurm, else "kubernetes:NAMESPACE/POD", else nothing.

    A pod knows its names where its manifest hands them over (the downward API): POD_NAMESPACE and POD_NAME.
    """
    namespace, pod = environ.get("POD_NAMESPACE", ""), environ.get("POD_NAME", "")
    is_pod = _KUBERNETES_NAME.match(namespace) and _KUBERNETES_NAME.match(pod)
    return slurm_job(environ) or ("kubernetes:%s/%s" % (namespace, pod) if is_pod else "")


def scheduler_labels(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the job and who pays for it, as labels: `costgov cost --by label:slurm_account` groups by them."""
    told = {
        "scheduler_job": scheduler_job(environ),
        "slurm_account": environ.get("SLURM_JOB_ACCOUNT", ""),
        "slurm_partition": environ.get("SLURM_JOB_PARTITION", ""),
        "slurm_user": environ.get("SLURM_JOB_USER", ""),
    }
    return {name: value for name, value in told.items() if value}


def place_of(hello: Dict[str, Any], environ: Mapping[str, str]) -> Place:
    """Complete the hello in place with what the launcher's environment says, and return who we are."""

    def number(*names: str, fallback: int) -> int:
        for name in names:
            text = environ.get(name, "")
            if text.isdigit():
                return int(text)
        return fallback

    rank = int(hello.pop("rank", number("RANK", fallback=0)))
    world_size = int(hello.setdefault("world_size", number("WORLD_SIZE", fallback=1)))
    local_rank = int(hello.setdefault("local_rank", number("LOCAL_RANK", fallback=0)))
    run = str(hello.setdefault("run", environ.get("COSTGOV_RUN") or "run"))
    attempt_name = str(hello.setdefault("attempt", environ.get("TORCHELASTIC_RUN_ID") or "0"))
    local_world_size = number("LOCAL_WORLD_SIZE", "LOCAL_SIZE", fallback=1)
    return Place(run, attempt_name, rank, world_size, local_rank, local_world_size)


def is_unnamed(environ: Mapping[str, str], run: str) -> bool:
    """Whether no person has named `run`, but `costgov run`: the next launch of the same has another name."""
    return environ.get("COSTGOV_UNNAMED_RUN") == run


def is_required(environ: Mapping[str, str]) -> bool:
    """Read COSTGOV_REQUIRED: whether to refuse to train unwatched. Any other word counts as no, and is reported."""
    text = with_forwarded(environ).get("COSTGOV_REQUIRED", "").strip().lower()
    if text not in _YES and text not in _NO:
        print_line("COSTGOV_REQUIRED=%.40s is neither 1 nor 0: taken for 0, this may train unwatched" % text)
    return text in _YES


def parse_labels(text: str) -> Dict[str, str]:
    """Parse "team=nlp,owner=ada". A part without "=" is reported and left out."""
    labels: Dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if equals and name.strip():
            labels[name.strip()] = value.strip()
        else:
            print_line("COSTGOV_LABELS: %r is not name=value: left out" % part[:80])
    return clean_labels(labels)


def clean_labels(labels: Mapping[Any, Any]) -> Dict[str, str]:
    """Return labels as the wire takes them: texts, bounded in number and length."""
    return {str(k)[:TEXT_CHARS_MAX]: str(v)[:TEXT_CHARS_MAX] for k, v in list(labels.items())[:LABELS_MAX]}


def resume_argv() -> List[str]:
    """Return this rank's command line, interpreter first; empty when it is too long for a hello."""
    argv = list(getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv])
    # Half a command would resume something else. A hello that is too large would leave the run unwatched.
    fits = len(argv) <= LIST_ITEMS_MAX and sum(map(len, argv)) <= _ARGV_CHARS_MAX
    return argv if fits and all(len(word) <= PATH_CHARS_MAX for word in argv) else []


def working_directory() -> Optional[str]:
    """Return where this rank was started, or None when that directory is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def gpu_uuids(environ: Mapping[str, str]) -> List[str]:
    """Return the UUIDs of the GPUs this process uses, empty where none is known without touching a driver."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
        if uuid is not None:
            text = str(uuid)
            return [text if text.startswith(("GPU-", "MIG-")) else "GPU-" + text]
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [name.strip() for name in visible if name.strip().startswith(("GPU-", "MIG-"))][:LIST_ITEMS_MAX]


def boot_id() -> str:
    """Return the kernel's id of this boot: two ranks that read the same one share a clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        print_line("no boot id: deadlines from other ranks are taken as time left")
        return "pid-%d" % os.getpid()


def _rank(environ: Mapping[str, str], *names: str, absent: int = 0) -> int:
    for name in names:
        text = environ.get(name, "")
        if text.isdigit():
            return int(text)
    return absent


def _derived_run(checkpoint_dir: Optional[str]) -> str:
    # Script, working directory and checkpoint directory survive a restart; arguments such as --resume do not.
    script = os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
    stem = os.path.splitext(os.path.basename(script))[0]
    place = "\0".join((script, os.getcwd(), checkpoint_dir or ""))
    return "%s-%06x" % (stem[:64], zlib.crc32(place.encode("utf-8", "surrogateescape")) & 0xFFFFFF)


def _attempt(environ: Mapping[str, str], distributed: Any, world_size: int) -> str:
    store = _default_store(distributed)
    # The elastic agent restarts its workers inside one launch: each restart is an attempt of its own. Agents of several
    # nodes count unlike, so ranks that have a store ask there.
    restart = restarts_of(environ) if store is None else restart_of(store, environ)
    given = environ.get("COSTGOV_ATTEMPT")
    if not given and environ.get("SLURM_JOB_ID"):
        given = "%s.%s" % (environ["SLURM_JOB_ID"], environ.get("SLURM_RESTART_COUNT", "0"))
    if not given:
        rendezvous = environ.get("TORCHELASTIC_RUN_ID", "")
        token = _agreed_token(environ, store, world_size)
        given = token if rendezvous in _ABSENT_RUN_IDS else "%s-%s" % (rendezvous, token)
    return "%s.%d" % (given, restart) if restart else given


def _default_store(distributed: Any) -> Optional[Default]:
    found = getattr(getattr(distributed, "distributed_c10d", None), "_get_default_store", None)
    return None if found is None else Default(found())


def _agreed_token(environ: Mapping[str, str], store: Optional[Default], world_size: int) -> str:
    """Return a name for this launch that all its ranks, of this node at least, share without asking each other."""
    mine = born(os.getpid())
    if store is not None:
        return store.settle("attempt", mine)
    if world_size <= 1:
        return mine
    # Before there is a store, the launcher that started all ranks names them, and where they will meet: one shell or
    # notebook may launch twice.
    meeting = "%s:%s" % (environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", ""))
    return "%s-%06x" % (born(os.getppid()), zlib.crc32(meeting.encode("utf-8", "surrogateescape")) & 0xFFFFFF)


def _initialized_distributed() -> Any:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def hello_fields(
    launched: Launch,
    of_kind: Mapping[str, Any],
    overrides: Dict[str, Any],
    labels: Mapping[str, Any],
    checkpoint_dir: Optional[str],
    environ: Mapping[str, str],
    number: int,
) -> Dict[str, Any]:
    """Return what is known of training `number` of this process before its first step."""
    hello: Dict[str, Any] = {
        "rank": launched.rank,
        "local_rank": launched.local_rank,
        "world_size": launched.world_size,
        "run": launched.run,
        # Each training of one process is an attempt of its own: its steps and losses begin anew.
        "attempt": launched.attempt + ("+%d" % (number - 1) if number > 1 else ""),
        "stage": launched.stage,
        "labels": clean_labels({**launched.labels, **labels}),
        "gpu_uuids": gpu_uuids(environ),
        "checkpoint_dir": checkpoint_dir,
        "resume_argv": resume_argv(),
        "cwd": working_directory(),
        "shim_version": __version__,
        "started_mono_ns": time.monotonic_ns(),
        "master": host_of(environ.get("MASTER_ADDR", "")),
    }
    hello.update(of_kind)
    hello.update(overrides)
    return {name: value for name, value in hello.items() if value is not None}
