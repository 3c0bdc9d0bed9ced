"""What is known by its name: launchers of ranks, managers of jobs, logins and containers, and units for one command."""

from __future__ import annotations

_LAUNCHER_MODULES = frozenset((
    "deepspeed.launcher.launch", "deepspeed.launcher.runner", "torch.distributed.run", "torch.distributed.launch",
    "accelerate.commands.launch", "horovod.runner.launch",
))  # fmt: skip
_LAUNCHER_PROGRAMS = frozenset((
    "torchrun", "deepspeed", "ds", "deepspeed.pt", "horovodrun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun",
    "prterun", "hydra_pmi_proxy", "orted", "prted", "srun",
))  # fmt: skip
_MANAGERS = frozenset((
    "slurmstepd", "systemd", "(sd-pam)", "sshd", "sshd-session", "containerd-shim", "containerd-shim-runc-v2", "conmon",
    "runc", "crun", "dockerd", "pbs_mom", "condor_starter", "sge_shepherd",
))  # fmt: skip
_LAUNCHER_FILES = ("deepspeed/launcher/launch.py", "deepspeed/launcher/runner.py", "torch/distributed/run.py")
_GOVERNOR_FILE = "governor/__main__.py"
_MULTIPLEXERS = frozenset(("tmux", "tmux:", "screen", "SCREEN", "zellij", "dtach", "abduco"))
_SWITCHES = frozenset(("su", "runuser", "sudo", "doas"))
_SHARED_UNITS = ("session-", "user@", "init.scope")
_CONTAINERS = ("docker", "libpod", "crio", "cri-containerd", "kubepods", "lxc", "machine", "podman", "containerd")
_PYTHON_OPTIONS_WITH_VALUE = frozenset(("-X", "-W", "--check-hash-based-pycs"))


def is_launcher(argv: tuple[str, ...]) -> bool:
    """Whether this is the command line of a known launcher of ranks."""
    if not argv:
        return False
    program, rest = program_of(argv)
    name = program.rsplit("/", 1)[-1]
    if name == "accelerate" or program == "accelerate.commands.accelerate_cli":
        return "launch" in rest[:1]
    return program in _LAUNCHER_MODULES or name in _LAUNCHER_PROGRAMS or program.endswith(_LAUNCHER_FILES)


def program_of(argv: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the script or module that runs, past the interpreter and its options, and the arguments after it."""
    if not argv[0].rsplit("/", 1)[-1].startswith(("python", "pypy")):
        return argv[0], argv[1:]
    position = 1
    while position < len(argv) and argv[position].startswith("-"):
        option = argv[position]
        if option == "-m":
            return (argv[position + 1], argv[position + 2 :]) if position + 1 < len(argv) else ("", ())
        if option == "-c":
            return "", ()
        position += 2 if option in _PYTHON_OPTIONS_WITH_VALUE else 1
    return (argv[position], argv[position + 1 :]) if position < len(argv) else ("", ())


def is_manager(argv: tuple[str, ...]) -> bool:
    """Whether this is the command line of a known manager, such as "slurmstepd: [4711.0]"."""
    words = argv[0].replace(":", " ").split() if argv else []
    return bool(words) and words[0].rsplit("/", 1)[-1] in _MANAGERS


def is_governor(argv: tuple[str, ...]) -> bool:
    """Whether this is the command line of `costgov run`, which has a command of its own."""
    return is_costgov(argv) and "run" in program_of(argv)[1]


def is_costgov(argv: tuple[str, ...]) -> bool:
    """Whether this is the command line of a command of costgov's. A trainer may call itself so.

    So by itself it decides only what a report leaves unnamed, of what nobody ends in any case.
    """
    program = program_of(argv)[0] if argv else ""
    return program == "governor" or program.rsplit("/", 1)[-1] == "costgov" or program.endswith(_GOVERNOR_FILE)


def is_multiplexer(argv: tuple[str, ...]) -> bool:
    """Whether this is a server of terminals, such as "tmux: server" or "SCREEN -S x": it starts what others ask for."""
    words = argv[0].split() if argv else []
    return bool(words) and words[0].rsplit("/", 1)[-1] in _MULTIPLEXERS


def is_switch(argv: tuple[str, ...]) -> bool:
    """Whether it runs a command as another user, waits for it, and passes signals on to it."""
    return bool(argv) and argv[0].rsplit("/", 1)[-1] in _SWITCHES


def is_for_one_command(cgroup: str) -> bool:
    """Whether a control group of this path is made for one command, not shared by a login or inside a container."""
    unit = cgroup.rsplit("/", 1)[-1]
    if unit.startswith(_SHARED_UNITS) or any(f"/{shared}" in cgroup for shared in _CONTAINERS):
        return False
    return unit.endswith((".scope", ".service")) or "/step_" in cgroup
