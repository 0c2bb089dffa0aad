"""Tokenization, shared by training and serving. Independent of torch.

Three differences from a bare `tokenizers.Tokenizer`:
- Truncation and padding settings in tokenizer.json are ignored. Callers truncate explicitly and can see the result.
- Text does not produce special tokens, even if it spells `[CLS]` or `</s>`, unless `special_tokens_in_text` is set.
  The model's own prompts do.
- Offsets exclude whitespace around a token. Tokenizers of different families disagree on this.
"""

import json
import re
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import pre_tokenizers

from model.encodings import Encoding, PairTemplate, ProcessedEncoding, TemplateEncoding, TokenIdsEncoding
from model.tokenized_input import NO_SEGMENT, TokenizedInput, TokenizerInput

RARE_TEXTS = ("a" * 2000, "\U00012000 \U00013000 \U00010380 \ua66e")
"""Texts of one long word, and of letters that few vocabularies have: a tokenizer with an unknown token produces it."""
MAX_TOKEN_ID = 2**24
"""No vocabulary is larger. The library loops over all ids up to the largest."""


class Tokenizer:
    """A tokenizer loaded from tokenizer.json; thread-safe."""

    def __init__(
        self,
        definition: bytes,
        spelled_token: int | None = None,
        *,
        special_tokens_in_text: bool = False,
        prompts: Iterable[str] = (),
    ) -> None:
        """Load a tokenizer.

        Args:
            definition: The contents of tokenizer.json.
            spelled_token: The id of a special token to recognize in texts, such as the mask.
            special_tokens_in_text: Whether to recognize all special tokens in texts, as transformers does.
            prompts: The model's own prompts, in which special tokens are recognized.
        """
        if spelled_token is not None:
            definition = _mark_as_text(definition, spelled_token)
        self._tokenizer = tokenizers.Tokenizer.from_str(definition.decode())
        check_template(self._tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        sample = self._tokenizer.encode_batch(["a"])[0]
        content = [index for index, flag in enumerate(sample.special_tokens_mask) if not flag]
        if not content:
            raise ValueError("tokenizer: produces no token for the text 'a'")
        self._prefix = sample.ids[: content[0]]
        self._suffix = sample.ids[content[-1] + 1 :]
        self._content_type = sample.type_ids[content[0]]
        special = self._tokenizer.get_added_tokens_decoder().values()
        self._special_texts = tuple(token.content for token in special if token.special and token.content)
        self._special_tokens_in_text = special_tokens_in_text
        self._prompts: frozenset[str] = frozenset()
        self._with_special_tokens = self._tokenizer
        if not special_tokens_in_text:
            self._prompts = frozenset(prompt for prompt in prompts if self._spells_special_token(prompt))
            if self._prompts:
                self._with_special_tokens = tokenizers.Tokenizer.from_str(write_definition(self._tokenizer))
            # Only the post-processor may add special tokens; text that spells them is tokenized as text.
            self._tokenizer.encode_special_tokens = True
            self._split_spelled_special_tokens()

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def token_type_ids(self) -> set[int]:
        """The type ids of texts and of pairs."""
        return {number for encoding in self._tokenizer.encode_batch(["a", ("a", "a")]) for number in encoding.type_ids}

    def find_input_tokens(self) -> dict[int, str]:
        """Return the tokens that texts, pairs and the model's own prompts can contain, by id.

        Some tokenizers have special tokens of other tasks, such as images, which no text contains: they may lie beyond
        the embedding table of the model.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        special = {number: token.content for number, token in added.items() if token.special}
        texts = [*RARE_TEXTS, *special.values()]
        encodings = [*self._tokenizer.encode_batch(["a", ("a", "a")])]
        encodings += self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        seen = {number for encoding in encodings for number in encoding.ids}
        unused = set() if self._special_tokens_in_text else special.keys() - seen
        unused -= {number for number in unused if any(special[number] in prompt for prompt in self._prompts)}
        tokens = {number: text for text, number in self._tokenizer.get_vocab().items() if number not in unused}
        return dict.fromkeys(seen, "") | tokens

    def _spells_special_token(self, text: str) -> bool:
        return any(content in text for content in self._special_texts)

    def _split_spelled_special_tokens(self) -> None:
        """Split the spelling of special tokens that are also pieces of the vocabulary, such as `</s>` in a unigram."""
        special = {
            number: token for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        }
        spelled = [
            f"{re.escape(token.content[0])}(?={re.escape(token.content[1:])})"
            for number, token in special.items()
            if len(token.content) > 1
            and number in self._tokenizer.encode_batch([token.content], add_special_tokens=False)[0].ids
        ]
        if spelled:
            split = pre_tokenizers.Split(tokenizers.Regex("|".join(spelled)), "merged_with_previous")
            existing = self._tokenizer.pre_tokenizer
            self._tokenizer.pre_tokenizer = split if existing is None else pre_tokenizers.Sequence([existing, split])

    def encode(self, sources: Sequence[TokenizerInput], *, offsets: bool = True) -> list[TokenizedInput]:
        """Return the untruncated tokens of each input.

        `offsets=False` is 20 % faster and makes all offsets (0, 0), unless an input has a prompt.
        """
        plain: list[str | tuple[str, str]] = []
        for source in sources:
            if source.token_ids is None and source.prompt not in self._prompts:
                text = source.prompt + source.text
                plain.append(text if source.pair is None else (text, source.pair))
                offsets = offsets or source.prompt != ""  # the end of the prompt is known by its offsets
        # encode_batch even for one text: encode does not release the GIL.
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        encodings = iter(encode(plain) if plain else ())
        tokenized = []
        for source in sources:
            encoding: Encoding
            if source.token_ids is not None:
                encoding = self._add_special_tokens(source.token_ids)
            elif source.prompt in self._prompts:
                first, second = self._encode_with_prompt(source.prompt, source.text), None
                if source.pair is not None:
                    (second,) = self._tokenizer.encode_batch([source.pair], add_special_tokens=False)
                texts = (first,) if second is None else (first, second)
                encoding = ProcessedEncoding(self._tokenizer.post_process(first, second), *texts)
            else:
                encoding = next(encodings)
            tokenized.append(TokenizedInput(source, encoding))
        return tokenized

    def _encode_with_prompt(self, prompt: str, text: str) -> tokenizers.Encoding:
        """Return the encoding of one of the model's prompts, in which special tokens are recognized, and a text."""
        if not self._spells_special_token(text):
            (encoding,) = self._with_special_tokens.encode_batch([prompt + text], add_special_tokens=False)
            return encoding
        end = max(prompt.rfind(content) + len(content) for content in self._special_texts if content in prompt)
        (first,) = self._with_special_tokens.encode_batch([prompt[:end]], add_special_tokens=False)
        (rest,) = self._tokenizer.encode_batch([prompt[end:] + text], add_special_tokens=False)
        return tokenizers.Encoding.merge([first, rest], growing_offsets=True)

    def encode_pairs(
        self, text: str, pairs: Sequence[str], *, prompt: str = "", offsets: bool = True
    ) -> list[TokenizedInput]:
        """Return the untruncated tokens of a text with each of several others; the text is tokenized once.

        `prompt` is prepended to the text. `offsets` is as in `encode`.
        """
        encode = self._tokenizer.encode_batch if offsets or prompt else self._tokenizer.encode_batch_fast
        if prompt in self._prompts:
            first = self._encode_with_prompt(prompt, text)
        else:
            (first,) = encode([prompt + text], add_special_tokens=False)
        others = encode([*pairs], add_special_tokens=False)
        return [
            TokenizedInput(
                TokenizerInput(text, pair, prompt=prompt),
                ProcessedEncoding(self._tokenizer.post_process(first, other), first, other),
            )
            for pair, other in zip(pairs, others, strict=True)
        ]

    def encode_template(self, template: PairTemplate, query: str, documents: Sequence[str]) -> list[TokenizedInput]:
        """Return the untruncated tokens of a query with each of several documents, in a template."""
        texts = [template.fill(query, document) for document in documents]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            TokenizedInput(TokenizerInput(query, document), TemplateEncoding(encoding, template, query, document))
            for document, encoding in zip(documents, encodings, strict=True)
        ]

    def token_texts(self, tokens: TokenizedInput) -> list[str]:
        """Return the slice of the text that each token covers, or the vocabulary entry of tokens without offsets."""
        texts = (tokens.source.text, tokens.source.pair or "")
        from_ids = tokens.source.token_ids is not None
        return [
            self._tokenizer.id_to_token(number) or ""
            if from_ids or segment == NO_SEGMENT
            else texts[segment][start:end]
            for number, segment, (start, end) in zip(tokens.input_ids, tokens.segment, tokens.offsets, strict=True)
        ]

    @property
    def leading_special_tokens(self) -> int:
        """The number of special tokens before a text."""
        return len(self._prefix)

    def find_token(self, text: str) -> list[int]:
        """Return the id of a text that is an entry of the vocabulary, else the ids of its tokens."""
        number = self._tokenizer.token_to_id(text)
        if number is not None:
            return [number]
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def vocabulary_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the vocabulary entry of each id; an empty text for an id without one."""
        return [self._tokenizer.id_to_token(number) or "" for number in token_ids]

    def _add_special_tokens(self, token_ids: Sequence[int]) -> Encoding:
        before, after = len(self._prefix), len(self._suffix)
        size = before + len(token_ids) + after
        return TokenIdsEncoding(
            ids=[*self._prefix, *token_ids, *self._suffix],
            type_ids=[self._content_type] * size,
            special_tokens_mask=[1] * before + [0] * len(token_ids) + [1] * after,
            sequence_ids=[None] * before + [0] * len(token_ids) + [None] * after,
            offsets=[(0, 0)] * size,
        )


def write_definition(tokenizer: tokenizers.Tokenizer) -> str:
    """Return the contents of tokenizer.json. Raises ValueError for an id for which the library would loop for hours."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest > MAX_TOKEN_ID:
        raise ValueError(f"tokenizer.json: token id too large ({largest}, limit {MAX_TOKEN_ID})")
    return str(tokenizer.to_str())


def check_template(tokenizer: tokenizers.Tokenizer) -> None:
    """Raise ValueError for a template with a special token that it does not define, for which the library panics."""
    processor = json.loads(tokenizer.post_processor.__getstate__()) if tokenizer.post_processor else {}
    for step in (processor, *processor.get("processors", ())):
        if step.get("type") == "TemplateProcessing":
            pieces = [piece["SpecialToken"]["id"] for piece in step["single"] + step["pair"] if "SpecialToken" in piece]
            missing = next((piece for piece in pieces if piece not in step["special_tokens"]), None)
            if missing is not None:
                raise ValueError(f"post_processor: special token not defined ({missing!r:.80})")


def _mark_as_text(definition: bytes, token_id: int) -> bytes:
    """Return a tokenizer.json in which an added token is not special."""
    values = json.loads(definition)
    for token in values["added_tokens"]:
        if token["id"] == token_id:
            token["special"] = False
    return json.dumps(values).encode()
