"""``sessions``, ``fork``, ``stats``, ``doctor``."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from execd_client.cli.connection import connected
from execd_client.cli.output import tell

if TYPE_CHECKING:
    from execd_client.cli.connection import Context
    from execd_client.models import CapabilitiesReply, Stats

CLOCK_SECONDS = 2.0
"""A larger difference between the clocks is reported."""


@click.command()
@click.option("--delete", "doomed", metavar="ID", multiple=True, help="End a session.")
@connected
def sessions(context: Context, doomed: tuple[str, ...]) -> None:
    """List the Python sessions, or end some."""
    for session_id in doomed:
        context.sandbox.sessions.get(session_id).delete()
    if doomed:
        return
    found = context.sandbox.sessions.list()
    if context.settings.json:
        context.print_json(found)
        return
    rows = [
        (each.id, each.state, each.generation, each.execution_count, _size(each.memory_bytes))
        for each in found
    ]
    context.print_table(["id", "state", "generation", "cells", "memory"], rows)


@click.command()
@click.option("-n", "count", type=click.IntRange(min=1), default=1, show_default=True)
@click.argument("session_id", metavar="SESSION")
@connected
def fork(context: Context, session_id: str, count: int) -> None:
    """Branch a session with its live state, and print the new ids."""
    branches = context.sandbox.sessions.get(session_id).fork(count)
    for warning in branches[0].warnings:
        tell(warning)
    if context.settings.json:
        context.print_json([branch.id for branch in branches])
        return
    for branch in branches:
        click.echo(branch.id)


@click.command()
@click.option("-w", "--watch", is_flag=True, help="Show the figures anew each second.")
@connected
def stats(context: Context, watch: bool) -> None:
    """Show executions, sessions, CPU, memory and disk."""
    if context.settings.json:
        while True:
            context.print_json(context.sandbox.stats())
            if not watch:
                return
            time.sleep(1)
    if not watch:
        context.print_table(["figure", "value"], _figures(context.sandbox.stats()))
        return
    try:
        while True:
            rows = _figures(context.sandbox.stats())
            context.console.clear()
            context.print_table(["figure", "value"], rows)
            time.sleep(1)
    except KeyboardInterrupt:
        return


def _figures(found: Stats) -> list[tuple[str, Any]]:
    memory, cpu = found.memory, found.cpu
    return [
        ("version", found.version),
        ("uptime", f"{found.uptime_seconds:.0f} s"),
        ("ready", "yes" if found.ready else "no"),
        ("running", found.executions.running),
        ("queued", found.executions.queued),
        ("ended", sum(found.executions.ended.values())),
        ("sessions", sum(found.sessions.states.values())),
        ("processes", found.warden.processes),
        ("CPU of programs", f"{cpu.trees_seconds:.1f} s" if cpu.trees_seconds is not None else ""),
        ("load", cpu.load_1m),
        ("memory of execd", _size(memory.daemon_bytes)),
        ("memory of the pod", f"{_size(memory.pod_used_bytes)} of {_size(memory.pod_size_bytes)}"),
        ("logs", f"{_size(found.disk.log_bytes)} of {_size(found.disk.log_limit_bytes)}"),
    ]


def _size(n_bytes: int | None) -> str:
    if n_bytes is None:
        return "?"
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@click.command()
@connected
def doctor(context: Context) -> int:
    """Check the connection, the protections, the limits and the clock. The exit code is 0 if
    nothing is wrong, else 1; 125: execd cannot be reached."""
    from execd_client.calls import call
    from execd_client.effects import Request

    driver, patience = context.sandbox._driver, context.sandbox._patience()
    reply = driver.run(call(Request("GET", "/"), patience))
    skew = time.time() - parsedate_to_datetime(reply.headers["date"]).timestamp()
    found, figures = context.sandbox.capabilities(), context.sandbox.stats()
    checks = [
        ("reachable", True, f"execd {figures.version}"),
        ("ready", figures.ready, "commands can run" if figures.ready else "no command can run"),
        ("clock", abs(skew) <= CLOCK_SECONDS, f"{skew:+.1f} s from this machine's clock"),
        *_protections(found),
        *_limits(found, figures),
    ]
    if context.settings.json:
        context.print_json(
            [{"check": name, "ok": is_ok, "found": text} for name, is_ok, text in checks]
        )
    else:
        rows = [("ok" if is_ok else "WRONG", name, text) for name, is_ok, text in checks]
        context.print_table(["", "check", "found"], rows)
    return 0 if all(is_ok for _, is_ok, _ in checks) else 1


def _protections(found: CapabilitiesReply) -> list[tuple[str, bool, str]]:
    held = msgspec.structs.asdict(found.protections)
    missing = sorted(name for name, holds in held.items() if holds is False)
    shape = found.namespace_shape if found.namespaces else found.namespaces_refused or "none"
    trouble = found.sessions.trouble or (found.sessions.refused and str(found.sessions.refused))
    return [
        ("namespaces", found.namespaces, str(shape)),
        ("protections", not missing, f"without {', '.join(missing)}" if missing else "all hold"),
        ("sessions", not trouble, str(trouble) if trouble else f"Python {found.sessions.python}"),
    ]


def _limits(found: CapabilitiesReply, figures: Stats) -> list[tuple[str, bool, str]]:
    memory, commands = found.pod_memory, found.commands
    size = f"{_size(memory.size_bytes)}, by {memory.source}" if memory.guarded else "not guarded"
    is_full = commands.running >= commands.max_running
    return [
        ("memory of the pod", memory.guarded, size),
        ("commands", not is_full, f"{commands.running} of {commands.max_running} run"),
        ("journal", not figures.disk.journal_failing, _size(figures.disk.journal_bytes)),
    ]


COMMANDS = [sessions, fork, stats, doctor]
