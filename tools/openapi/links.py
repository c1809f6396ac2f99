"""Links of the OpenAPI document: which requests go on from a reply. Pure."""

from __future__ import annotations

from typing import Any

IDENTIFIED = {"ExecutionReply": "/v1/executions/{id}", "SessionReply": "/v1/sessions/{id}"}
"""The schemas of replies with an ``id``, and the path of the resource."""
SCHEMAS = "#/components/schemas/"


def add_links(document: dict[str, Any]) -> None:
    """Add links from each reply with an execution or a session to all routes that take the id."""
    paths = document["paths"]
    links = document["components"]["links"] = {
        operation["operationId"]: {
            "operationId": operation["operationId"],
            "parameters": {"id": "$response.body#/id"},
        }
        for path, item in paths.items()
        for operation in item.values()
        if path.startswith(tuple(IDENTIFIED.values()))
    }
    for item in paths.values():
        for operation in item.values():
            for reply in operation["responses"].values():
                resource = _resource(reply)
                if resource is not None:
                    reply["links"] = {
                        name: {"$ref": f"#/components/links/{name}"}
                        for name in links
                        if _path_of(paths, name).startswith(resource)
                    }


def _resource(reply: dict[str, Any]) -> str | None:
    """Return the path of the resource that a reply has, if it has one."""
    schema = reply.get("content", {}).get("application/json", {}).get("schema", {})
    return IDENTIFIED.get(schema.get("$ref", "").removeprefix(SCHEMAS))


def _path_of(paths: dict[str, Any], name: str) -> str:
    return next(
        path
        for path, item in paths.items()
        for operation in item.values()
        if operation["operationId"] == name
    )
