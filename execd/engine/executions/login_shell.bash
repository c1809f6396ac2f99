# A login bash reads this file after the profile, which has set PATH anew (``environment``): puts the
# directories of the command in front again, and leaves no trace in the programs of the shell.
if shopt -q login_shell; then
    PATH=$EXECD_LOGIN_PATH:$PATH
    unset BASH_ENV PROMPT_COMMAND EXECD_LOGIN_PATH
fi
