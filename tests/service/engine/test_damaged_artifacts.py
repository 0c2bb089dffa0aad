"""Artifacts whose digests are right and whose JSON files contain an absurd value: one line, and no absurd memory."""

import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.artifact.files import GOLDEN, MANIFEST, MANIFEST_DIGEST, REPORT, TOKENIZER, ArtifactError, describe_file
from service.config import ConfigError, Settings
from tests.conftest import run_python
from tests.damaged_json import ABSURD, DEEP, nest, paths, replace
from tests.model.artifact_copies import copy_artifact, rewrite_manifest
from tests.shared_models import load_anew

FILES = (MANIFEST, TOKENIZER, GOLDEN)
MEMORY = 4 * 2**30


@pytest.fixture
def limited_memory() -> Iterator[None]:
    """Let an allocation of absurd size fail in this process instead of ending another one."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def write(root: Path, name: str, text: str) -> None:
    """Replace a file, with its digest."""
    (root / name).write_text(text)
    if name == TOKENIZER:
        record = describe_file(root / name).model_dump()
        rewrite_manifest(root, lambda manifest: manifest["files"].update({name: record}))
    if name == MANIFEST:
        (root / MANIFEST_DIGEST).write_text(describe_file(root / name).sha256 + "\n")


def check(root: Path, name: str, text: str) -> None:
    """Load an artifact with another file, which works or raises one line."""
    before = {path: path.read_bytes() for path in root.iterdir()}
    write(root, name, text)
    message = str(root)
    try:
        load_anew(Settings(model_dir=root, provider="cpu"))
    except (ArtifactError, ConfigError) as error:
        message = str(error)
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    assert message.isprintable()
    assert str(root) in message


@pytest.mark.usefixtures("limited_memory")
@pytest.mark.parametrize("name", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_absurd_value_is_loaded_or_one_line(
    tiny_artifact: Path, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    root = tmp_path / "artifact"
    if not root.exists():
        copy_artifact(tiny_artifact, tmp_path)
    document = json.loads((root / name).read_text())
    path = data.draw(st.sampled_from([*paths(document)]))
    check(root, name, replace(document, path, data.draw(st.sampled_from(ABSURD))))


@pytest.mark.parametrize("name", FILES)
def test_deep_nesting_is_one_line(tiny_artifact: Path, tmp_path: Path, name: str) -> None:
    root = copy_artifact(tiny_artifact, tmp_path)
    document: dict[str, Any] = json.loads((root / name).read_text())
    for text in (DEEP, *(nest(document, (key,)) for key in document), '{"format_version": 7, "source": ' + DEEP + "}"):
        write(root, name, text)
        with pytest.raises(ArtifactError) as raised:
            load_anew(Settings(model_dir=root, provider="cpu"))
        assert str(raised.value).isprintable()
        assert name in str(raised.value) or name == TOKENIZER


def test_commands_end_with_one_line(tiny_artifact: Path, tmp_path: Path) -> None:
    root = copy_artifact(tiny_artifact, tmp_path)
    write(root, MANIFEST, replace(json.loads((root / MANIFEST).read_text()), ("static", "offset"), 2**62))
    write(root, REPORT, DEEP)
    for command in (["-m", "service", "serve"], ["-m", "model", "verify", str(root)]):
        ended = run_python(*command, model_dir=root, rest_port=0, grpc_port=0, admin_port=0)
        assert ended.returncode == 78
        (line,) = [line for line in ended.stderr.splitlines() if MANIFEST in line]
        assert "Traceback" not in ended.stderr
        assert "Export again." in line
