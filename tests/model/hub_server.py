"""A stand-in for the Hugging Face Hub on loopback: the routes that downloads use, and their errors."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS_SUFFIXES = (".safetensors", ".bin")
FILE = re.compile(r"/(?P<id>(?:[^/]+/)?[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")
INFO = re.compile(r"/api/models/(?P<id>(?:[^/]+/)?[^/]+)/(?P<kind>revision|tree)/(?P<revision>[^/?]+)")
INFO_DEFAULT = re.compile(r"/api/models/(?P<id>(?:[^/]+/)?[^/]+)")
XET_TOKEN = "/xet-token"
UNREACHABLE = "http://127.0.0.1:9"
LFS_FILE = re.compile(r"/lfs/(?P<digest>[0-9a-f]{64})")


@dataclass
class Repository:
    """The files of one model, its revisions and the faults of its downloads.

    Attributes:
        files: Contents by path.
        revisions: Commits by branch or tag.
        gated: Accounts, by token, that the owner has approved; None if the model is public.
        private: Like a missing model without one of `tokens`.
        interrupt_after: Bytes of an LFS file after which the connection closes; None sends everything.
        interruptions: How many responses are interrupted.
        extra_size: Added to the size that the metadata of LFS files claims.
        stalled: Responses with LFS files stop after `interrupt_after` bytes, until the server stops.
        xet: LFS files are in Xet storage, the address of which nobody listens on.
    """

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    gated: frozenset[str] | None = None
    private: bool = False
    interrupt_after: int | None = None
    interruptions: int = 1
    extra_size: int = 0
    stalled: bool = False
    xet: bool = False

    @classmethod
    def of(cls, directory: Path, **options: Any) -> "Repository":
        """Return a repository with the files of a directory."""
        files = {
            path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
        }
        return cls(files, **options)


class HubServer(ThreadingHTTPServer):
    """A hub of `repositories`. `requests` records the method and path of each request, and any Range."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.tokens = {"valid"}
        self.requests: list[str] = []
        self.failure: int | None = None
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def storage_url(self) -> str:
        """The address of large files, on another host, as on the hub: the library follows only such redirects later."""
        return f"http://localhost:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""

    def _route(self) -> None:
        path = urlsplit(self.path).path
        span = self.headers.get("Range")
        self.server.requests.append(f"{self.command} {path}" + (f" {span}" if span else ""))
        if self.server.failure is not None:
            self._send(self.server.failure, b"failed")
        elif match := LFS_FILE.fullmatch(path):
            self._send_lfs(match["digest"])
        elif path == XET_TOKEN:
            headers = {"X-Xet-Cas-Url": UNREACHABLE, "X-Xet-Access-Token": "t", "X-Xet-Token-Expiration": "9999999999"}
            self._send(200, b"{}", headers)
        elif match := FILE.fullmatch(path):
            self._send_file(match["id"], unquote(match["revision"]), unquote(match["name"]))
        elif match := INFO.fullmatch(path):
            self._send_info(match["id"], match["kind"], unquote(match["revision"]))
        elif match := INFO_DEFAULT.fullmatch(path):
            self._send_info(match["id"], "revision", "main")
        else:
            self._send(404, b"not found")

    def _token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def _find(self, model_id: str, revision: str) -> tuple[Repository, str] | None:
        """Return the repository and the commit, or send the error of the hub and return None."""
        token, repository = self._token(), self.server.repositories.get(model_id)
        if token is not None and token not in self.server.tokens:
            self._send_error(401, None, "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and token is None):
            status, message = (404, "Repository not found") if token else (401, "Invalid username or password.")
            self._send_error(status, "RepoNotFound", message)
        else:
            commits = repository.revisions | {commit: commit for commit in repository.revisions.values()}
            if revision in commits:
                return repository, commits[revision]
            self._send_error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return None

    def _send_info(self, model_id: str, kind: str, revision: str) -> None:
        found = self._find(model_id, revision)
        if found is None:
            return
        repository, commit = found
        body: Any
        if kind == "tree":
            body = [_tree_entry(name, content, repository) for name, content in sorted(repository.files.items())]
        else:
            sizes = {name: len(content) for name, content in repository.files.items()}
            siblings = [
                {"rfilename": name, "size": size + (repository.extra_size if _is_lfs(name) else 0)}
                for name, size in sizes.items()
            ]
            body = {"id": model_id, "modelId": model_id, "sha": commit, "siblings": siblings, "tags": []}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _send_file(self, model_id: str, revision: str, name: str) -> None:
        found = self._find(model_id, revision)
        if found is None:
            return
        repository, commit = found
        if repository.gated is not None and self._token() not in repository.gated:
            status = 401 if self._token() is None else 403
            self._send_error(status, "GatedRepo", f"Access to model {model_id} is restricted.")
            return
        content, headers = repository.files.get(name), {"X-Repo-Commit": commit}
        if content is None:
            self._send_error(404, "EntryNotFound", "Entry not found", headers)
        elif _is_lfs(name):
            digest = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-Size": str(len(content) + repository.extra_size), "X-Linked-ETag": f'"{digest}"'}
            if repository.xet:
                headers |= {"X-Xet-Hash": digest, "X-Xet-Refresh-Route": f"{self.server.url}{XET_TOKEN}"}
            self._send(
                302, b"", headers | {"ETag": f'"{digest}"', "Location": f"{self.server.storage_url}/lfs/{digest}"}
            )
        else:
            self._send(200, content, headers | {"ETag": f'"{_blob_id(content)}"'})

    def _send_lfs(self, digest: str) -> None:
        for repository in self.server.repositories.values():
            for name, content in repository.files.items():
                if hashlib.sha256(content).hexdigest() == digest:
                    self._send_range(repository, name, content)
                    return
        self._send(404, b"not found")

    def _send_range(self, repository: Repository, name: str, content: bytes) -> None:
        first = int(re.sub(r"bytes=(\d+)-.*", r"\1", self.headers.get("Range", "bytes=0-")))
        body = content[first:]
        headers = {"Content-Disposition": f'inline; filename="{name}";'}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        limit = repository.interrupt_after
        if limit is None or repository.interruptions == 0 or len(body) <= limit:
            self._send(206 if first else 200, body, headers)
            return
        repository.interruptions -= 1
        self._send(206 if first else 200, body[:limit], headers, size=len(body))
        if repository.stalled:
            self.wfile.flush()
            self.server.stopped.wait()
        self.close_connection = True

    def _send_error(self, status: int, code: str | None, message: str, headers: dict[str, str] | None = None) -> None:
        headers = {**(headers or {}), "X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, size: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_lfs(name: str) -> bool:
    return name.endswith(LFS_SUFFIXES)


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _tree_entry(name: str, content: bytes, repository: Repository) -> dict[str, Any]:
    size = len(content) + (repository.extra_size if _is_lfs(name) else 0)
    entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": _blob_id(content)}
    if _is_lfs(name):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 134}
    return entry


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """Run a hub in a thread."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.stopped.set()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def hub_in_process(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[HubServer]:
    """Run a hub that huggingface_hub uses in this process, with this cache and without a token."""
    constants = "huggingface_hub.constants"
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(f"{constants}.HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    with hub_server() as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(f"{constants}.ENDPOINT", server.url)
        monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server
    huggingface_hub.close_session()
