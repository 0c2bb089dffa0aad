"""Licenses in model cards, and which of them restrict commercial use."""

from pathlib import Path

import pytest

from model.artifact.names import read_license, restricts_commercial_use


@pytest.mark.parametrize(
    "name", ["cc-by-nc-4.0", "cc-by-nc-sa-3.0", "CC-BY-NC-ND", "acme-non-commercial", "research-only", "NonCommercial"]
)
def test_non_commercial_license_is_recognized(name: str) -> None:
    assert restricts_commercial_use(name)


@pytest.mark.parametrize("name", [None, "mit", "apache-2.0", "cc-by-4.0", "other", "ncsa", "openrail", "unlicense"])
def test_other_license_is_not_restricted(name: str | None) -> None:
    assert not restricts_commercial_use(name)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("license: other\nlicense_name: acme-research", "acme-research"),
        ("license: other", "other"),
        ("license: mit\nlicense_name: acme-research", "mit"),
        ('license: "cc-by-nc-4.0"', "cc-by-nc-4.0"),
        ("tags:\n  license: none of this", None),
    ],
)
def test_name_of_other_license_is_read(tmp_path: Path, fields: str, expected: str | None) -> None:
    (tmp_path / "README.md").write_text(f"---\n{fields}\n---\nlicense: nor this\n")
    assert read_license(tmp_path) == expected
