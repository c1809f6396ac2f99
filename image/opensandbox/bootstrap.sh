#!/bin/sh
# The file `bootstrap.sh` that a server of OpenSandbox copies into each sandbox, and starts there with
# the entrypoint of the sandbox as arguments. Becomes the daemon (EXECD), which runs the entrypoint
# inside its walls: the exit code is the entrypoint's, signals go to the entrypoint, and orphans are
# reaped, so EXECD_INIT changes nothing. Needs any sh, and no other program of the image.
#
# The file EXECD beside this one is the single file of `make tree`, for any image. An image that has the
# tree, as execd's own, runs that daemon: nothing is unpacked.
execd=${EXECD:-/opt/opensandbox/execd}
folder=${execd%/*}
# The file of the SDK's `set_env`. The daemon's default is below TMPDIR.
if [ -z "${EXECD_ENVS-}" ] && [ -w "$folder" ]; then
    export EXECD_ENVS="$folder/.env"
fi
# OpenSandbox's own variables, which are no settings of this daemon.
unset EXECD EXECD_INIT
# HOME is the runtime's, and often not writable: commands get that of passwd, or the base dir.
unset HOME
# As from OpenSandbox's own execd, commands get all other variables of the container. execd's image
# sets "off", so no default would do.
export EXECD_IMAGE_ENV=on
export EXECD_PASS_ENV="${EXECD_PASS_ENV-*}"
export EXECD_HOST="${EXECD_HOST:-0.0.0.0}"
export EXECD_OPENSANDBOX_PORT="${EXECD_OPENSANDBOX_PORT:-44772}"
[ ! -x /opt/execd/bin/execd ] || execd=/opt/execd/bin/execd
exec "$execd" serve ${1+-- "$@"}
