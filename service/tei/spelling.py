"""The names of the TEI API in error messages."""

from service.engine.operations.inputs import SPLIT_NOT_TRUNCATED, shorten
from service.spelling import Remedy, Spelling


class TeiSpelling(Spelling):
    """What REST and gRPC have in common. Each has its own paths of fields."""

    def value(self, field: str, value: str) -> str:
        return "true" if field == "truncation" else super().value(field, value)

    def option(self, field: str) -> str | None:
        return "truncate" if field == "truncation" else None

    def remedy(self, remedy: Remedy) -> str:
        # `cut` applies truncation to the limit of characters too.
        return super().remedy(shorten() if remedy is SPLIT_NOT_TRUNCATED else remedy)
