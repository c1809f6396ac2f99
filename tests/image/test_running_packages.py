"""The user's Python packages are whole without their tests, and are there once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Look

IMPORT_EVERYTHING = """
import importlib, pkgutil, sysconfig, warnings

warnings.simplefilter("ignore")
folder = sysconfig.get_path("purelib")
own = {found.name for found in pkgutil.iter_modules([folder])}
imported, failed = [], []


def walk(path, prefix=""):
    for found in pkgutil.iter_modules(path, prefix):
        if not found.ispkg and prefix:
            continue
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            # An optional package, which the image does not have.
            if error.name.partition(".")[0] in own:
                failed.append(f"{found.name}: {error}")
        except Exception as error:
            failed.append(f"{found.name}: {type(error).__name__}: {error}")
        else:
            imported.append(found.name)
            if found.ispkg:
                walk(module.__path__, found.name + ".")


walk([folder])
promised = {"numpy.testing", "scipy.stats", "sklearn.utils", "pandas._testing", "sympy.testing"}
print(promised - set(imported), failed)
"""


def test_every_package_can_be_imported_without_the_packages_tests(look: Look) -> None:
    assert look(f"python3 - <<'END'\n{IMPORT_EVERYTHING}\nEND") == "set() []"


def test_no_package_brings_its_tests(look: Look) -> None:
    folders = "$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))') /opt/execd"
    # The second name shows that the command finds folders.
    found = look(f"find {folders} -type d \\( -name tests -o -path '*/numpy/testing' \\)")
    assert [line for line in found.splitlines() if not line.endswith("/numpy/testing")] == []
    assert found.endswith("/numpy/testing")
