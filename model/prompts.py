"""Names of the prompts that sentence-transformers models have for queries and documents."""

from collections.abc import Container

from model.manifest import Role

PROMPT_NAMES: dict[Role, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
    "passage": ("passage", "document"),
}
"""Prompt names to try per role, in order. A role without any of them has no prompt, not even the default one."""


def resolve_roles(prompts: Container[str]) -> dict[Role, str]:
    """Return the name of the prompt for each role that has one."""
    named = {role: next((name for name in names if name in prompts), None) for role, names in PROMPT_NAMES.items()}
    return {role: name for role, name in named.items() if name is not None}
