"""The job of `attendant embed`: input file, output file and their options."""

from dataclasses import dataclass
from pathlib import Path

from model.console import EX_DATAERR
from service.commands.arguments import CommandError
from service.commands.row_files import InputFormat
from service.commands.vector_files import DType, OutputFormat


@dataclass(frozen=True)
class EmbedFile:
    """A file to embed, with the options."""

    source: Path
    target: Path
    input_format: InputFormat
    output_format: OutputFormat
    field: str = "text"
    id_field: str | None = None
    dtype: DType = "float32"
    reject_truncated: bool = False
    overwrite: bool = False
    options: tuple[tuple[str, str | int | bool | None], ...] = ()
    """Further embedding options, which must be unchanged to resume a run."""

    def unreadable(self, error: OSError) -> CommandError:
        """Return the error for an input that cannot be read."""
        return CommandError(f"{self.source}: cannot be read ({error.strerror or error}). Check the path.", EX_DATAERR)
