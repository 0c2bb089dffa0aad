"""Tiny tokenizers of the kinds that model families use, the same in every run."""

import math
from collections import Counter
from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

KINDS = ("default", "wordpiece", "swapped", "bytelevel", "untrimmed", "metaspace", "appended", "byte fallback")
"""The tokenizers of the tests: the default model's, and tiny ones."""
SENTENCES = (
    "The river bank flows past the old mill, and the miller counts his money.",
    "Money in the bank grows slowly; a river grows only after rain.",
    "Seven small boats wait at the bank for the morning tide.",
    "She cashed a cheque, bought bread, and walked home along the water.",
    "Ein kleiner Hund läuft über die Brücke, déjà vu à la façade.",
    "Don't count on it: 42 of the 97 lamps (and 3 bells) were broken!",
    "A low sun, a long road, no one there but the crows and the wind.",
)


BERT_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
"""The special tokens of `build_wordpiece` by their names in transformers."""


QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The words of Qwen2Tokenizer in transformers."""


def count_pieces(tokenizer: tokenizers.Tokenizer, continuation: str) -> Counter[str]:
    """Count all characters of `SENTENCES` and all word pieces up to six characters.

    `continuation` is prepended to pieces that do not start a word. Vocabularies are built from these counts because
    tokenizer trainers order ties at random, so every run would test a different model.
    """
    pieces: Counter[str] = Counter()
    for sentence in SENTENCES:
        text = sentence if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(sentence)
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            starts = range(len(word))
            pieces.update(
                (continuation if start else "") + word[start:stop]
                for start in starts
                for stop in range(start + 1, min(start + 7, len(word) + 1))
            )
    return pieces


def select_pieces(counts: Counter[str], characters: Iterable[str], size: int) -> list[str]:
    """Return all characters, then the most frequent longer pieces, in a reproducible order."""
    required = sorted(characters)
    frequent = sorted(counts.keys() - required, key=lambda piece: (-counts[piece] * len(piece), piece))
    return [*required, *frequent][:size]


def build_wordpiece() -> tokenizers.Tokenizer:
    """Return a BERT-like tokenizer with the truncation and padding settings that sentence-transformers saves."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    counts = count_pieces(tokenizer, "##")
    alphabet = {piece.removeprefix("##") for piece in counts if len(piece.removeprefix("##")) == 1}
    characters = {prefix + character for character in alphabet for prefix in ("", "##")}
    vocabulary = [*special, *select_pieces(counts, characters, 211 - len(special))]
    tokenizer.model = models.WordPiece({piece: index for index, piece in enumerate(vocabulary)}, unk_token="[UNK]")
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(length=7)
    return tokenizer


def build_swapped() -> tokenizers.Tokenizer:
    """Return a BERT-like tokenizer that puts the second text of a pair first."""
    tokenizer = build_wordpiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:1 $B:1 [SEP]:0 [SEP]:1 $A:0",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def train_bytelevel(trim_offsets: bool = True) -> tokenizers.Tokenizer:
    """Train a RoBERTa-like tokenizer."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=331,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=trim_offsets, add_prefix_space=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def build_metaspace() -> tokenizers.Tokenizer:
    """Return a unigram tokenizer like in XLM-R and CamemBERT."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    counts = count_pieces(tokenizer, "")
    selected = select_pieces(counts, {piece for piece in counts if len(piece) == 1}, 151 - len(special))
    scores = [(piece, math.log(counts[piece] / counts.total())) for piece in selected]
    tokenizer.model = models.Unigram([*((piece, 0.0) for piece in special), *scores], special.index("<unk>"))
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def build_appended() -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer like Qwen3-Embedding's, which appends the padding token and prepends nothing."""
    tokenizer = tokenizers.Tokenizer.from_str(train_bytelevel().to_str())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="$A <pad>", pair="$A $B <pad>", special_tokens=[("<pad>", 1)]),
        ]
    )
    return tokenizer


def build_t5() -> tokenizers.Tokenizer:
    """Return a unigram tokenizer like T5's, which appends `</s>`."""
    tokenizer = tokenizers.Tokenizer.from_str(build_metaspace().to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    return tokenizer


def build_byte_fallback() -> tokenizers.Tokenizer:
    """Return a BPE tokenizer like Gemma's: spaces become U+2581, and unknown characters become bytes."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    characters = sorted({character for sentence in SENTENCES for character in sentence.replace(" ", "\u2581")})
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    merges = [("\u2581", "t"), ("t", "h"), ("\u2581t", "h"), ("e", "r"), ("a", "n"), ("an", "k"), ("b", "ank")]
    vocabulary = dict.fromkeys([*pieces, *("".join(merge) for merge in merges)])
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    tokenizer.model = models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> <bos>:1 $B:1 <eos>:1", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


BUILDERS = {
    "wordpiece": build_wordpiece,
    "swapped": build_swapped,
    "bytelevel": train_bytelevel,
    "untrimmed": lambda: train_bytelevel(trim_offsets=False),
    "metaspace": build_metaspace,
    "appended": build_appended,
    "t5": build_t5,
    "byte fallback": build_byte_fallback,
}
