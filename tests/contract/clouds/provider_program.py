"""The stop and verify command of a make-believe provider; copied out and run by the command rig."""

import json
import os
import signal
import sys

path, what = sys.argv[1:3]
with open(path) as file:
    truth = json.load(file)


def leave(code: int) -> None:
    with open(path + ".new", "w") as file:
        json.dump(truth, file)
    os.replace(path + ".new", path)
    os._exit(code)


if what == "verify":
    if truth["hidden"]:
        leave(7)
    if truth["state"] == "stopped" and truth["stopping_reads"] > 0:
        truth["stopping_reads"] -= 1
        leave(1)
    leave(0 if truth["state"] == "stopped" else 1)

instance, incident, rung = sys.argv[3:6]
truth.setdefault("asked_for", []).append(instance)
fault, truth["fault"] = truth["fault"], ""
if fault == "busy":
    leave(75)
if fault == "lie" and rung == "0":
    leave(0)
if truth["state"] == "running":
    truth["state"] = "stopped"
    truth["times_ended"] += 1
if fault == "lost_reply":
    with open(path, "w") as file:
        json.dump(truth, file)
    os.kill(os.getpid(), signal.SIGKILL)
leave(0)
