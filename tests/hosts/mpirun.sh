#!/usr/bin/env bash
# mpirun.sh FOLDER MPIRUN WORD...: runs mpirun, and runs it again if it has started no rank after five minutes.
#
# The daemons of Open MPI 5 sometimes wait for each other forever before they start the first rank
# (https://github.com/openpmix/prrte/issues/1839). A job whose ranks have started is never run again. All hosts see FOLDER.
set -euo pipefail
folder=$(mktemp -d "$1/mpirun.XXXXXX")
trap 'rm -rf "$folder"' EXIT
# A program in the background would ignore these signals, and so would the ranks.
command=(env --default-signal=INT,QUIT "$2")
shift 2
is_marked=
for word; do
    # The first program: before it come options and their values.
    if [ -z "$is_marked" ] && { [ "$word" = sh ] || [[ $word = /* && -f $word && -x $word ]]; }; then
        command+=(sh -c ': >"$0/started"; exec "$@"' "$folder")
        is_marked=1
    fi
    command+=("$word")
done
[ -n "$is_marked" ] || { echo "mpirun.sh: no program in: $*" >&2; exit 2; }

for _ in 1 2 3; do
    "${command[@]}" <&0 &
    job=$!
    trap 'kill -TERM "$job"' TERM
    for _ in {1..3000}; do
        if [ -e "$folder/started" ] || ! kill -0 "$job" 2>/dev/null; then
            code=0
            wait "$job" || code=$?
            # A signal interrupts `wait`; the job ends by the same signal.
            while kill -0 "$job" 2>/dev/null; do wait "$job" || code=$?; done
            exit "$code"
        fi
        sleep 0.1
    done
    echo "mpirun.sh: no rank has started; mpirun is started again" >&2
    kill -KILL "$job"
    wait "$job" || true
done
exit 124
