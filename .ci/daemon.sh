# Sourced by .ci/run, .ci/test-gvisor and .ci/test-image: a work folder, a daemon to test, suites to run against it, and
# the end of all of these. Expects to be sourced in the repository's root, under `set -euo pipefail`.

# /var/tmp: uid 1000 must reach it, and /tmp is an empty one inside the sandbox.
work=$(mktemp -d /var/tmp/execd-ci.XXXXXX)
chmod 755 "$work"
# One line a suite, "passed failed skipped"; .ci/run adds them up.
export EXECD_CI_COUNTS=${EXECD_CI_COUNTS:-$work/counts}

daemon_pid=
daemon_log=$work/daemon.log

begin_daemon() {  # COMMAND...: in the background, its output in $daemon_log
    "$@" >"$daemon_log" 2>&1 &
    daemon_pid=$!
}

# What a script that sources this one may say in its own words: how to kill its daemon, and what else to clean up.
kill_daemon() {  # PID
    kill -KILL "$1"
}
clean_up_more() {
    :
}

end_daemon() {  # SIGTERM must end it in time, with exit code 0: that is what a pod's end looks like
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

# What no suite can do to a daemon elsewhere: see its process. The native run does.
excused="pid is not known|EXECD_CONFORMANCE_LARGE|a cgroup is made around a native one"

face() {  # PORT STATE-DIR SECRET: which daemon the suites that follow are for, and what is known of it
    export EXECD_URL=http://127.0.0.1:$1 EXECD_STATE_DIR=$2 EXECD_CONFORMANCE_SECRET=$3
    export EXECD_CONFORMANCE_NAMESPACES=1
    export EXECD_CONFORMANCE_SLACK_SECONDS=${EXECD_CONFORMANCE_SLACK_SECONDS:-3}
}

suite() {  # NAME SKIPS PYTEST-ARGUMENT...: run pytest and count; SKIPS is a pattern of the reasons that excuse a skip
    local name=$1 skips=$2 report exit_code=0
    shift 2
    report=$(mktemp "$work/report.XXXXXX")
    if ! .venv/bin/python -m pytest --junitxml="$report" "$@"; then
        echo "-- once more, what failed"
        .venv/bin/python -m pytest --last-failed --last-failed-no-failures=none --junitxml="$report-again" "$@" || exit_code=$?
        .ci/count "$name" "$skips" "$report" "$report-again" || exit_code=1
        return "$exit_code"
    fi
    .ci/count "$name" "$skips" "$report"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
