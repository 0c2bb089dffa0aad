"""The server. It never imports torch."""

__version__ = "0.1.0"


def read_revision() -> str:
    """Return the git revision of an image, whose build writes it to a file; "unknown" elsewhere."""
    from pathlib import Path  # imported here, so that `__main__` begins as early as possible

    try:
        return (Path(__file__).parent / "REVISION").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
