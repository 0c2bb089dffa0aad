"""A request's prompt: selected by name, given as text, selected by role, or the model's default."""

from typing import Any

import pytest

from model.artifact.manifest import Manifest
from service.config import Settings
from service.engine.model_info import limits_of
from service.operations.inputs import find_prompt
from tests.manifests import with_prompts

LIMITS = limits_of(Settings(), 256)


@pytest.mark.parametrize(
    ("prompts", "default", "role", "expected"),
    [
        ({"query": "q: ", "any": "a: "}, "any", "query", "query"),
        ({"query": "q: ", "any": "a: "}, "any", "document", None),
        ({"passage": "p: ", "corpus": "c: "}, None, "document", "passage"),
        ({"corpus": "c: "}, None, "document", "corpus"),
        ({"document": "d: "}, None, "passage", "document"),
        ({"query": "q: "}, None, "document", None),
        ({"query": "", "any": "a: "}, "any", "query", None),
        ({"any": "a: "}, "any", None, "any"),
        ({"any": "a: "}, None, None, None),
        ({}, None, "query", None),
    ],
)
def test_role_selects_its_prompt_and_never_the_default(
    manifest: Manifest, prompts: dict[str, str], default: str | None, role: Any, expected: str | None
) -> None:
    changed = with_prompts(manifest, prompts, default)
    prompt = find_prompt(None, None, LIMITS, changed, role)
    assert (prompt and (prompt.name, prompt.text)) == (expected and (expected, prompts[expected]))
    assert find_prompt(None, "", LIMITS, changed, role) is None
