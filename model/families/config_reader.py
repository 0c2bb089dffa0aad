"""Reading of config.json: each value is checked, and a key that could change the result must be known."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from model.checkpoint_files import CheckpointError
from model.encoder import ACTIVATIONS

Choice = TypeVar("Choice")
DECISIVE = re.compile(
    r"attn|attention|rope|rotary|scaling|window|causal|bidirection|softcap|alibi|expert|moe|position_embedding"
    r"|prenorm|norm_type|parallel_block|qk_|quantization"
)
"""Keys that may select another architecture. One that was not read is an error, unless it is off or `HARMLESS`."""
MAX_SIZE = 2**24
"""Larger sizes are mistakes, for which there is no memory."""
HARMLESS = re.compile(
    r"dropout|_pdrop$|attn_implementation|flash_attn|memory_efficient_attention|_attention_heads$|^attentions?$|^output_attentions$"
    r"|^final_logit_softcapping$|^max_window_layers$|^sliding_window_pattern$|^cross_attention_hidden_size$|^attention_type$"
)


class ConfigReader:
    """The values of config.json. `None` as a default makes a key required."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value of any type; raises CheckpointError if it is missing and there is no default."""
        self._read.add(key)
        found = self._values.get(key)
        if found is None:
            if default is None:
                raise CheckpointError(f"config.json: {key} is missing. Download the model again.")
            return default
        return found

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer that is at least `least`."""
        found = self.value(key, default)
        if type(found) is not int or not least <= found <= MAX_SIZE:
            kind = "a positive integer" if least == 1 else "0 or a positive integer"
            raise CheckpointError(f"config.json: {key} is not {kind} ({found!r}). Correct it.")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number."""
        found = self.value(key, default)
        if type(found) not in (int, float) or not 0 < found < float("inf"):
            raise CheckpointError(f"config.json: {key} is not a positive number ({found!r}). Correct it.")
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean. Some published files contain it as a string."""
        found = self.value(key, default)
        if isinstance(found, str) and found.lower() in ("true", "false"):
            return found.lower() == "true"
        if type(found) is not bool:
            raise CheckpointError(f"config.json: {key} is not true or false ({found!r}). Correct it.")
        return found

    def activation(self, key: str, default: str | None = None) -> str:
        """Return the name of an activation function."""
        found = self.value(key, default)
        if not isinstance(found, str) or found not in ACTIVATIONS:
            raise CheckpointError(
                f"config.json: unsupported {key} {found!r}. Supported: {', '.join(sorted(ACTIVATIONS))}."
            )
        return found

    def choice(self, key: str, choices: Mapping[str, Choice], default: str) -> Choice:
        """Return what a value stands for in `choices`."""
        found = self.value(key, default)
        if not isinstance(found, str) or found not in choices:
            raise CheckpointError(f"config.json: unsupported {key} {found!r}. Supported: {', '.join(choices)}.")
        return choices[found]

    def require(self, key: str, expected: Any) -> None:
        """Raise CheckpointError unless a key is missing or has the only supported value."""
        found = self.value(key, expected)
        if found != expected and str(found).lower() != str(expected).lower():
            raise CheckpointError(f"config.json: unsupported {key} {found!r}. Supported: {expected!r}.")

    def check_heads(self, hidden_size: str, heads: str) -> None:
        """Raise CheckpointError unless the hidden size is a multiple of the number of heads."""
        size, count = self.size(hidden_size), self.size(heads)
        if size % count:
            raise CheckpointError(
                f"config.json: {hidden_size} is not a multiple of {heads} ({size}, {count}). Correct it."
            )

    def reject_unknown(self) -> None:
        """Raise CheckpointError if a key that was not read may select another architecture."""
        for key, value in self._values.items():
            if key in self._read or not value or HARMLESS.search(key) or not DECISIVE.search(key):
                continue
            raise CheckpointError(
                f"config.json: unknown key {key} ({value!r}). It may change the result, so the model is not supported."
            )
