"""What the engine found on this kernel, and the protections that hold because of that: the body of
GET /v1/capabilities. Add a field here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from execd import own_tree
from execd.proc.root_capabilities import ROOT_CAPABILITIES

if TYPE_CHECKING:
    from execd.engine.assembly import Parts


def capabilities(parts: Parts) -> dict[str, Any]:
    """Return the capabilities as they are now, JSON-ready."""
    warden, started = parts.warden, parts.warden.started
    assert started is not None, "asked for after the warden's start"
    pod_memory = parts.pod_memory
    has_namespaces = started.shape != "none"
    uid = parts.identity.uid
    is_separate_user = uid not in (None, os.geteuid())
    root_capabilities = [] if is_separate_user else warden.root_capabilities
    has_walls = has_namespaces and ROOT_CAPABILITIES.issuperset(root_capabilities)
    return {
        "instance": {"id": parts.restores.instance_id, "restores": parts.restores.count},
        "namespaces": has_namespaces,
        "namespace_shape": started.shape,
        "namespaces_refused": started.refusal,
        "uid": os.geteuid(),
        "run_as_uid": uid,
        "root_capabilities": root_capabilities,
        "warden_restarts": warden.restarts,
        "warden_missed_pings": warden.missed_pings,
        "environment": {
            "image_env": parts.config.image_env == "on",
            "passed": list(parts.environment.passed),
        },
        "sessions": parts.sessions.facts(),
        "pod_memory": {
            "guarded": pod_memory.is_guarded,
            "source": pod_memory.source,
            "size_bytes": pod_memory.size_bytes or None,
            "reserve_bytes": pod_memory.reserve_bytes or None,
        },
        "disk": {
            "base_dir": _volume_facts(parts, "base_dir_bytes"),
            "tmp_dir": _volume_facts(parts, "tmp_dir_bytes"),
        },
        "commands": {"shell": not parts.default_shell.is_missing, **parts.starts.facts()},
        "protections": {
            "daemon_invisible": has_walls,
            "daemon_unkillable": has_walls or is_separate_user,
            "daemon_environment_unreadable": has_walls or is_separate_user,
            "state_dir_unreadable": has_walls or is_separate_user,
            "nothing_survives_the_warden": has_namespaces,
            **_tree_facts(parts, is_mounted=has_walls),
        },
    }


def _tree_facts(parts: Parts, *, is_mounted: bool) -> dict[str, bool]:
    """``is_mounted``: the tree is a mount point in the view of user code, which cannot remount."""
    if (tree := own_tree.root()) is None:
        return {}
    uid = os.geteuid() if parts.identity.uid is None else parts.identity.uid
    return {"tree_unchangeable": is_mounted or not own_tree.is_in_reach(tree, uid)}


def _volume_facts(parts: Parts, setting: str) -> dict[str, Any]:
    for volume in parts.volumes:
        if volume.setting == setting:
            return {"guarded": True, **volume.facts()}
    return {"guarded": False, "limit_bytes": None, "reserve_bytes": None, "used_bytes": None}
