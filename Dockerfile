# execd as the container of a sandbox pod. `image/build` builds the image with podman;
# `docker build .` works as well.
#
#   BASE_IMAGE      any Debian-like image with python3 and pip
#                   (image/make-base makes a base image without a registry)
#   USER_PACKAGES   full: IPython, numpy, pandas, matplotlib, scikit-learn, sympy
#                   lean: IPython alone, which sessions need
#   PIP_CONFIG_FILE pip's settings during the build, where the registry needs settings
#
# Two Python environments share one interpreter. The user's environment is the base image's Python:
# agents import its packages, and commands run it as `python`. execd lives in a separate venv. So
# neither environment can break, shadow or see the packages of the other.
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS builder
ARG PIP_CONFIG_FILE
ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /build
COPY image/requirements-build.txt image/requirements-execd.txt ./image/
# Both venvs are without pip: the base image's pip installs into both.
RUN python3 -m venv --without-pip /build/venv && python3 -m venv --without-pip /opt/execd \
 && python3 -m pip --python /build/venv install \
        --require-hashes --only-binary :all: -r image/requirements-build.txt \
 && python3 -m pip --python /opt/execd install --no-compile \
        --require-hashes --only-binary :all: -r image/requirements-execd.txt
COPY pyproject.toml README.md ./
COPY execd ./execd
RUN python3 -m pip --python /build/venv wheel \
        --no-deps --no-index --no-build-isolation --wheel-dir /build/wheels . \
 && python3 -m pip --python /opt/execd install \
        --no-compile --no-deps --no-index /build/wheels/execd-*.whl \
 # The root file system may be read-only, so every start would compile the modules that are not
 # compiled now. "unchecked": the copy into the next stage may change the times that a checked .pyc
 # records.
 && python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/execd/lib

FROM ${BASE_IMAGE}
ARG USER_PACKAGES=full
ARG PIP_CONFIG_FILE
ENV PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
RUN --mount=type=bind,source=image,target=/opt/requirements \
    case "${USER_PACKAGES}" in \
        full) pins=requirements.txt ;; \
        lean) pins=requirements-lean.txt ;; \
        *) echo "USER_PACKAGES is '${USER_PACKAGES}': use full or lean" >&2; exit 1 ;; \
    esac \
 && python3 -m pip install --no-cache-dir \
        --require-hashes --only-binary :all: -r "/opt/requirements/${pins}" \
 # python:slim ships the standard library without bytecode. The standard library's tests hold files
 # that cannot be compiled.
 && python3 -m compileall -q -x '/(tests?|idlelib|turtledemo|lib2to3)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 # Callers use `python` and `python3` for the same interpreter.
 && { command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python; } \
 # A name for uid 1000: without one, whoami, git, ssh and getpass fail.
 && { getent passwd 1000 >/dev/null || echo 'sandbox:x:1000:1000::/app:/bin/sh' >>/etc/passwd; } \
 && { getent group 1000 >/dev/null || echo 'sandbox:x:1000:' >>/etc/group; } \
 && install -d -o 1000 -g 1000 /app \
 && install -d -o 1000 -g 1000 -m 0700 /var/lib/execd
COPY --from=builder /opt/execd /opt/execd

ENV SANDBOX_BASE_DIR=/app \
    EXECD_STATE_DIR=/var/lib/execd \
    EXECD_HOST=0.0.0.0
WORKDIR /app
USER 1000
EXPOSE 8888
# No shell in between: execd is PID 1 and gets SIGTERM. -I: the working directory belongs to user
# code and must not be on the import path when the daemon restarts there. Arguments of the container
# are flags of `execd serve`.
ENTRYPOINT ["/opt/execd/bin/python3", "-I", "-m", "execd", "serve"]
