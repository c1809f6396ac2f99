#!/bin/sh
# The file `bootstrap.sh` that a server of OpenSandbox copies into each sandbox, and starts there with
# the entrypoint of the sandbox as arguments. Runs the daemon (EXECD) and the entrypoint side by side,
# until one of the two ends: the exit code is that of the entrypoint, or that of a daemon that ended
# first. SIGTERM goes to the entrypoint; then the daemon drains.
#
# This shell reaps orphans as PID 1, so EXECD_INIT changes nothing. A shell starts its background
# processes with SIGINT ignored, so the entrypoint gets SIGTERM only.
execd=${EXECD:-/opt/opensandbox/execd}
"$execd" --fits || exit
# The file of the SDK's `set_env`. The daemon's default is below TMPDIR.
folder=$(dirname "$execd")
if [ -z "${EXECD_ENVS-}" ] && [ -w "$folder" ]; then
    export EXECD_ENVS="$folder/.env"
fi

await() {  # PID: wait until the child has ended, whatever signals come
    while :; do
        wait "$1"
        exit_code=$?
        kill -0 "$1" 2>/dev/null || return "$exit_code"
    done
}

run_daemon() {
    trap 'kill -TERM "$daemon"' TERM
    "$execd" &
    daemon=$!
    await "$daemon"
    ended_with=$?
    kill -USR1 $$  # the process id of the script, also here in a subshell
    exit "$ended_with"
}

entrypoint='' daemon_ended=''
end_entrypoint() {
    [ -z "$entrypoint" ] || kill -TERM "$entrypoint" 2>/dev/null
}
trap end_entrypoint TERM HUP
trap 'daemon_ended=yes; end_entrypoint' USR1

exec 3<&0  # a shell gives /dev/null to its background processes
run_daemon 3<&- &
watcher=$!
"$@" <&3 3<&- &
entrypoint=$!
[ -z "$daemon_ended" ] || end_entrypoint
await "$entrypoint"
ended_with=$?
daemon_was_first=$daemon_ended
kill -TERM "$watcher" 2>/dev/null
await "$watcher"
daemon_ended_with=$?
[ -z "$daemon_was_first" ] || exit "$daemon_ended_with"
exit "$ended_with"
