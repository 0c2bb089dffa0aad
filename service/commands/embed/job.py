"""The job of `attendant embed`: input file, output file and their options."""

from dataclasses import dataclass, field
from pathlib import Path

from service.commands.row_files import RowFile
from service.commands.vector_files import OutputFormat
from service.commands.vector_sources import VectorOptions


@dataclass(frozen=True)
class EmbedFile:
    """A file to embed, with the options."""

    source: RowFile
    target: Path
    output_format: OutputFormat
    vectors: VectorOptions = field(default_factory=VectorOptions)
    reject_truncated: bool = False
    overwrite: bool = False
