# Sourced by .ci/run, .ci/test-gvisor and .ci/test-image: makes a work folder, starts a daemon, runs
# suites against the daemon, and cleans up. Source this file in the repository's root, under
# `set -euo pipefail`.

# In /var/tmp, because uid 1000 must reach the work folder, and the sandbox has an empty /tmp of its
# own.
work=$(mktemp -d /var/tmp/execd-ci.XXXXXX)
chmod 755 "$work"
# One line per suite, "passed failed skipped"; .ci/run adds them up.
export EXECD_CI_COUNTS=${EXECD_CI_COUNTS:-$work/counts}

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

# SIGTERM must end the daemon within 30 s with exit code 0, because a pod's end sends SIGTERM.
end_daemon() {
    local pid=$daemon_pid exit_code=0
    daemon_pid=
    kill -TERM "$pid"
    timeout 30 tail --pid="$pid" -f /dev/null || kill_daemon "$pid"
    wait "$pid" || exit_code=$?
    if ((exit_code)); then
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

# The reasons that excuse a skip: no suite can see the process of a daemon in a sandbox. The native
# run can, and runs these tests.
excused="pid is not known|EXECD_CONFORMANCE_LARGE|a cgroup is made around a native one"

face() {  # PORT STATE-DIR SECRET: the address and the facts of the daemon for the next suites
    export EXECD_URL=http://127.0.0.1:$1 EXECD_STATE_DIR=$2 EXECD_CONFORMANCE_SECRET=$3
    export EXECD_CONFORMANCE_NAMESPACES=1
    export EXECD_CONFORMANCE_SLACK_SECONDS=${EXECD_CONFORMANCE_SLACK_SECONDS:-3}
}

# NAME SKIPS PYTEST-ARGUMENT...: run pytest and count. SKIPS: a pattern of the reasons that excuse a
# skip.
suite() {
    local name=$1 skips=$2 report exit_code=0
    shift 2
    report=$(mktemp "$work/report.XXXXXX")
    if ! .venv/bin/python -m pytest --junitxml="$report" "$@"; then
        echo "-- once more, what failed"
        .venv/bin/python -m pytest --last-failed --last-failed-no-failures=none \
            --junitxml="$report-again" "$@" || exit_code=$?
        .ci/count "$name" "$skips" "$report" "$report-again" || exit_code=1
        return "$exit_code"
    fi
    .ci/count "$name" "$skips" "$report"
}

free_port() {
    python3 -c \
        'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
