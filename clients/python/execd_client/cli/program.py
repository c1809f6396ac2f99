"""The commands of ``execctl``."""

from __future__ import annotations

import os
from typing import Any

import click

from execd_client.cli import copying, injecting, looking, python, resetting, running, serving
from execd_client.cli.connection import Settings, with_options
from execd_client.version import __version__

COMPLETION = """\b
Completion of the shell, for bash (zsh and fish alike):
    eval "$(_EXECCTL_COMPLETE=bash_source execctl)"
"""


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=COMPLETION,
)
@click.version_option(__version__, prog_name="execctl")
@with_options
@click.pass_context
def execctl(context: click.Context, /, **options: Any) -> None:
    """Run commands and Python in a sandbox, and move files. The exit code is that of the program;
    125: execd cannot be reached, or refuses."""
    from_environment = Settings(os.environ.get("EXECD_URL"), os.environ.get("EXECD_TOKEN"))
    context.obj = Settings(**options).over(from_environment)


for module in (running, python, copying, looking, resetting, serving, injecting):
    for command in module.COMMANDS:
        execctl.add_command(command)
