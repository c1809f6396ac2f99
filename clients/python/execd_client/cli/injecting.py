"""``inject``: execd into the pods of a manifest."""

from __future__ import annotations

import sys
from typing import Any

import click

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
@click.option(
    "--execd-image", required=True, metavar="IMAGE", help="The image of `make tree-image`."
)
@click.option("--container", metavar="NAME", help="The container to serve in; default: the first.")
@click.option("--image-volume", is_flag=True, help="Mount the image; no init container.")
def inject(execd_image: str, container: str | None, image_volume: bool) -> None:
    """Add execd to the pods of the YAML on stdin, and print the YAML.

    Objects without a pod stay as they are; comments are lost.
    """
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
