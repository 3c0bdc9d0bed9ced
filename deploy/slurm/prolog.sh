#!/bin/sh
# Slurm's Prolog: notes in the node's log which job begins, for whoever compares it with costgov's incidents.
# Always succeeds: a Prolog that fails drains the node, and costgov's absence is no reason for that.
id=${SLURM_JOB_ID:-}
case $id in '' | *[!0-9]*) exit 0 ;; esac
logger -t costgov -- "slurm job $id of uid ${SLURM_JOB_UID:-?} begins on ${SLURMD_NODENAME:-?}" 2>/dev/null || :
exit 0
