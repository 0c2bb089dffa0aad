"""The server. It never imports torch."""

from pathlib import Path

__version__ = "0.1.0"


def read_revision() -> str:
    """Return the git revision of an image, whose build writes it to a file; "unknown" elsewhere."""
    try:
        return (Path(__file__).parent / "REVISION").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
