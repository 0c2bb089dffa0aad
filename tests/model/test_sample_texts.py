"""Sample sentences and text files for accuracy measurements."""

from pathlib import Path

from model.export.sample_texts import find_sentences, read_texts, sample_sentences


def test_find_sentences_returns_thousands_of_distinct_sentences() -> None:
    sentences = find_sentences()
    assert len(sentences) >= 2000
    assert len(set(sentences)) == len(sentences)
    assert all(16 < len(sentence) <= 402 and len(sentence.split()) >= 3 for sentence in sentences)
    assert all(sentence[0].isupper() and sentence[-1] in ".!?" for sentence in sentences)


def test_sample_sentences_is_deterministic_and_distinct() -> None:
    sample = sample_sentences(50)
    assert sample == sample_sentences(50)
    assert len(set(sample)) == 50
    assert set(sample) <= set(find_sentences())
    assert len(sample_sentences(10**9)) == len(find_sentences())


def test_read_texts_returns_one_text_per_nonblank_line(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("money bank grows\n\n  \n  river bänk flows\n", encoding="utf-8")
    assert read_texts(tmp_path / "texts") == ["money bank grows", "  river bänk flows"]
