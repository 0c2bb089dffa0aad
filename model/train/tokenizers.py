"""Tokenizers trained on the texts of a run: BERT's WordPiece or byte-level BPE."""

import json
from collections import Counter
from collections.abc import Callable, Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from model.train.config import TokenizerOptions, TrainError

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARACTERS = 100
"""WordPiece maps longer words to [UNK], and training time is quadratic in the word length."""
MAX_ALPHABET = 1000
"""Maximum alphabet size of a WordPiece vocabulary, as in BERT's trainer. Other characters become [UNK]."""


def without_long_words(text: str) -> str:
    """Return a text without words of more than MAX_WORD_CHARACTERS."""
    if len(text) <= MAX_WORD_CHARACTERS:
        return text
    return " ".join(word for word in text.split() if len(word) <= MAX_WORD_CHARACTERS)


def train_tokenizer(options: TokenizerOptions, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Return a tokenizer that numbers its special tokens 0 to 4, in `SPECIAL_TOKENS` order.

    It depends only on the options and texts. `texts` is called once per pass.

    Raises:
        TrainError: the texts have fewer than two distinct tokens.
    """
    tokenizer = _train_wordpiece(options, texts) if options.kind == "wordpiece" else _train_bpe(options, texts)
    if tokenizer.get_vocab_size() < len(SPECIAL_TOKENS) + 2:
        raise TrainError(f"data.train: too little text for a tokenizer ({tokenizer.get_vocab_size()} tokens).")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in (CLS, SEP)],
    )
    return tokenizer


def _train_wordpiece(options: TokenizerOptions, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Train WordPiece with a fixed numbering.

    The trainer numbers continuations ("##a") in hash-map order, which differs between runs and breaks ties between
    equally frequent merges. Passing them as special tokens numbers them first; afterwards they become ordinary tokens.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=options.lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    alphabet = _alphabet(tokenizer, texts())
    continuations = [f"##{character}" for character in alphabet]
    if options.vocab_size < (least := len(SPECIAL_TOKENS) + 2 * len(alphabet)):
        raise TrainError(f"tokenizer.vocab_size: {options.vocab_size}, at least {least} required. Raise it.")
    trainer = trainers.WordPieceTrainer(
        vocab_size=options.vocab_size, special_tokens=[*SPECIAL_TOKENS, *continuations], show_progress=False,
        initial_alphabet=alphabet, limit_alphabet=len(alphabet),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts(), trainer)
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = definition["added_tokens"][: len(SPECIAL_TOKENS)]
    trained: Tokenizer = Tokenizer.from_str(json.dumps(definition))
    return trained


def _alphabet(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return the most frequent characters of the normalized texts, without whitespace, in a fixed order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    characters = [character for character in counts if not character.isspace()]
    return sorted(characters, key=lambda character: (-counts[character], character))[:MAX_ALPHABET]


def _train_bpe(options: TokenizerOptions, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if options.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if options.vocab_size < (least := len(SPECIAL_TOKENS) + len(alphabet)):
        raise TrainError(f"tokenizer.vocab_size: {options.vocab_size}, at least {least} required. Raise it.")
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False,
        initial_alphabet=alphabet,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer
