"""A real warden, as the tests of ``proc`` have."""

from tests.proc.conftest import client as client
from tests.proc.conftest import wardens as wardens
