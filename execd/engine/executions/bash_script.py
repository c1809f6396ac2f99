"""The script of one run in a bash session. Pure.

A session is a file of state, and each run is a bash of its own: a run can be ended, timed out and
measured like any command, and the death of a run loses nothing of the session. The script

1. reads the state that the run before has saved,
2. evaluates the command in the same shell, with standard error on standard output,
3. saves the state anew: variables with their attributes, functions, aliases, options, traps, the
   umask, the positional parameters and the working directory.

The state goes to a file of its own and never to standard output, so no output of the command can be
taken for state. ``exit`` in the command saves the state too, by the trap EXIT. A trap EXIT of the
command is kept for the session, as in a shell that lives on, and runs when the command calls
``exit``; then the run saves nothing.

Not kept: open descriptors, jobs, the stack of directories.
"""

from __future__ import annotations

import shlex

BASH_OPTIONS = ("--noprofile", "--norc", "-c")
NAME_OF_BASH = "bash"
"""The argument behind a script: how bash calls itself in messages, whatever the path of bash."""
END_MARK = b"#complete\n"
"""The last line of a whole state. A run that is killed while it saves leaves no such line."""

# "set +o" comes first, since the next lines need the usual options. Its output becomes a function,
# because the options must not hold while the state is read: with errexit a failure would end the
# shell.
#
# Variables are printed by name, without the readonly variables of bash itself: an assignment to
# BASH_VERSINFO would make bash give up on the rest of the state.
_SAVE = r"""{{
printf '__execd_options() {{\n'; set +o; printf '}}\n'
set +eunvx; set +o posix
while IFS= read -r __execd_name; do
case $__execd_name in
BASHOPTS|BASH_VERSINFO|EUID|PPID|SHELLOPTS|UID|EXECD_EXECUTION_ID|__execd_*) ;;
*) declare -p "$__execd_name" ;;
esac
done < <(compgen -v)
declare -f
printf '{{ :\n'; declare -F; printf '}} >/dev/null 2>&1\n'
printf '{{ :\n'; shopt -p; alias -p; umask -p; trap -p; printf '}} 2>/dev/null\n'
printf 'cd -- %q 2>/dev/null || {{ cd -P .; printf "%%s\\n" %q"$PWD"; }}\n' "$PWD" \
"execd: the directory of the session is gone: $PWD. This run begins in "
printf 'OLDPWD=%q\n' "${{OLDPWD-}}"
printf 'set --'; (( $# )) && printf ' %q' "$@"; printf '\n'
printf '#complete\n'
}} >| {new} 2>/dev/null"""

# The marker of the execution, by which execd finds the processes of a run, is not part of the
# state. What follows the command is parsed before the command: after an open quote in the command
# bash misreads the next line. Braces with a redirection hide the lines from a trace (set -x).
_SCRIPT = r"""exec 2>&1
trap -- {trap} EXIT
[[ -r {state} ]] && . {state}
{cd}{{
if declare -F __execd_options >/dev/null; then
{{ __execd_options; unset -f __execd_options; }} 2>/dev/null
fi
eval -- {command}
{{ __execd_status=$?; }} 2>/dev/null
{save}
{{ trap - EXIT; exit "$__execd_status"; }} 2>/dev/null
}}
"""


def session_script(command: str, state: str, new: str, cwd: str | None) -> str:
    """Return the text for bash. ``state``: the path of the state before the run, if there is a
    file; ``new``: the path of the state afterwards. ``cwd``: a directory to enter first."""
    save = _SAVE.format(new=shlex.quote(new))
    return _SCRIPT.format(
        trap=shlex.quote("{ __execd_status=$?; } 2>/dev/null\n" + save),
        state=shlex.quote(state),
        cd="" if cwd is None else f"cd -- {shlex.quote(cwd)} || exit\n",
        command=shlex.quote(command),
        save=save,
    )
