"""Generated files are what their sources would generate now. `--write` generates them."""

import subprocess
import sys
import tempfile
from pathlib import Path

from service.config import describe_options

ROOT = Path(__file__).parent.parent
STUBS = (
    "service/pb/encoder_pb2.py",
    "service/pb/encoder_pb2.pyi",
    "service/pb/encoder_pb2_grpc.py",
    "service/engine/backends/onnx_weights_pb2.py",
    "service/engine/backends/onnx_weights_pb2.pyi",
)
OPTIONS = ROOT / "docs" / "options.md"


def generate_stubs(out: Path) -> None:
    """Write the stubs under `out` at their place in the tree, so that they import each other by their full names."""
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", "service/pb=proto/attendant/v1",
         f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}", "service/pb/encoder.proto"],
        cwd=ROOT,
        check=True,
    )  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", "service/engine/backends=proto/onnx",
         f"--python_out={out}", f"--pyi_out={out}", "service/engine/backends/onnx_weights.proto"],
        cwd=ROOT,
        check=True,
    )  # fmt: skip


def stale_files() -> list[str]:
    """The committed files that differ from what would be generated."""
    with tempfile.TemporaryDirectory() as scratch:
        generate_stubs(Path(scratch))
        stale = [name for name in STUBS if (Path(scratch) / name).read_text() != (ROOT / name).read_text()]
    if not OPTIONS.is_file() or OPTIONS.read_text() != describe_options():
        stale.append("docs/options.md")
    return stale


def main() -> int:
    if "--write" in sys.argv[1:]:
        generate_stubs(ROOT)
        return 0
    stale = stale_files()
    for name in stale:
        print(f"{name} is stale: run `make proto docs` and commit it", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
