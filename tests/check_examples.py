"""Checks the types of the Python examples that use the client, with mypy and pyright in strict mode."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "client" / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PYRIGHT = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "extraPaths": [str(ROOT / "client")],
}


def main() -> int:
    """Return 0 if the examples have no type errors; the checkers print them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for page in PAGES:
            for number, code in enumerate(
                re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), 1
            ):
                if "attendant_client" in code:
                    (folder / f"{page.parent.name}_{page.stem}_{number}.py").write_text(code)
        (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
        bin_folder = Path(sys.executable).parent
        mypy = (bin_folder / "mypy", "--strict", "--config-file", "", "--cache-dir", ROOT / ".mypy_cache" / "examples")
        pyright = (bin_folder / "basedpyright", "--pythonpath", sys.executable, "--warnings")
        files = sorted(path.name for path in folder.glob("*.py"))
        assert files
        environment = {"MYPYPATH": str(ROOT / "client"), "PATH": "/usr/bin:/bin"}
        results = [
            subprocess.run([*command, *names], cwd=folder, env=environment, check=False).returncode
            for command, names in ((mypy, files), (pyright, ()))
        ]
    return 0 if results == [0, 0] else 1


if __name__ == "__main__":
    sys.exit(main())
