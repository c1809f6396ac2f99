"""``inject``: execd into the pods of a manifest, or into a container that runs."""

from __future__ import annotations

import sys
from typing import Any

import click

from execd_client.cli.into_container import ENGINES, InjectionError, inject_into_container
from execd_client.kubernetes import PORT
from execd_client.kubernetes import inject as inject_into

OF_TEMPLATE = ("spec", "template", "spec")
POD_SPECS = {
    "Pod": ("spec",),
    "Sandbox": ("spec", "podTemplate", "spec"),
    "SandboxTemplate": ("spec", "podTemplate", "spec"),
    "CronJob": ("spec", "jobTemplate", *OF_TEMPLATE),
    **dict.fromkeys(("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"), OF_TEMPLATE),
}
"""Where an object of a kind has its pod spec."""


@click.command()
@click.option("--execd-image", metavar="IMAGE", help="For pods: the image of `make tree-image`.")
@click.option("--container", metavar="NAME", help="The container to serve in; default: the first.")
@click.option("--image-volume", is_flag=True, help="Mount the image; no init container.")
@click.option("--podman", metavar="NAME", help="A running container of podman, in place of pods.")
@click.option("--docker", metavar="NAME", help="A running container of Docker.")
@click.option(
    "--execd-file",
    type=click.Path(exists=True, dir_okay=False),
    help="For --podman and --docker: the single file of `make tree`.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.argument("flags", nargs=-1)
def inject(
    execd_image: str | None,
    container: str | None,
    image_volume: bool,
    podman: str | None,
    docker: str | None,
    execd_file: str | None,
    port: int,
    flags: tuple[str, ...],
) -> None:
    """Add execd to the pods of the YAML on stdin, and print the YAML.

    Objects without a pod stay as they are; comments are lost.

    With --podman or --docker: copy execd into the running container, start execd there beside the
    container's program, and print the URL. FLAGS behind -- are those of `execd serve`.
    """
    named = {engine: name for engine, name in zip(ENGINES, (podman, docker), strict=True) if name}
    needed = ("--execd-file", execd_file) if named else ("--execd-image", execd_image)
    if not needed[1]:
        raise click.UsageError(f"{needed[0]} is missing")
    if len(named) > 1:
        raise click.UsageError("--podman and --docker: name one container")
    if named and (execd_image or container or image_volume):
        raise click.UsageError("--execd-image, --container and --image-volume are for pods")
    if flags and not named:
        raise click.UsageError("flags of execd are for --podman and --docker")
    if any(flag.partition("=")[0] == "--port" for flag in flags):
        raise click.UsageError("--port: say it before the --, since execctl has to know the port")
    if named:
        [(engine, name)] = named.items()
        assert execd_file
        _into_container(engine, name, execd_file, port, flags)
    else:
        assert execd_image
        _into_pods(execd_image, container, image_volume=image_volume, port=port)


def _into_container(
    engine: str, name: str, execd_file: str, port: int, flags: tuple[str, ...]
) -> None:
    try:
        url = inject_into_container(engine, name, execd_file, port, flags)
    except InjectionError as error:
        raise click.ClickException(str(error)) from None
    if url:
        click.echo(url)
    else:
        click.echo(
            f"execd listens on port {port} in {name}, and this machine has no way there: start "
            f"the container with --publish {port}, or ask from its network",
            err=True,
        )


def _into_pods(execd_image: str, container: str | None, *, image_volume: bool, port: int) -> None:
    import yaml  # type: ignore[import-untyped]  # for this command alone

    try:
        documents = [*yaml.safe_load_all(sys.stdin)]
    except yaml.YAMLError as error:
        raise click.ClickException(f"stdin: not YAML: {error}") from None
    has_pod = False
    for document in documents:
        *way, last = POD_SPECS.get(document.get("kind"), ("",)) if document else ("",)
        parent: Any = document
        for name in way:
            parent = parent.get(name) or {}
        if not last or not parent.get(last):
            continue
        has_pod = True
        try:
            parent[last] = inject_into(
                parent[last],
                execd_image=execd_image,
                container=container,
                image_volume=image_volume,
                port=port,
            )
        except ValueError as error:
            raise click.ClickException(f"{document['kind']}: {error}") from None
    if not has_pod:
        kinds = ", ".join(sorted(POD_SPECS))
        raise click.ClickException(
            f"stdin: no object with a pod spec; kinds that have one: {kinds}"
        )
    click.echo(yaml.safe_dump_all(documents, sort_keys=False), nl=False)


COMMANDS = (inject,)
