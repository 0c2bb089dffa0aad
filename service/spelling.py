"""How error messages name fields and values.

Operations use the field names of their requests. Messages contain enum values as `{field.value}`, and fields that APIs
name differently as `{field}`. Each API replaces these placeholders with the names that its clients use, and omits
suggestions to change options that it does not support.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

_NAME = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
_PATH = re.compile(r"(\w*)(.*)")
IDS_SUFFIX = ".token_ids"
"""Suffix of paths to token ids, which are direct items of an array in most APIs."""

Change = Mapping[str, str | int | None]
"""One or more request fields to change, and their new values; None removes a field."""


def named(field: str, value: str) -> str:
    """Return the placeholder of an enum value."""
    return f"{{{field}.{value}}}"


def join(names: Sequence[str], conjunction: str = "and") -> str:
    """Join alternatives in prose."""
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def use_range(first: int, last: int) -> str:
    """Return the remedy for a number that is out of range."""
    return f"Use {first}." if first == last else f"Use {first} to {last}."


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a client can do about an error.

    Attributes:
        text: An imperative without a final period.
        changes: Changes to the request, each sufficient as an alternative to `text`.
        connective: "and" if `text` is required as well.
        hint: An additional sentence.
        if_cut: Replaces this remedy in APIs that cut texts.
    """

    text: str
    changes: Sequence[Change] = ()
    connective: Literal["or", "and"] = "or"
    hint: str = ""
    if_cut: "Remedy | None" = None


@dataclass(frozen=True)
class Spelling:
    """An API's names in error messages; by default, the names in the operations' requests.

    Attributes:
        names: Replaces the first name of a path: `{"inputs": "texts"}` turns `inputs[3]` into `texts[3]`.
        options: The options that an error may suggest changing, by field. None: all fields, under their names.
        lacks: Fields that the API does not support.
        values: Spellings of all or some of a field's values, per field, without quotes.
        keeps_ids: Whether paths to token ids end with the field name.
        cuts_texts: Whether the API cuts texts to the character limit if they may be truncated.
    """

    names: Mapping[str, str] | None = None
    options: Mapping[str, str] | None = None
    lacks: Sequence[str] = ()
    values: Mapping[str, str | Mapping[str, str]] | None = None
    keeps_ids: bool = False
    cuts_texts: bool = False

    def path(self, path: str) -> str:
        """Return the API's path of a request field."""
        if not self.keeps_ids:
            path = path.removesuffix(IDS_SUFFIX)
        if not self.names:
            return path
        match = _PATH.fullmatch(path)
        assert match is not None
        return self.names.get(match[1], match[1]) + match[2]

    def value(self, field: str, value: str) -> str:
        """Return how the API spells an enum value."""
        spelled = (self.values or {}).get(field)
        if isinstance(spelled, str):
            return spelled
        if spelled is not None:
            return spelled[value]
        return f'"{value}"'

    def option(self, field: str) -> str | None:
        """Return the name of an option that an error suggests changing; None if the API does not support it."""
        if self.options is None:
            return None if field in self.lacks else field
        return self.options.get(field)

    def text(self, text: str) -> str:
        """Replace the placeholders of fields and values in a text."""
        return _NAME.sub(lambda match: self.value(*match.groups()) if match[2] else self.path(match[1]), text)

    def remedy(self, remedy: Remedy) -> str:
        """Return a remedy as one or two sentences."""
        if self.cuts_texts and remedy.if_cut is not None:
            remedy = remedy.if_cut
        text, changes = self.text(remedy.text), [change for change in map(self._change, remedy.changes) if change]
        if changes:
            text += f"{',' if ' or ' in text else ''} {remedy.connective} set {' or '.join(changes)}"
        return f"{text}. {remedy.hint}".rstrip()

    def _change(self, change: Change) -> str | None:
        """Return a change as `<option> to <value>`, followed by the options to remove."""
        parts = []
        for field, value in change.items():
            option = self.option(field)
            if option is None:
                return None
            if value is None:
                parts.append(f"without {option}")
            else:
                parts.append(f"{option} to {self.value(field, value) if isinstance(value, str) else value}")
        return " ".join(parts)


ENGINE = Spelling(keeps_ids=True)
