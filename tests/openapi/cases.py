"""Runs schemathesis against a daemon of its own, with a token, in a base dir of its own.

Checks of schemathesis that stay out:

* negative_data_rejection: ``harmless.py`` makes a wrong request right (a wrong ``shell`` becomes
  null), ``null`` in a query is the absence that the document describes, and schemathesis takes an
  upload in the form of the document for wrong.
* positive_data_acceptance: most requests in the form of the document name a file or an execution
  that does not exist, and so are 404 or 409.
* missing_required_header: no route needs a header, so the check checks nothing.
* object_level_authorization: there is one token, and no object has an owner.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance.contract import LINES, strict
from tests.conformance.target import start

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "use_after_free",
    "ensure_resource_availability",
)
SEQUENCES_PER_REQUEST = 5
"""Sequences along links for each invented request to each operation."""
TOKEN = "the token of the invented requests"
HARMLESS = Path(__file__).with_name("harmless.py")
USER = 1000
"""The user of commands and files where root runs the daemon."""
LIMITS = (
    *("--timeout=2", "--code-timeout-seconds=2", "--queue-wait-seconds=5"),
    *("--processes=32", "--max-running=8", "--max-sessions=8"),
    f"--token-sha256={hashlib.sha256(TOKEN.encode()).hexdigest()}",
)
# A stream without an end is read up to the first event, which comes at once.
SETTINGS = """
hooks = "{hooks}"
request-timeout = 20.0
max-stream-events = 1
suppress-health-check = ["all"]
continue-on-failure = true

[phases.stateful.generation]
max-examples = {n_sequences}

[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501, 503, 507]
"""


@dataclass
class Outcome:
    """The end of a run."""

    text: str
    exit_code: int
    log_errors: list[str]

    @property
    def n_cases(self) -> int:
        found = re.search(r"^  (\d+) generated", self.text, re.MULTILINE)
        return int(found[1]) if found else 0

    @property
    def n_operations(self) -> int:
        found = re.search(r"^  Tested: (\d+)", self.text, re.MULTILINE)
        return int(found[1]) if found else 0

    @property
    def n_links(self) -> int:
        """How many links led from one request to the next."""
        found = re.search(r"API Links: +(\d+) covered", self.text)
        return int(found[1]) if found else 0


def run(*, per_operation: int, seed: int) -> Outcome:
    """Send the examples of the document, the bounds of each schema, up to ``per_operation``
    invented requests to each operation, and sequences of requests along the links."""
    # Not the folder of a test, which the user of the commands cannot reach.
    with tempfile.TemporaryDirectory(prefix="execd-cases-") as directory:
        return _run_in(Path(directory), per_operation, seed)


def _run_in(directory: Path, per_operation: int, seed: int) -> Outcome:
    (directory / "base").mkdir()
    flags = list(LIMITS)
    if os.geteuid() == 0:
        os.chown(directory / "base", USER, USER)
        flags.append(f"--run-as={USER}")
        directory.chmod(0o755)
    settings = directory / "schemathesis.toml"
    settings.write_text(
        SETTINGS.format(hooks=HARMLESS, n_sequences=SEQUENCES_PER_REQUEST * per_operation)
    )
    target = start(directory, *flags)
    schema = directory / "openapi.json"
    schema.write_text(json.dumps(closed(target.request("GET", "/openapi.json").json())))
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings)),
                *("run", str(schema), "--url", target.url, "--checks", ",".join(CHECKS)),
                *("--header", f"Authorization: Bearer {TOKEN}"),
                *("--max-examples", str(per_operation), "--seed", str(seed)),
            ],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Outcome(done.stdout, done.returncode, target.log_errors())
    finally:
        target.stop()


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without room for further fields in replies, so that a field outside of
    the document is found. Bodies of requests stay as they are: `POST /execute` ignores fields.

    Nor has the document the header that every request may have: a link gives the id only, and
    ensure_resource_availability looks only at requests whose parameters all come from links."""
    components = document["components"]
    operations = [one for item in document["paths"].values() for one in item.values()]
    asked = {name for one in operations for name in _references(one.get("requestBody"))}
    for name, schema in components["schemas"].items():
        if name not in asked:
            components["schemas"][name] = strict(schema)
    for operation in operations:
        operation["responses"] = strict(operation["responses"])
        for reply in operation["responses"].values():
            if LINES in reply.get("content", {}):
                lines = reply["content"][LINES]
                lines["schema"] = _any_line(lines["x-events"], components["schemas"])
        if operation["operationId"] not in ("execute", "execute_with_slash"):
            operation["parameters"] = [
                one for one in operation["parameters"] if one["name"] != "X-Request-ID"
            ]
    return document


def _any_line(events: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of a line of a stream: the fields of the event, its name and its number."""
    lines = []
    for name, event in events.items():
        fields = schemas[event["$ref"].rpartition("/")[2]] if "$ref" in event else event
        own = {"event": {"const": name}, "sequence": {"type": "integer"}}
        lines.append(
            {
                **fields,
                "properties": {**fields.get("properties", {}), **own},
                "required": [*fields.get("required", ()), *own],
            }
        )
    return {"anyOf": lines}


def _references(part: object) -> Iterator[str]:
    """Yield the names of the components that a part refers to."""
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)
