"""Data work in a session: a plot, a table, a formula, an installed package.

The suite's own interpreter has the packages, so natively the suite starts a daemon whose sessions
run in the suite's interpreter. A daemon elsewhere may lack packages. EXECD_CONFORMANCE_PACKAGES
names required packages; the lack of a required package is a failure.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from .sessions import Session
from .target import READ_SECONDS, elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUIRED = set(os.environ.get("EXECD_CONFORMANCE_PACKAGES", "").split())
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    target = elsewhere() or request.getfixturevalue("own_daemon")("--python", sys.executable)
    with httpx.Client(
        base_url=target.url, timeout=READ_SECONDS, trust_env=False, verify=False
    ) as client:
        made = Session(client, client.post("/v1/sessions", json={}).json()["id"])
        yield made
        assert client.delete(made.path).status_code == 204


def need(session: Session, *packages: str) -> None:
    """Go on only if the sessions' interpreter has the packages. Natively the lack is a failure."""
    found = session.value(
        "import importlib.util\n"
        f"' '.join(p for p in {packages!r} if importlib.util.find_spec(p) is None)"
    )
    missing = set(found.strip("'").split())
    assert elsewhere() or not missing, missing
    assert not missing & REQUIRED, missing
    if missing:
        pytest.skip(f"the sessions' interpreter has no {' and no '.join(sorted(missing))}")


def result_of(session: Session, code: str) -> dict[str, Any]:
    done = session.run(code)
    assert done["status"] == "success", done
    return done["result"]["data"]


@pytest.mark.third_party
def test_plot_comes_as_a_picture_without_a_line_of_code_for_it(session: Session) -> None:
    need(session, "matplotlib")
    done = session.run(
        "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('squares');"
    )
    assert done["status"] == "success", done
    [shown] = done["displays"]
    assert base64.b64decode(shown["data"]["image/png"]).startswith(PNG)
    assert done["result"] is None
    assert session.run("1")["displays"] == []
    figure = result_of(
        session, "figure, axes = plt.subplots()\naxes.bar(['a', 'b'], [1, 2])\nplt.close()\nfigure"
    )
    assert base64.b64decode(figure["image/png"]).startswith(PNG)


@pytest.mark.third_party
def test_table_comes_as_html(session: Session) -> None:
    need(session, "pandas")
    shown = result_of(
        session,
        "import pandas as pd\n"
        "pd.DataFrame({'city': ['Bonn', 'Kiel'], 'n': [1, 2]}).sort_values('n')",
    )
    assert "<table" in shown["text/html"]
    assert "Kiel" in shown["text/html"]
    assert "Kiel" in shown["text/plain"]


@pytest.mark.third_party
def test_formula_comes_as_latex(session: Session) -> None:
    need(session, "sympy")
    shown = result_of(
        session, "import sympy\nx = sympy.Symbol('x')\nsympy.integrate(sympy.sqrt(x), x)"
    )
    assert "\\frac{2 x^{\\frac{3}{2}}}{3}" in shown["text/latex"]


def test_package_that_a_cell_installs_is_imported_by_the_next(session: Session) -> None:
    """Install from a file: the test covers the magic and the import after the magic, not a
    registry."""
    need(session, "pip")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        wheel.writestr("execd_tested.py", "answer = 42")
        wheel.writestr(
            "execd_tested-1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: execd-tested\nVersion: 1\n",
        )
        wheel.writestr(
            "execd_tested-1.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("execd_tested-1.dist-info/RECORD", "execd_tested.py,,\n")
    name = "execd_tested-1-py3-none-any.whl"
    folder = session.value(
        "import os, sys, tempfile\nos.chdir(tempfile.mkdtemp(dir='.'))\nos.getcwd()"
    ).strip("'")
    try:
        stored = session.client.put(
            "/v1/fs/file", params={"path": f"{folder}/{name}"}, content=packed.getvalue()
        )
        assert stored.status_code in (200, 201, 204), stored.text
        session.run("sys.path.insert(0, os.path.abspath('packages'))")
        assert session.run("import execd_tested")["error"]["name"] == "ModuleNotFoundError"
        done = session.run(f"%pip install --quiet --no-index --no-deps --target packages {name}")
        assert done["status"] == "success", done
        assert session.value("import execd_tested\nexecd_tested.answer") == "42", done
        assert session.value("%pip --version\n6 * 7") == "42"
    finally:
        session.run("import shutil; os.chdir('..'); shutil.rmtree(" + repr(folder) + ")")


def test_top_level_await_and_shell_lines_work_side_by_side(session: Session) -> None:
    done = session.run(
        "import asyncio\n"
        "await asyncio.sleep(0)\n"
        "lines = !echo hi\n"
        "!echo there\n"
        "await asyncio.sleep(0, lines[0])"
    )
    assert (done["status"], done["stdout"]) == ("success", "there\n"), done
    assert done["result"]["data"] == {"text/plain": "'hi'"}
