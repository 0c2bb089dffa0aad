"""Malformed and invalid request bodies, with the expected errors."""

import json
from typing import Any

SECRET = "Sesame-9"


def deep(levels: int) -> bytes:
    return b'{"inputs": ' + b"[" * levels + b'"' + SECRET.encode() + b'"' + b"]" * levels + b"}"


def body(**fields: Any) -> bytes:
    return json.dumps({"inputs": SECRET, **fields}).encode()


def raw(field: str) -> bytes:
    return b'{"inputs": "' + SECRET.encode() + b'", ' + field.encode() + b"}"


MALFORMED = {
    "empty": b"",
    "truncated": b'{"inputs": "Sesame-9',
    "trailing garbage": b'{"inputs": "Sesame-9"} Sesame-9',
    "not JSON": b"Sesame-9",
    "NaN": raw('"dimensions": NaN'),
    "NaN in an unknown field": raw('"x": NaN'),
    "Infinity": raw('"dimensions": -Infinity'),
    "1e999": raw('"dimensions": 1e999'),
    "lone surrogate": b'{"inputs": "Sesame-9 \\ud800"}',
    "not UTF-8": b'{"inputs": "Sesame-9 \xff"}',
    "UTF-16": '{"inputs": "Sesame-9"}'.encode("utf-16"),
    "BOM": b'\xef\xbb\xbf{"inputs": "Sesame-9"}',
    "5,000 nested arrays": deep(5_000),
    "single quotes": b"{'inputs': 'Sesame-9'}",
}
INVALID = {
    "missing inputs": (b"{}", "MISSING_FIELD", "inputs: missing. Send it."),
    "null": (b"null", "WRONG_TYPE", "Body: wrong type"),
    "array": (b"[]", "WRONG_TYPE", "Body: wrong type"),
    "number as input": (
        body(inputs=["a", 5]),
        "WRONG_TYPE",
        "inputs[1]: wrong type (number). Send a string or an object.",
    ),
    "number as text": (
        body(inputs=[{"text": 5}]),
        "WRONG_TYPE",
        "inputs[0].text: wrong type (number). Send a string.",
    ),
    "neither text nor ids": (body(inputs=[{}]), "MISSING_FIELD", "inputs[0]: text and token_ids are both missing."),
    "text and ids": (
        body(inputs=[{"text": "a", "token_ids": [5]}]),
        "CONFLICTING_FIELDS",
        "inputs[0]: text and token_ids are both set. Send one of them.",
    ),
    "pair and ids": (
        body(inputs=[{"pair": "a", "token_ids": [5]}]),
        "CONFLICTING_FIELDS",
        "inputs[0]: pair and token_ids are both",
    ),
    "booleans as token_ids": (
        body(inputs=[{"token_ids": [True]}]),
        "WRONG_TYPE",
        "inputs[0].token_ids[0]: wrong type",
    ),
    "900 nested arrays": (deep(900), "WRONG_TYPE", "inputs[0]: wrong type (array). Send a string or an object."),
    "span of three": (
        body(inputs=[{"text": "abc", "spans": [[0, 1, 2]]}]),
        "WRONG_SHAPE",
        "inputs[0].spans[0]: wrong number of items (3, required 2). Send",
    ),
    "unknown nested field": (
        body(inputs=[{"text": "a", "y": 1}]),
        "UNKNOWN_FIELD",
        "inputs[0].y: unknown field. Remove it",
    ),
    "unusual field name": (body(**{SECRET + "!": 1}), "UNKNOWN_FIELD", "(another name): unknown field. Remove it."),
    "empty nested field name": (
        body(inputs=[{"text": "a", "": 1}]),
        "UNKNOWN_FIELD",
        "inputs[0].(another name): unknown field. Remove it.",
    ),
    "name like a field that is set": (body(input="a"), "UNKNOWN_FIELD", "input: unknown field. Remove it."),
    "integers of 65 bits": (
        body(inputs=[{"token_ids": [2**64]}]),
        "OUT_OF_RANGE",
        "inputs[0].token_ids[0]: out of range (1.8446744073709552e+19). Send an integer of 64 bits.",
    ),
    "float of more than 64 bits": (body(dimensions=1e300), "OUT_OF_RANGE", "dimensions: out of range (1e+300)."),
    "number as model": (body(model=5), "WRONG_TYPE", "model: wrong type (number). Send a string."),
    "string as outputs": (body(outputs=SECRET), "WRONG_TYPE", "outputs: wrong type (string). Send an array."),
    "unknown output": (
        body(outputs=["logits"]),
        "UNKNOWN_VALUE",
        'outputs[0]: unknown value ("logits"). Use "pooled", "tokens",',
    ),
    "number as layers": (body(layers=5), "WRONG_TYPE", 'layers: wrong type (number). Send "all" or an array.'),
    "string as normalize": (
        body(normalize="true"),
        "WRONG_TYPE",
        "normalize: wrong type (string). Send true or false.",
    ),
    "float as dimensions": (body(dimensions=8.5), "WRONG_TYPE", "dimensions: wrong type"),
    "wrong truncation": (
        body(truncation=True),
        "WRONG_TYPE",
        'truncation: wrong type (boolean). Use "error", "right"',
    ),
}
