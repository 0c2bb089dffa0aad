"""The corpus: thousands of real sentences, the same each time, and a file of one's own in their place."""

from pathlib import Path

import pytest

from model.corpus import find_sentences, read_texts, sample_sentences


def test_there_are_thousands_of_sentences() -> None:
    """Each once, each of several words, none longer than what a short model reads."""
    found = find_sentences()
    assert len(found) >= 2000
    assert len(set(found)) == len(found)
    assert all(16 < len(sentence) <= 402 and len(sentence.split()) >= 3 for sentence in found)
    assert all(sentence[0].isupper() and sentence[-1] in ".!?" for sentence in found)


def test_a_sample_is_the_same_each_time() -> None:
    """No sentence twice, and no more of them than there are."""
    sample = sample_sentences(50)
    assert sample == sample_sentences(50)
    assert len(set(sample)) == 50
    assert set(sample) <= set(find_sentences())
    assert len(sample_sentences(10**9)) == len(find_sentences())


def test_a_file_has_a_text_a_line(tmp_path: Path) -> None:
    """Blank lines are none; the rest is as it was written."""
    (tmp_path / "texts").write_text("money bank grows\n\n  \n  river bänk flows\n", encoding="utf-8")
    assert read_texts(tmp_path / "texts") == ["money bank grows", "  river bänk flows"]


@pytest.mark.parametrize(("body", "message"), [(b"\xff\xfe\x00", "not UTF-8"), (b"\n  \n", "no text in it")])
def test_a_file_without_texts_is_refused(tmp_path: Path, body: bytes, message: str) -> None:
    """Rather than measure over nothing."""
    (tmp_path / "texts").write_bytes(body)
    with pytest.raises(ValueError, match=message):
        read_texts(tmp_path / "texts")
