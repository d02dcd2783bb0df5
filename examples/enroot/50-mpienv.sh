#!/usr/bin/env bash
# A hook for enroot: gives a container the variables of its place in the job.
#
#   install -m 755 50-mpienv.sh /etc/enroot/hooks.d/        (or ~/.config/enroot/hooks.d/, for one user)
#
# mpienv must be on the PATH of every host. Where it is not, no variables are added. enroot's own 50-slurm-pytorch.sh, if it is
# installed, runs later and keeps these values; it only adds OMP_NUM_THREADS.
set -euo pipefail

# Only in a job step: a container that a user starts by hand gets nothing.
[ -n "${SLURM_STEP_ID-}${OMPI_COMM_WORLD_RANK-}${PMI_RANK-}" ] || exit 0

# pyxis starts one container for all tasks of a node and hides the tasks' numbers from it. It gives RANK and LOCAL_RANK to
# each task itself if the image sets PYTORCH_VERSION. What the tasks have in common comes from the node's first task.
shared=no
if [ -n "${SLURM_STEP_ID-}" ] && [ -z "${SLURM_PROCID-}" ]; then
    if [ -z "${SLURM_GTIDS-}" ]; then
        echo "50-mpienv.sh: neither SLURM_PROCID nor SLURM_GTIDS is set: no variables are added" >&2
        exit 0
    fi
    export SLURM_PROCID=${SLURM_GTIDS%%,*} SLURM_LOCALID=0
    shared=yes
fi

# enroot does not start a container if a hook fails.
command -v mpienv >/dev/null || exit 0

# The file has one NAME=value a line, as `docker run --env-file` reads it. What the image or the user has set stays.
values=$(mpienv export --shell docker)
while IFS= read -r line; do
    name=${line%%=*}
    # A name alone stands for the host's variable. The file must not hold a secret.
    if [ "$line" = "$name" ]; then
        if [[ $name =~ ^MPIENV_(TOKEN|CONTEXT)$ ]]; then
            [ "$name" = MPIENV_CONTEXT ] || echo "50-mpienv.sh: MPIENV_TOKEN is not passed on: use MPIENV_TOKEN_FILE" >&2
            continue
        fi
        line=$name=${!name}
    fi
    if [ $shared = yes ] && [[ $name =~ ^(RANK|LOCAL_RANK)$ ]]; then continue; fi
    grep -q "^$name=" "$ENROOT_ENVIRON" || printf '%s\n' "$line" >>"$ENROOT_ENVIRON"
done <<<"$values"
