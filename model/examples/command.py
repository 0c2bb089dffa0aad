"""Examples written to a directory: generated data, and the configurations next to this file."""

import shutil
from collections.abc import Callable
from pathlib import Path

from model.examples import ambiguous_words, paraphrases

EXAMPLES: dict[str, Callable[[Path], None]] = {
    "ambiguous-words": ambiguous_words.write,
    "paraphrases": paraphrases.write,
}


def write_example(name: str, directory: Path) -> list[Path]:
    """Write an example to a directory, creating it if necessary; return its configurations. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    EXAMPLES[name](directory)
    sources = sorted((Path(__file__).parent / name).glob("*.toml"))
    return [Path(shutil.copyfile(source, directory / source.name)) for source in sources]
