"""The job of `attendant embed`: its input file, its output file and the options of both."""

from dataclasses import dataclass
from pathlib import Path

from model.console import EX_DATAERR
from service.commands.arguments import CommandError
from service.commands.row_files import InputFormat
from service.commands.vector_files import DType, OutputFormat


@dataclass(frozen=True)
class EmbedFile:
    """A file to embed, and how."""

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
    """Further options of the embeddings, which must be equal to continue a run."""

    def unreadable(self, error: OSError) -> CommandError:
        """Return the error of a failed read of the input."""
        return CommandError(f"{self.source}: cannot be read ({error.strerror or error}). Check the path.", EX_DATAERR)
