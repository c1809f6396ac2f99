# Sourced by .ci/run, .ci/test-gvisor and .ci/test-image: makes a work folder, starts a daemon, runs
# suites against the daemon, and cleans up. Source this file in the repository's root, under
# `set -euo pipefail`.

# In /var/tmp, because uid 1000 must reach the work folder, and the sandbox has an empty /tmp of its
# own.
work=$(mktemp -d /var/tmp/execd-ci.XXXXXX)
chmod 755 "$work"
# What .ci/suite leaves for .ci/verdict.
export EXECD_CI_RECORDS=${EXECD_CI_RECORDS:-$work/records}
mkdir -p "$EXECD_CI_RECORDS"
# More examples of the properties than a developer runs.
export EXECD_TEST_PROFILE=ci

# As in the Makefile: a run starts thousands of interpreters.
unset PYTHONDONTWRITEBYTECODE

suites_failed=0

daemon_pid=
daemon_log=$work/daemon.log

begin_daemon() {  # COMMAND...: runs in the background, with the output in $daemon_log
    "$@" >"$daemon_log" 2>&1 &
    daemon_pid=$!
}

# A script that sources this file may redefine these two functions: kill its daemon, and clean up
# more than the work folder.
kill_daemon() {  # PID
    kill -KILL "$1"
}
clean_up_more() {
    :
}

# SIGTERM must end the daemon within 30 s with exit code 143, because a pod's end sends SIGTERM.
end_daemon() {
    local pid=$daemon_pid exit_code=0
    daemon_pid=
    kill -TERM "$pid"
    timeout 30 tail --pid="$pid" -f /dev/null || kill_daemon "$pid"
    wait "$pid" || exit_code=$?
    if ((exit_code != 143)); then
        show_log "the daemon answered SIGTERM with exit code $exit_code"
        return 1
    fi
}

show_log() {  # WHY
    printf '\n---- %s; its log, requests left out, and the last of these:\n' "$1" >&2
    grep -v '"message":"request"' "$daemon_log" | tail -n 200 >&2 || true
    grep '"message":"request"' "$daemon_log" | tail -n 20 >&2 || true
    printf '%s\n' '----' >&2
}

clean_up() {  # [EXIT-CODE]
    local exit_code=${1:-$?}
    trap - EXIT
    ((exit_code)) || exit_code=$suites_failed
    if [[ $daemon_pid ]]; then
        ((exit_code)) && show_log "failed while a daemon was running"
        kill -TERM "$daemon_pid" 2>/dev/null || true
        timeout 30 tail --pid="$daemon_pid" -f /dev/null || kill_daemon "$daemon_pid" || true
    fi
    clean_up_more
    rm -rf "$work"
    exit "$exit_code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

face() {  # PORT STATE-DIR SECRET: the address and the facts of the daemon for the next suites
    export EXECD_URL=http://127.0.0.1:$1 EXECD_STATE_DIR=$2 EXECD_CONFORMANCE_SECRET=$3
    export EXECD_LOG=$daemon_log
    export EXECD_CONFORMANCE_NAMESPACES=1
}

# NAME AGAIN [RUNS] -- COMMAND...: as .ci/suite. A suite that fails does not keep the next suites from
# running; in the end the script fails.
judged() {
    .ci/suite "$@" || suites_failed=1
}

# NAME PYTEST-ARGUMENT...: run pytest, from this machine, against the daemon that `face` has named.
suite() {
    local name=$1
    shift
    judged "$name" ".venv/bin/python -m pytest" -- .venv/bin/python -m pytest "$@"
}

# FUNCTION...: call the functions at the same time, each in a process of its own, and print their
# output one after the other. A function that fails makes the script fail in the end, and .ci/run
# repeats the end of the function's output: lint and docs leave no record for .ci/verdict.
side_by_side() {
    local name word since=$SECONDS
    local -A pids=()
    for name; do
        (trap - EXIT; suites_failed=0; "$name"; exit "$suites_failed") >"$work/$name.log" 2>&1 &
        pids[$name]=$!
    done
    for name; do
        word=
        wait "${pids[$name]}" || {
            suites_failed=1
            word=": FAILED"
            tail -n 20 "$work/$name.log" >"$EXECD_CI_RECORDS/$name.failed"
        }
        cat "$work/$name.log"
        printf -- '-- %s: %d s%s\n' "$name" $((SECONDS - since)) "$word"
    done
}

free_port() {
    python3 tests/free_port.py
}
