"""The page /docs: the files arrive, from the image too, which is made from the wheel. tests/browser
opens the page in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx

FILES = {
    "/docs": ("text/html", 'src="docs/viewer.js"'),
    "/docs/": ("text/html", 'src="viewer.js"'),
    "/docs/viewer.js": ("text/javascript", "../openapi.json"),
    "/docs/swagger-ui.css": ("text/css", ".swagger-ui"),
    "/docs/swagger-ui-bundle.js": ("text/javascript", "SwaggerUIBundle"),
}


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
@pytest.mark.parametrize("path", FILES)
def test_file_of_the_page_arrives_in_both_encodings(
    client: httpx.Client, path: str, encoding: str
) -> None:
    response = client.get(path, headers={"Accept-Encoding": encoding})
    assert response.status_code == 200
    media_type, word = FILES[path]
    assert response.headers["content-type"] == f"{media_type}; charset=utf-8"
    assert word in response.text
    etag = response.headers["etag"]
    again = client.get(path, headers={"Accept-Encoding": encoding, "If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
