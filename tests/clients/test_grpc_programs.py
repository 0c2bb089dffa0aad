"""The gRPC programs of docs/grpc.md, compiled and run.

Debian's Go library predates `grpc.NewClient`, and its Java library of Google's messages predates `ErrorInfo`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.clients.conftest import native
from tests.conftest import ROOT, skip_without
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

PROTO = ROOT / "proto"
PAGE = (ROOT / "docs" / "grpc.md").read_text()
TEXTS = ["money bank grows", "river bank floods"]
JAVA_LIBRARIES = Path("/usr/share/java")
JARS = [
    "failureaccess",
    "geronimo-annotation-1.3-spec",
    "grpc-api",
    "grpc-context",
    "grpc-core",
    "grpc-netty",
    "grpc-protobuf",
    "grpc-protobuf-lite",
    "grpc-stub",
    "gson",
    "guava",
    "netty-buffer",
    "netty-codec",
    "netty-codec-http",
    "netty-codec-http2",
    "netty-codec-socks",
    "netty-common",
    "netty-handler",
    "netty-handler-proxy",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-unix-common",
    "perfmark-api",
    "perfmark-impl",
    "proto-google-common-protos",
    "protobuf",
]
GO_LIBRARIES = "/usr/share/gocode"
GO_PROTOBUF = "golang-github-golang-protobuf-1-5-dev"
"""What the generated code needs. The package cannot be installed beside golang-google-grpc-dev."""


@pytest.fixture
def expected(rest: httpx.Client) -> str:
    """The lines that each program prints, with the details of an error as a pattern."""
    left, right = np.array(native(rest, TEXTS))
    error = r"(INVALID_ARGUMENT|InvalidArgument) EMPTY .*inputs\[0\].* inputs\[0\]: empty or blank\. Send text\."
    shape = rf"\[ ?{len(left)} ?\]"
    return rf'cosine {left @ right:.3f}\n{error}\n"first" {shape}\n"" {error}\n"third" {shape}\n'


def test_python(tmp_path: Path, service: ServiceThread, rest: httpx.Client) -> None:
    generate = block("sh", "### Python").splitlines()[1].replace("-Iproto", f"-I{PROTO}").split()
    run([sys.executable, *generate[1:], "google/rpc/status.proto"], tmp_path)
    program = block("python", "### Python").replace("127.0.0.1:8081", service.grpc)
    printed = run([sys.executable, "-c", program], tmp_path, PYTHONPATH=str(tmp_path)).stdout
    np.testing.assert_allclose(json.loads(printed), native(rest, TEXTS[0])[0][:4], atol=1e-3)
    program = block("python", "The attention of").replace("127.0.0.1:8081", service.grpc)
    printed = run([sys.executable, "-c", program], tmp_path, PYTHONPATH=str(tmp_path)).stdout
    body = {"inputs": TEXTS[0], "layers": [-1], "head_reduce": "mean", "unit": "word"}
    (result,) = rest.post("/v1/attend", json=body).raise_for_status().json()["results"]
    row = [result["units"][unit]["text"] for unit in result["rows"]].index("bank")
    words = [result["units"][unit]["text"] for unit in result["columns"]]
    assert [line.split()[0] for line in printed.splitlines()] == words
    shares = [float(line.split()[1]) for line in printed.splitlines()]
    np.testing.assert_allclose(shares, result["maps"][0]["matrix"][row], atol=2e-3)


def test_typescript(tmp_path: Path, service: ServiceThread, expected: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.ts").write_text(block("typescript"))
    (tmp_path / "buf.gen.yaml").write_text(block("yaml"))
    *install, generate, build, start = block("sh", "### TypeScript").replace("PROTO", str(PROTO)).splitlines()
    for line in install:
        if run(line.split(), tmp_path, check=False).returncode:
            skip_without("npm", "make test-slow installs what this machine offers")
    for line in (generate, build):
        run(line.split(), tmp_path)
    assert re.fullmatch(expected, run([*start.split()[:2], service.grpc], tmp_path).stdout)


def test_go(tmp_path: Path, service: ServiceThread, expected: str) -> None:
    need("go", "protoc-gen-go", "protoc-gen-go-grpc")
    program = tmp_path / "src" / "example.com" / "app"
    program.mkdir(parents=True)
    generate = block("sh", "### Go").replace("\\\n", " ").replace("PROTO", str(PROTO)).splitlines()[3]
    run(generate.split(), program)
    old = block("go")
    for name, older in (
        ('\t"google.golang.org/grpc/credentials/insecure"\n', ""),
        ("grpc.WithTransportCredentials(insecure.NewCredentials())", "grpc.WithInsecure()"),
        ("grpc.NewClient(", "grpc.Dial("),
    ):
        assert name in old
        old = old.replace(name, older)
    (program / "main.go").write_text(old)
    assert run(["gofmt", "-l", "main.go"], program).stdout == ""
    (tmp_path / "deb").mkdir()
    download = ["apt-get", "download", GO_PROTOBUF]
    if run(download, tmp_path / "deb", check=False).returncode:
        run(["apt-get", "update"], tmp_path, check=False)
        if run(download, tmp_path / "deb", check=False).returncode:
            skip_without(GO_PROTOBUF, "it comes from Debian's archive")
    (package,) = (tmp_path / "deb").glob("*.deb")
    run(["dpkg", "-x", package.name, "."], tmp_path / "deb")
    path = f"{tmp_path}:{tmp_path}/deb{GO_LIBRARIES}:{GO_LIBRARIES}"
    run(["go", "vet", "."], program, GO111MODULE="off", GOPATH=path)
    run(["go", "build", "-o", "app", "."], program, GO111MODULE="off", GOPATH=path)
    assert re.fullmatch(expected, run(["./app", service.grpc], program, GRPC_GO_RETRY="on").stdout)


def test_java(tmp_path: Path, service: ServiceThread, expected: str) -> None:
    need("javac", "protoc", "grpc_java_plugin")
    source = tmp_path / "src" / "main" / "java"
    source.mkdir(parents=True)
    plugin = shutil.which("grpc_java_plugin")
    generate = block("sh", "### Java").replace("\\\n", " ").replace("/path/to/protoc-gen-grpc-java", str(plugin))
    run([*generate.replace("PROTO", str(PROTO)).split(), "google/rpc/error_details.proto"], tmp_path)
    (source / "Main.java").write_text(block("java"))
    jars = ":".join(str(JAVA_LIBRARIES / f"{name}.jar") for name in JARS)
    run(["javac", "-nowarn", "-cp", jars, "-d", "out", *map(str, source.rglob("*.java"))], tmp_path)
    assert re.fullmatch(expected, run(["java", "-cp", f"out:{jars}", "Main", service.grpc], tmp_path).stdout)


def block(language: str, heading: str = "") -> str:
    """Return the first block of code in a language, after a heading of the page."""
    (_, found) = (
        PAGE.split(f"```{language}\n", 1) if not heading else PAGE.split(heading, 1)[1].split(f"```{language}\n", 1)
    )
    return found.split("```", 1)[0]


def need(*commands: str) -> None:
    for command in commands:
        if shutil.which(command) is None:
            skip_without(command, "make test-slow installs what this machine offers")


def run(
    command: Sequence[str], directory: Path, *, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the page or of the tools that it needs."""
    result = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not check or result.returncode == 0, f"{command}: {result.stdout} {result.stderr}"
    return result
