"""Verification of a sha-256 digest sent by the caller."""

from __future__ import annotations

from execd.errors import InvalidArgument


class DigestCheck:
    """Hash the bytes of a request as they arrive, and compare at the end."""

    def __init__(self, sha256: bytes) -> None:
        import hashlib  # see lean_imports

        self._wanted = sha256
        self._seen = hashlib.sha256()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._seen.update(data)

    def check(self, subject: str) -> None:
        """Compare the digests. Raises InvalidArgument."""
        if self._seen.digest() != self._wanted:
            raise InvalidArgument(
                f"{subject}: what arrived has another sha-256 than the request says",
                sha256=self._seen.hexdigest(),
            )
