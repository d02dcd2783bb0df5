#!/usr/bin/env bash
# mpirun.sh FOLDER MPIRUN WORD...: runs mpirun, and runs it again if it has not started all ranks after five minutes.
#
# The daemons of Open MPI 5 sometimes wait for each other forever before they start the first rank, or the ranks of another
# host (https://github.com/openpmix/prrte/issues/1839). A job whose ranks have all started is never run again. All hosts see
# FOLDER.
set -euo pipefail
folder=$(mktemp -d "$1/mpirun.XXXXXX")
trap 'rm -rf "$folder"' EXIT
# A program in the background would ignore these signals, and so would the ranks.
command=(env --default-signal=INT,QUIT "$2")
shift 2
is_marked=
for word; do
    # The first program, or the first after a colon: before it come options and their values.
    [ "$word" != : ] || is_marked=
    if [ -z "$is_marked" ] && { [ "$word" = sh ] || [[ $word = /* && -f $word && -x $word ]]; }; then
        command+=(sh -c 'echo "${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}" >"$0/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"; exec "$@"' "$folder")
        is_marked=1
    fi
    command+=("$word")
done
[ -n "$is_marked" ] || { echo "mpirun.sh: no program in: $*" >&2; exit 2; }

# Whether as many ranks have started as the job has.
have_started() {
    local ranks=("$folder"/*) size
    # The first one may have been created, and not been written yet.
    [ -s "${ranks[0]}" ] && size=$(cat "${ranks[0]}") && [ "${#ranks[@]}" -ge "$size" ]
}

for _ in 1 2 3; do
    "${command[@]}" <&0 &
    job=$!
    trap 'kill -TERM "$job"' TERM
    for _ in {1..3000}; do
        if have_started || ! kill -0 "$job" 2>/dev/null; then
            code=0
            wait "$job" || code=$?
            # A signal interrupts `wait`; the job ends by the same signal.
            while kill -0 "$job" 2>/dev/null; do wait "$job" || code=$?; done
            exit "$code"
        fi
        sleep 0.1
    done
    echo "mpirun.sh: not all ranks have started; mpirun is started again" >&2
    kill -KILL "$job"
    wait "$job" || true
    rm -f "$folder"/*
done
exit 124
