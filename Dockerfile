# execd as the container of a sandbox pod. `image/build` builds the image with podman.
#
#   BASE_IMAGE      any Debian-like image with python3 and pip
#                   (image/make-base makes a base image without a registry)
#   TREE_IMAGE      execd itself: `make tree-image`
#   USER_PACKAGES   full: IPython, numpy, pandas, matplotlib, scikit-learn, sympy
#                   lean: IPython alone, which sessions need
#   DEBIAN_PACKAGES programs for the user (`image/build --coding`: git, ripgrep and more)
#   EXECD_VERSION   for the label; `image/build` takes the version from execd/__init__.py
#   EXECD_REVISION  for the label; `image/build` takes the commit of the tree
#   PINS_SHA256     a digest of the folder image/ (`image/build`), where the cache needs one
#   PIP_CONFIG_FILE pip's settings during the build, where the registry needs settings
#
# Two Pythons. The user's is the base image's: agents import its packages, and commands run it as
# `python`. execd's is in the tree (image/tree), which brings its own libraries: so neither can break,
# shadow or see the packages of the other, and an upgrade of the base image changes nothing in execd.
ARG BASE_IMAGE=python:3.13-slim
ARG TREE_IMAGE=localhost/execd-tree

FROM ${TREE_IMAGE} AS tree

FROM ${BASE_IMAGE}
ARG USER_PACKAGES=full
ARG PIP_CONFIG_FILE=
ENV PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
# podman 4 takes the next step from the cache even if the files of the mount have changed, but not if
# this value has.
ARG PINS_SHA256=
RUN --mount=type=bind,source=image,target=/opt/requirements \
    case "${USER_PACKAGES}" in \
        full) pins=requirements.txt ;; \
        lean) pins=requirements-lean.txt ;; \
        *) echo "USER_PACKAGES is '${USER_PACKAGES}': use full or lean" >&2; exit 1 ;; \
    esac \
 && export PIP_NO_CACHE_DIR=1 \
 && folder() { python3 -c "import sysconfig; print(sysconfig.get_path('$1'))"; } \
 && python3 -m pip install --no-compile \
        --require-hashes --only-binary :all: -r "/opt/requirements/${pins}" \
 # A fifth of the packages' bytes are their own tests. No module outside the tests imports them
 # (tests/image/test_running_packages.py); a folder `test` or `testing` is often part of an API.
 && find "$(folder purelib)" -type d -name tests -prune -exec rm -r {} + \
 # The root file system may be read-only, so bytecode that is missing now is missing for ever.
 # python:slim ships the standard library without bytecode; the standard library's tests hold files
 # that cannot be compiled.
 && python3 -m compileall -q -j 0 -x '/(tests?|idlelib|turtledemo|lib2to3)/' \
        "$(folder stdlib)" "$(folder purelib)" \
 # Callers use `python` and `python3` for the same interpreter.
 && { command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python; } \
 # A name for uid 1000: without one, whoami, git, ssh and getpass fail.
 && { getent passwd 1000 >/dev/null || echo 'sandbox:x:1000:1000::/app:/bin/sh' >>/etc/passwd; } \
 && { getent group 1000 >/dev/null || echo 'sandbox:x:1000:' >>/etc/group; } \
 # Login shells set PATH anew: let them find what pip has installed for the user.
 && echo 'PATH="$HOME/.local/bin:$PATH"' >/etc/profile.d/execd.sh \
 && install -d -o 1000 -g 1000 /app \
 && install -d -o 1000 -g 1000 -m 0700 /var/lib/execd
# Empty by default: podman warns about an argument without a value.
ARG DEBIAN_PACKAGES=
RUN if [ -n "${DEBIAN_PACKAGES}" ]; then \
        apt-get update \
     && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${DEBIAN_PACKAGES} \
     && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; \
    fi \
 # No program may act as another user. In a pod with no_new_privs none can, but the image must not
 # rely on the pod.
 && find / -xdev -perm /6000 -exec chmod ug-s {} +
COPY --from=tree /lib /opt/execd/lib
COPY --from=tree /share /opt/execd/share
COPY --from=tree /app /opt/execd/app
COPY --from=tree /bin /opt/execd/bin
COPY --from=tree /sha256sums /opt/execd/
# A server of OpenSandbox copies two files out of the image into sandboxes of any image: on Docker
# from the root folder, on Kubernetes from the working directory.
COPY --from=tree /execd /
COPY image/opensandbox/bootstrap.sh /

# Heartbeat: the Go router of agent-sandbox gives up after 30 s without response headers. Image
# environment off: this image's variables are settings of execd, and a command needs none of them.
ENV SANDBOX_BASE_DIR=/app \
    EXECD_IMAGE_ENV=off \
    EXECD_STATE_DIR=/var/lib/execd \
    EXECD_HOST=0.0.0.0 \
    EXECD_EXECUTE_HEARTBEAT_SECONDS=10
WORKDIR /
USER 1000
EXPOSE 8888
# No shell in between: execd is PID 1 and gets SIGTERM. Arguments of the container are flags of
# `execd serve`.
ENTRYPOINT ["/opt/execd/bin/execd", "serve"]

# The labels come last, so another version or commit leaves the layers above in the cache. No label
# names a source or a vendor: whoever publishes the image adds these.
ARG BASE_IMAGE
ARG EXECD_VERSION=
ARG EXECD_REVISION=
LABEL org.opencontainers.image.title="execd" \
      org.opencontainers.image.description="Runs commands, Python sessions and files in a sandbox" \
      org.opencontainers.image.version="${EXECD_VERSION}" \
      org.opencontainers.image.revision="${EXECD_REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
