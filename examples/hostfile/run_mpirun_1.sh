#!/usr/bin/env bash
# Trains on 4 ranks of the two hosts named here; each rank's losses go to log_output/1/rank.*/stdout.
#   bash examples/hostfile/run_mpirun_1.sh
set -euo pipefail

# With a Python program: mpirun ... mpienv exec -- python net.py
mpirun -n 4 -H nodeA:2,nodeB:2 -x PATH -x DATA_PATH="${DATA_PATH:-}" \
    --output-filename log_output --merge-stderr-to-stdout mnist --log-steps
