"""The page's files: media types, security headers, revalidation, and unknown names."""

import re
from pathlib import Path

import httpx
import pytest

from service.rest.routes.page import DIRECTORY, PageFile, read_page

FILES = sorted(path.name for path in DIRECTORY.iterdir())
PATHS = ["/", *(f"/page/{name}" for name in FILES if name != "index.html")]
TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@pytest.mark.parametrize("path", PATHS)
def test_page_files_have_their_media_types(rest: httpx.Client, path: str) -> None:
    name = path.removeprefix("/page/") if path != "/" else "index.html"
    response = rest.get(path)
    media_type, _, parameters = response.headers["content-type"].partition("; ")
    lines = [line for line in response.text.splitlines() if "modulepreload" not in line]
    assert (response.status_code, lines) == (200, (DIRECTORY / name).read_text().splitlines())
    assert media_type == TYPES[name.rpartition(".")[2]]
    assert parameters == ("charset=utf-8" if media_type.startswith("text/") else "")


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/page/style.css", "/page/icon.svg"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_headers_restrict_the_page_to_its_own_origin(rest: httpx.Client, method: str, path: str) -> None:
    headers = rest.request(method, path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"


def test_page_files_comply_with_the_content_security_policy() -> None:
    """No inline scripts or styles, no URLs of other origins, and no markup built from strings."""
    markup = (DIRECTORY / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", markup)
    for name in FILES:
        text = re.sub(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)", "", (DIRECTORY / name).read_text())
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name


def test_head_has_the_headers_of_get(rest: httpx.Client) -> None:
    for path in ("/", "/page/page.js"):
        get, head = rest.get(path), rest.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length", "etag"):
            assert head.headers[name] == get.headers[name]


@pytest.mark.parametrize("if_none_match", ["{}", "W/{}", '"other", {}', "*", '"other" , W/{}'])
def test_page_file_is_not_sent_when_unmodified(rest: httpx.Client, if_none_match: str) -> None:
    etag = rest.get("/").headers["etag"]
    response = rest.get("/", headers={"if-none-match": if_none_match.format(etag)})
    assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("if_none_match", ["", '"other"', "nonsense", "W/", ","])
def test_page_file_is_sent_when_modified(rest: httpx.Client, if_none_match: str) -> None:
    assert rest.get("/", headers={"if-none-match": if_none_match}).status_code == 200


def test_index_preloads_every_module(rest: httpx.Client) -> None:
    names = re.findall(r'<link rel="modulepreload" href="page/([a-z]+.js)">', rest.get("/").text)
    assert names == sorted(path.name for path in DIRECTORY.glob("*.js"))


def test_etag_depends_on_content(tmp_path: Path) -> None:
    """Files with other extensions are not part of the page."""
    for name, content in {"index.html": "one", "a.js": "one", "b.js": "two", "notes.txt": "", "c.py": ""}.items():
        (tmp_path / name).write_text(content)
    page = read_page(tmp_path)
    assert set(page) == {"/", "/page/a.js", "/page/b.js"}
    assert page["/"].etag == page["/page/a.js"].etag != page["/page/b.js"].etag
    assert page["/page/a.js"] == PageFile(b"one", "text/javascript; charset=utf-8", page["/"].etag)


@pytest.mark.parametrize(
    "name", ["nothing.js", "index.html", "..%2fstatic.py", "%2e%2e", "../static.py", "page.js/", ""]
)
def test_unknown_page_file_is_not_found(rest: httpx.Client, name: str) -> None:
    response = rest.get(f"/page/{name}")
    assert (response.status_code, response.json()["error"]["reason"]) == (404, "ROUTE_NOT_FOUND")


@pytest.mark.parametrize("path", ["/", "/page/page.js"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_page_files_reject_other_methods(rest: httpx.Client, method: str, path: str) -> None:
    assert rest.request(method, path).status_code == 405


def test_imports_and_links_name_exactly_the_page_files() -> None:
    reached = {"index.html"}
    for name in FILES:
        text = (DIRECTORY / name).read_text()
        reached |= set(re.findall(r'(?:from|import) "\./([^"]+)"', text)) | set(re.findall(r'"page/([^"]+)"', text))
    assert reached == set(FILES)
