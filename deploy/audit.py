"""Check the images' packages for known vulnerabilities: `make audit`. Exceptions in audit.toml expire on their date."""

import datetime
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parent
TOOL = "pip-audit==2.10.1"
LOCKS = ("cpu", "gpu", "export")


class ExceptionsError(Exception):
    """audit.toml has an exception that is incomplete or has expired."""


def main() -> int:
    """Audit each lock file; return 1 if a package has a vulnerability."""
    try:
        ignored = [*current_exceptions(tomllib.loads((DEPLOY / "audit.toml").read_text()), datetime.date.today())]
    except ExceptionsError as error:
        print(f"audit: {error}", file=sys.stderr)
        return 1
    options = [option for name in ignored for option in ("--ignore-vuln", name)]
    failed = []
    for name in LOCKS:
        lock = DEPLOY / "locks" / f"{name}.txt"
        print(f"{lock.name}:", file=sys.stderr)
        command = (str(Path(sys.executable).with_name("uv")), "tool", "run", "--quiet", "--from", TOOL, "pip-audit")
        # With --strict, packages missing from the database are an error, for example without a connection.
        arguments = ("--requirement", str(lock), "--require-hashes", "--disable-pip", "--strict", *options)
        if subprocess.run([*command, *arguments], check=False).returncode:
            failed.append(name)
    return 1 if failed else 0


def current_exceptions(content: dict[str, Any], today: datetime.date) -> Iterator[str]:
    """Yield the ids of the exceptions. Raises `ExceptionsError`."""
    for item in content.get("exceptions", ()):
        if missing := {"id", "reason", "until"} - item.keys():
            raise ExceptionsError(f"audit.toml: {item.get('id', 'an exception')} has no {min(missing)}. Add it.")
        if item["until"] < today:
            expired = f"audit.toml: {item['id']} was an exception until {item['until']}."
            raise ExceptionsError(f"{expired} Update the package, or extend the date.")
        yield item["id"]


if __name__ == "__main__":
    sys.exit(main())
