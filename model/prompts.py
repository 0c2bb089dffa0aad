"""Names of the prompts that sentence-transformers models have for queries and documents."""

from collections.abc import Container
from typing import Literal

Role = Literal["query", "document", "passage"]
PROMPT_NAMES: dict[Role | None, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
    "passage": ("passage", "document"),
}
"""Prompt names to try per role, in order, as in sentence-transformers' encode_query and encode_document."""


def role_prompt_name(role: Role | None, prompts: Container[str]) -> str | None:
    """Return the prompt of a role; None if the model has none for it."""
    return next((name for name in PROMPT_NAMES.get(role, ()) if name in prompts), None)
