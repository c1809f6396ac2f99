"""The page /docs: the files arrive, from the image too, which is made from the wheel. tests/browser
opens the page in a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urljoin

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


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_page_names_its_files_below_any_prefix(client: httpx.Client, path: str) -> None:
    urls = re.findall(r'(?:href|src)="([^"]+)"', client.get(path).text)
    named = {urljoin(f"http://router/a/b{path}", url) for url in urls if url != "data:,"}
    expected = {"/openapi.json", *FILES} - {"/docs", "/docs/"}
    assert named == {f"http://router/a/b{name}" for name in expected}


def test_page_may_load_and_ask_nothing_but_the_daemon(client: httpx.Client) -> None:
    policy = client.get("/docs").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
