"""Files while another process swaps directories for links to outside, as fast as it can: nothing
outside is read or written."""

from __future__ import annotations

import http.client
import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from .conftest import python
from .target import READ_SECONDS, elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Run
    from .target import Target

# Each operation takes gVisor ten times as long. CI has 4,000 natively, a developer's run 1,000.
OPERATIONS = 2_000 if elsewhere() else settings().max_examples * 40
CONNECTIONS = 4

# Two levels are swapped independently: a directory becomes a link to outside, a link to a link,
# and a directory again.
SWAP = """
import os
os.chdir({folder!r})
while True:
    for name in 'd', 'e/d':
        try:
            os.makedirs(name, exist_ok=True)
            with open(name + '/file', 'w') as f: f.write('inside')
            os.rename(name, 'aside-' + name.replace('/', '-'))
            os.symlink({outside!r}, name)
            os.unlink(name)
            os.symlink('../' * name.count('/') + 'to-outside', name)
            os.unlink(name)
            os.rename('aside-' + name.replace('/', '-'), name)
        except OSError:
            import shutil; shutil.rmtree('aside-' + name.replace('/', '-'), ignore_errors=True)
            try: os.unlink(name)
            except OSError: pass
"""


@pytest.fixture
def outside(run: Run, folder: str) -> Iterator[str]:
    """A directory outside the base dir, where the daemon may write; the content must stay unseen
    and unchanged."""
    # in a pod without a /tmp nothing else outside the base dir can be written
    made = run.out("mktemp -d -p /dev/shm").strip()
    assert not made.startswith(run.out("pwd -P").strip() + "/"), (
        "the suite needs a writable place outside of the base dir"
    )
    run.out(
        f"cd {made}; mkdir sub; printf OUTSIDE | tee file sub/file > other; "
        f"ln -s {made} ~/{folder}/to-outside"
    )
    yield made
    run.out(f"rm -r {made}")


@pytest.fixture
def swapping(run: Run, folder: str, outside: str, marker: str) -> Iterator[None]:
    program = SWAP.format(folder=folder, outside=outside) + f"# {marker}"
    run.out(f"{python(program)} > /dev/null 2>&1 &")
    yield
    assert run.count_alive(marker) >= 1, "the swapper ended before the test did"
    run.kill_marked(marker)


def archive() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as made:
        for name in ("d/file", "d/written", "e/d/written"):
            info = tarfile.TarInfo(name)
            info.size = 7
            made.addfile(info, io.BytesIO(b"inside!"))
    return raw.getvalue()


@pytest.mark.own_image
@pytest.mark.usefixtures("swapping")
def test_nothing_outside_is_read_or_written_while_directories_are_swapped_for_links(
    target: Target, run: Run, folder: str, outside: str
) -> None:
    packed = archive()
    form = (
        b"--b\r\n"
        b'Content-Disposition: form-data; name="file"; filename="%b/d/uploaded"\r\n'
        b"\r\n"
        b"x\r\n"
        b"--b--\r\n" % folder.encode()
    )
    requests: list[tuple[str, str, bytes]] = [
        ("GET", f"/v1/files/{folder}/d/file", b""),
        ("GET", f"/v1/files/{folder}/d/other", b""),
        ("GET", f"/v1/files/{folder}/e/d/sub/file", b""),
        ("GET", f"/v1/files/{folder}/d", b""),
        ("PUT", f"/v1/files/{folder}/d/written", b"x"),
        ("PUT", f"/v1/files/{folder}/e/d/new/written", b"x"),
        ("PUT", f"/v1/files/{folder}/d/other?append=true", b"x"),
        ("DELETE", f"/v1/files/{folder}/d/other", b""),
        ("DELETE", f"/v1/files/{folder}/e/d/sub?recursive=true", b""),
        ("DELETE", f"/v1/files/{folder}/e?recursive=true", b""),
        ("GET", f"/v1/archive/{folder}?skip_unreadable=true", b""),
        ("GET", f"/v1/archive/{folder}/d", b""),
        ("PUT", f"/v1/archive/{folder}", packed),
        ("PUT", f"/v1/archive/{folder}/d/unpacked", packed),
        ("GET", f"/download/{folder}/d/other", b""),
        ("GET", f"/list/{folder}/d", b""),
        ("GET", f"/exists/{folder}/d/other", b""),
        ("POST", "/upload", form),
    ]
    numbers = iter(range(OPERATIONS))
    lock = threading.Lock()
    counts: dict[int, int] = {}

    def work(_: int) -> None:
        connection = http.client.HTTPConnection(*target.address, timeout=READ_SECONDS)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                connection.close()
                return
            method, path, body = requests[number % len(requests)]
            headers = (
                {"Content-Type": "multipart/form-data; boundary=b"} if method == "POST" else {}
            )
            connection.request(method, path, body, headers)
            try:
                response = connection.getresponse()
                content = response.read()
                http_status = response.status
            except (http.client.HTTPException, ConnectionError):
                connection.close()  # an archive whose files vanished midway
                content, http_status = b"", 0
            with lock:
                counts[http_status] = counts.get(http_status, 0) + 1
            assert b"OUTSIDE" not in content, (method, path)
            if path in (f"/v1/files/{folder}/d", f"/list/{folder}/d"):
                assert b'"other"' not in content or b'"sub"' not in content, (
                    "a listing of the outside"
                )

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(work, range(CONNECTIONS)))
    assert sum(counts.values()) == OPERATIONS
    assert not {http_status for http_status in counts if http_status >= 500}, counts
    assert counts[403] > 0, f"nothing was ever refused, so nothing was ever swapped: {counts}"
    assert counts[200] + counts[204] > OPERATIONS // 20, counts
    assert (
        run.out(f"cd {outside}; find . | LC_ALL=C sort; cat file other sub/file")
        == ".\n./file\n./other\n./sub\n./sub/file\nOUTSIDEOUTSIDEOUTSIDE"
    )
