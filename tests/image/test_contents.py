"""Size and contents of the images."""

import json
from typing import Any

import pytest

from model.artifact.files import Artifact
from service import __version__
from tests.conftest import ROOT
from tests.image.conftest import python_in
from tests.image.docker_host import Daemon, revision

pytestmark = pytest.mark.image
MEBIBYTE = 2**20
MAX_RUNTIME_BYTES = 600_000_000
MAX_MODEL_BYTES = 95_000_000


def inspect(daemon: Daemon, image: str) -> dict[str, Any]:
    (document,) = json.loads(daemon.run("image", "inspect", image).stdout)
    return dict(document)


def test_image_sizes_are_within_their_limits(daemon: Daemon, images: dict[str, str]) -> None:
    """Also prints the size of each layer."""
    sizes = {name: int(inspect(daemon, image)["Size"]) for name, image in images.items()}
    for name, image in images.items():
        print(f"\n{name}: {sizes[name] / 1e6:.0f} MB")
        history = daemon.run("history", "--no-trunc", "--format={{.Size}}\t{{.CreatedBy}}", image).stdout
        for line in history.splitlines():
            size, _, step = line.partition("\t")
            if size != "0B":
                print(f"  {size:>8}  {step.partition(' # ')[0][:90]}")
    assert sizes["runtime"] <= MAX_RUNTIME_BYTES
    assert sizes["server"] - sizes["runtime"] <= MAX_MODEL_BYTES


def test_image_has_user_entrypoint_and_labels(daemon: Daemon, images: dict[str, str], default_artifact: Any) -> None:
    config = inspect(daemon, images["server"])["Config"]
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == ("10001:10001", ["attendant"], ["serve"])
    assert (config["StopSignal"], config.get("Healthcheck")) == ("SIGTERM", None)
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.revision"] == revision()
    assert labels["org.attendant.model.digest"] == Artifact.open(default_artifact).digest


def test_server_image_has_no_installer_compiler_or_torch(daemon: Daemon, images: dict[str, str]) -> None:
    code = (
        "import importlib.util as u, shutil; "
        "print([n for n in ('pip', 'ensurepip', 'setuptools', 'torch', 'transformers', 'pytest') if u.find_spec(n)], "
        "[n for n in ('pip', 'pip3', 'gcc', 'cc', 'make', 'curl', 'wget', 'git') if shutil.which(n)])"
    )
    assert python_in(daemon, images["server"], code) == "[] []"


def test_server_image_compiles_nothing_at_start(daemon: Daemon, images: dict[str, str]) -> None:
    """The root file system is read-only, so bytecode must be part of the image."""
    code = "import importlib.util as u; from pathlib import Path; import service.app, onnxruntime; "
    code += "print(all(Path(u.cache_from_source(m.__file__)).exists() for m in (service.app, onnxruntime)))"
    assert python_in(daemon, images["server"], code) == "True"


def test_build_context_has_no_secrets_or_environments() -> None:
    """The context is an allowlist, so that new files do not slip in."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert not {"!.env", "!.venv", "!."} & set(lines)
