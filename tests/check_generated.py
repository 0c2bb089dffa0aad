"""Checks that generated files are up to date, and lints the proto with buf. `--write` generates the files."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import google.rpc.status_pb2

from model.artifact.manifest import Manifest
from service.config import describe_options
from tests.client_options import describe_client_options
from tests.clients.registry import describe_clients
from tests.model.known_encoders import describe_models, supported_heads

ROOT = Path(__file__).parent.parent
PROTO = "attendant/v1/encoder.proto"
INFERENCE_PROTO = "inference/inference.proto"
TEI_PROTO = "tei/v1/tei.proto"
SERVED_PROTOS = (PROTO, INFERENCE_PROTO, TEI_PROTO)
GOOGLE_PROTOS = ("google/rpc/status.proto", "google/rpc/error_details.proto")
"""Copies from googleapis, so that users only need the proto/ directory."""
ONNX_PROTO = "onnx_weights.proto"
ONNX_STUBS = ("onnx_weights_pb2.py", "onnx_weights_pb2.pyi")
STUBS = (
    (PROTO, "client/attendant_client/pb", ("_pb2.py", "_pb2.pyi")),
    (INFERENCE_PROTO, "service/pb", ("_pb2.py",)),
    (TEI_PROTO, "service/pb", ("_pb2.py",)),
)
"""For each proto, the folder of its stubs, and their suffixes.

In the package of the client, stubs of third-party protos would collide with those of other clients.
"""
ONNX_PACKAGE = "service.engine.backends"
OPTIONS = ROOT / "docs" / "options.md"
CLIENTS = ROOT / "docs" / "clients.md"
CLIENT_OPTIONS = ROOT / "client" / "attendant_client" / "options.py"
MODELS = ROOT / "docs" / "models.md"
MANIFEST_SCHEMA = ROOT / "docs" / "manifest.schema.json"
GOOGLEAPIS = Path(google.rpc.status_pb2.__file__).parents[2]


def generated_files() -> dict[Path, str]:
    files = {OPTIONS: describe_options(), CLIENTS: describe_clients()}
    files[CLIENT_OPTIONS] = describe_client_options()
    files[MODELS] = describe_models(supported_heads())
    files[MANIFEST_SCHEMA] = json.dumps(Manifest.model_json_schema(mode="serialization"), indent=1) + "\n"
    files |= {ROOT / "proto" / name: (GOOGLEAPIS / name).read_text() for name in GOOGLE_PROTOS}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        outputs = (f"--python_out={out}", f"--pyi_out={out}")
        _protoc("-Iproto", *outputs, *SERVED_PROTOS)
        _protoc("-Iproto/onnx", *outputs, ONNX_PROTO)
        for proto, folder, suffixes in STUBS:
            for suffix in suffixes:
                stub = (out / proto).with_name(Path(proto).stem + suffix)
                files[ROOT / folder / stub.name] = stub.read_text()
        for name in ONNX_STUBS:
            files[ROOT / ONNX_PACKAGE.replace(".", "/") / name] = (out / name).read_text()
    return files


def lint_proto() -> bool:
    """Return whether the proto passes; buf prints its findings."""
    buf = Path(sys.executable).with_name("buf")
    return subprocess.run([str(buf), "lint", "proto"], cwd=ROOT, check=False).returncode == 0


def main() -> int:
    """Return 0 if everything is up to date or has been written."""
    files = generated_files()
    if "--write" in sys.argv[1:]:
        for path, body in files.items():
            path.write_text(body)
        return 0
    outdated = [
        path.relative_to(ROOT) for path, body in files.items() if not path.is_file() or path.read_text() != body
    ]
    for path in outdated:
        print(f"{path}: not up to date. Run `make proto docs` and commit it.", file=sys.stderr)
    return 0 if lint_proto() and not outdated else 1


def _protoc(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
