"""Write the outputs of docs/tutorial.ipynb: `python -m tests.e2e.tutorial`, or `make tutorial`."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

from tests.conftest import ROOT, serving

TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
CELL_TIMEOUT_S = 60


def execute(url: str) -> NotebookNode:
    """Return the tutorial with the outputs of a server, without metadata of the execution.

    The kernel keeps its files in a temporary directory and reads no settings of the user.
    """
    notebook = nbformat.read(TUTORIAL, as_version=4)
    with TemporaryDirectory() as directory:
        environment = os.environ | {
            "ATTENDANT_URL": url,
            "IPYTHONDIR": directory,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "client"))),
        }
        environment.pop("MPLBACKEND", None)  # the kernel's default displays pictures
        # Sockets in the directory, not on TCP ports: nothing else connects to the kernel.
        kernel = {"transport": "ipc", "connection_file": str(Path(directory) / "kernel.json")}
        NotebookClient(
            notebook,
            kernel_name="python3",
            config=Config({"KernelManager": kernel}),
            timeout=CELL_TIMEOUT_S,
            record_timing=False,
            coalesce_streams=True,
        ).execute(env=environment, cwd=directory)
    return strip(notebook)


def strip(notebook: NotebookNode) -> NotebookNode:
    """Remove what differs between executions, apart from the outputs."""
    # ruff checks notebooks whose language is Python.
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            for output in cell.outputs:
                output.pop("execution_count", None)
    return notebook


def main() -> None:
    """Execute the tutorial with a server that computes in float32, so that no output depends on the CPU's precision."""
    model = ROOT / "models" / "all-MiniLM-L6-v2"
    with serving(model_dir=model, precision="float32") as server:
        nbformat.write(execute(server.rest), TUTORIAL)


if __name__ == "__main__":
    main()
