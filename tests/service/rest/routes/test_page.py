"""The page's files: their types and headers, revalidation, and that nothing but them is served."""

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
    """With the bytes of the file; text in UTF-8."""
    name = path.removeprefix("/page/") if path != "/" else "index.html"
    answer = rest.get(path)
    media_type, _, parameters = answer.headers["content-type"].partition("; ")
    assert (answer.status_code, answer.content) == (200, (DIRECTORY / name).read_bytes())
    assert media_type == TYPES[name.rpartition(".")[2]]
    assert parameters == ("charset=utf-8" if media_type.startswith("text/") else "")


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/page/style.css", "/page/icon.svg"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_headers_let_the_page_load_nothing_from_elsewhere(rest: httpx.Client, method: str, path: str) -> None:
    """And be framed, sniffed or sent on by nobody."""
    headers = rest.request(method, path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"


def test_nothing_in_the_page_needs_more_than_the_policy_gives() -> None:
    """No script or style in the markup, no address of another origin, no markup made from data."""
    markup = (DIRECTORY / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", markup)
    for name in FILES:
        text = (DIRECTORY / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name


def test_head_is_get_without_the_body(rest: httpx.Client) -> None:
    """The same headers, length included."""
    for path in ("/", "/page/page.js"):
        got, head = rest.get(path), rest.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length", "etag"):
            assert head.headers[name] == got.headers[name]


@pytest.mark.parametrize("written", ["{}", "W/{}", '"other", {}', "*", '"other" , W/{}'])
def test_page_file_is_not_sent_when_unmodified(rest: httpx.Client, written: str) -> None:
    """304 with the headers that matter, and no body."""
    etag = rest.get("/").headers["etag"]
    answer = rest.get("/", headers={"if-none-match": written.format(etag)})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("written", ["", '"other"', "nonsense", "W/", ","])
def test_page_file_is_sent_when_modified(rest: httpx.Client, written: str) -> None:
    """An upgrade shows at once."""
    assert rest.get("/", headers={"if-none-match": written}).status_code == 200


def test_etag_depends_on_content(tmp_path: Path) -> None:
    """Of the content, not of the name or the day; other files are left alone."""
    for name, content in {"index.html": "one", "a.js": "one", "b.js": "two", "notes.txt": "", "c.py": ""}.items():
        (tmp_path / name).write_text(content)
    page = read_page(tmp_path)
    assert set(page) == {"/", "/page/a.js", "/page/b.js"}
    assert page["/"].etag == page["/page/a.js"].etag != page["/page/b.js"].etag
    assert page["/page/a.js"] == PageFile(b"one", "text/javascript; charset=utf-8", page["/"].etag)


@pytest.mark.parametrize(
    "name", ["nothing.js", "index.html", "..%2fstatic.py", "%2e%2e", "../static.py", "page.js/", ""]
)
def test_other_names_are_not_there(rest: httpx.Client, name: str) -> None:
    """404 in our own words, without the name."""
    answer = rest.get(f"/page/{name}")
    assert (answer.status_code, answer.json()["error"]["reason"]) == (404, "no_such_route")


@pytest.mark.parametrize("path", ["/", "/page/page.js"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_files_can_only_be_read(rest: httpx.Client, method: str, path: str) -> None:
    """405."""
    assert rest.request(method, path).status_code == 405


def test_modules_import_only_what_is_there() -> None:
    """Every import and link of the page names one of its files, and every file is reached."""
    reached = {"index.html"}
    for name in FILES:
        text = (DIRECTORY / name).read_text()
        reached |= set(re.findall(r'(?:from|import) "\./([^"]+)"', text)) | set(re.findall(r'"page/([^"]+)"', text))
    assert reached == set(FILES)


def test_files_stay_small() -> None:
    """A module is read in one sitting."""
    for name in FILES:
        assert len((DIRECTORY / name).read_text().splitlines()) <= 300, name
