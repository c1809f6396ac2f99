"""The model of files: a path leads to bytes."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from .base import Part, step

PATHS = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"])
CONTENTS = st.one_of(st.binary(max_size=40), st.integers(1, 300_000))
"""Bytes, or how often a text is repeated: a kept step stays short."""
FORMATS = st.sampled_from(["tar", "tar.gz", "zip"])
TAR_BLOCK_BYTES = 512


def bytes_of(content: bytes | int) -> bytes:
    return content if isinstance(content, bytes) else b"0123456" * content


def is_whole_tar(data: bytes) -> bool:
    """Whether the end mark is there: a block of zeros where a member might begin. The second block
    of zeros and the padding behind tell nothing more."""
    end = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                end = member.offset_data + -(-member.size // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
    except tarfile.TarError:
        return False
    return data[end : end + TAR_BLOCK_BYTES] == bytes(TAR_BLOCK_BYTES)


class Files(Part):
    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.folders = {""}
        """Writing a file makes the folders above the file; no step deletes a folder."""
        self.n_folders = 0

    def url(self, path: str) -> str:
        return f"/v1/files/{self.prefix}/{path}"

    @initialize()
    def begin_files(self) -> None:
        self.host.json("POST", "/v1/fs/mkdir", 200, json={"path": self.prefix})

    @step(path=PATHS, content=CONTENTS)
    def put(self, path: str, content: bytes | int) -> None:
        self.host.json("PUT", self.url(path), 204, content=bytes_of(content))
        self.note(path, bytes_of(content))

    def note(self, path: str, content: bytes) -> None:
        self.files[path] = content
        names = path.split("/")[:-1]
        self.folders |= {"/".join(names[:depth]) for depth in range(1, len(names) + 1)}

    @step(path=PATHS, content=CONTENTS, is_fresh=st.booleans())
    def put_if_match(self, path: str, content: bytes | int, is_fresh: bool) -> None:
        tag = self.host.client.head(self.url(path)).headers.get("etag") if is_fresh else None
        matches = tag is not None
        assert matches == (is_fresh and path in self.files)
        self.host.json(
            "PUT",
            self.url(path),
            204 if matches else 412,
            content=bytes_of(content),
            headers={"If-Match": tag or '"another"'},
        )
        if matches:
            self.files[path] = bytes_of(content)

    @step(path=PATHS, content=CONTENTS)
    def put_new(self, path: str, content: bytes | int) -> None:
        is_new = path not in self.files
        self.host.json(
            "PUT",
            self.url(path),
            204 if is_new else 412,
            content=bytes_of(content),
            headers={"If-None-Match": "*"},
        )
        if is_new:
            self.note(path, bytes_of(content))

    @step(path=PATHS, content=CONTENTS)
    def append(self, path: str, content: bytes | int) -> None:
        added = bytes_of(content)
        self.host.json("PUT", self.url(path), 204, content=added, params={"append": "true"})
        self.note(path, self.files.get(path, b"") + added)

    @step(
        path=PATHS, dest=PATHS, may_overwrite=st.booleans(), verb=st.sampled_from(["move", "copy"])
    )
    def move_or_copy(self, path: str, dest: str, may_overwrite: bool, verb: str) -> None:
        if path == dest:
            return
        body = {
            "src": f"{self.prefix}/{path}",
            "dest": f"{self.prefix}/{dest}",
            "overwrite": may_overwrite,
        }
        reply = self.host.client.post(f"/v1/fs/{verb}", json=body)
        if path not in self.files:
            assert reply.status_code == 404, reply.text
        elif dest in self.files and not may_overwrite:
            assert reply.status_code == 409, reply.text
        else:
            assert reply.status_code == 200, reply.text
            self.note(dest, self.files[path])
            if verb == "move":
                del self.files[path]

    @step(path=PATHS)
    def delete(self, path: str) -> None:
        self.host.json("DELETE", self.url(path), 204 if path in self.files else 404)
        self.files.pop(path, None)

    @step(path=PATHS, first=st.integers(0, 60), size=st.integers(1, 60))
    def get_a_range(self, path: str, first: int, size: int) -> None:
        reply = self.host.client.get(
            self.url(path), headers={"Range": f"bytes={first}-{first + size - 1}"}
        )
        if path not in self.files:
            assert reply.status_code == 404, reply.text
        elif first >= len(self.files[path]):
            assert reply.status_code == 416, reply.text
        else:
            assert reply.status_code == 206, reply.text
            assert reply.content == self.files[path][first : first + size]

    @step()
    def read_all(self) -> None:
        self.check_folder(self.prefix)

    def check_folder(self, top: str) -> None:
        """Files and folders below ``top`` are those of the model."""
        files: dict[str, bytes] = {}
        folders = {""}
        self._read(top, "", files, folders)
        assert folders == self.folders, (folders, self.folders)
        different = [p for p in files | self.files if files.get(p) != self.files.get(p)]
        assert not different, different

    def _read(self, top: str, below: str, files: dict[str, bytes], folders: set[str]) -> None:
        listing: dict[str, Any] = self.host.json("GET", f"/v1/files/{top}/{below}", 200)
        for entry in listing["entries"]:
            path = f"{below}{entry['name']}"
            if entry["type"] == "directory":
                folders.add(path)
                self._read(top, f"{path}/", files, folders)
            else:
                files[path] = self.host.client.get(f"/v1/files/{top}/{path}").content
                assert len(files[path]) == entry["size"]

    def archive(self, format_: str) -> bytes:
        return (
            self.host.client.get(f"/v1/archive/{self.prefix}", params={"format": format_})
            .raise_for_status()
            .content
        )

    def fresh_folder(self) -> str:
        """The name of a folder that never was."""
        self.n_folders += 1
        return f"{self.prefix}-{self.n_folders}"

    def delete_folder(self, name: str) -> None:
        self.host.json("DELETE", f"/v1/files/{name}", 204, params={"recursive": "true"})

    @step(format_=FORMATS, is_elsewhere=st.booleans())
    def go_there_and_back_as_an_archive(self, format_: str, is_elsewhere: bool) -> None:
        archive = self.archive(format_)
        target = self.fresh_folder() if is_elsewhere else self.prefix
        if not is_elsewhere:
            self.delete_folder(target)
        self.host.client.put(
            f"/v1/archive/{target}", params={"format": format_}, content=archive
        ).raise_for_status()
        self.check_folder(target)
        if is_elsewhere:
            self.delete_folder(target)

    @step(format_=FORMATS, cut=st.floats(0, 1, exclude_max=True), is_at_block=st.booleans())
    def cut_an_archive(self, format_: str, cut: float, is_at_block: bool) -> None:
        """Into a fresh folder: there, every byte of a half would show."""
        archive = self.archive(format_)
        n_bytes = int(len(archive) * cut)
        if is_at_block:
            n_bytes -= n_bytes % TAR_BLOCK_BYTES
        data = archive[:n_bytes]
        target = self.fresh_folder()
        reply = self.host.client.put(
            f"/v1/archive/{target}", params={"format": format_}, content=data
        )
        if format_ == "tar" and is_whole_tar(data):
            assert reply.is_success, reply.text
            self.check_folder(target)
            self.delete_folder(target)
        else:
            assert reply.status_code == 400, reply.text
            self.host.json("GET", "/v1/fs/stat", 404, params={"path": target})
        self.host.no_temporary_is_left()

    def clean_up(self) -> None:
        super().clean_up()
        self.read_all()
        self.delete_folder(self.prefix)
