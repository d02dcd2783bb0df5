#!/usr/bin/env bash
# Trains on 4 ranks of the hosts in a hostfile; each rank's losses go to log_output/1/rank.*/stdout.
#   bash examples/hostfile/run_mpirun_2.sh examples/hostfile/hostfile
set -euo pipefail
HOSTFILE=${1:?usage: run_mpirun_2.sh HOSTFILE}

# With a Python program: mpirun ... mpienv exec -- python net.py
mpirun -n 4 --hostfile "$HOSTFILE" -x PATH -x DATA_PATH="${DATA_PATH:-}" \
    --output-filename log_output --merge-stderr-to-stdout mnist --log-steps
