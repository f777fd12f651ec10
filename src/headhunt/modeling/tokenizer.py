"""Train a tokenizer on texts, for an encoder that is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, CLS, SEP = SPECIAL = ("[PAD]", "[CLS]", "[SEP]")


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Return a tokenizer whose tokens are learned from texts: lower case, byte-level BPE, pairs as BERT joins them.

    It has no unknown tokens, in any language. The same texts give the same tokenizer: training word pieces does not.

    Args:
        texts: The texts to learn from.
        vocabulary: Number of tokens at most; the 256 bytes and the special tokens are always among them.
    """
    tokenizer = Tokenizer(models.BPE())
    # Chinese characters become words of their own: whole clauses would take minutes.
    cleaned = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), cleaned])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (CLS, SEP)],
    )
    trained = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        cls_token=CLS,
        sep_token=SEP,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    trained.split_special_tokens = True  # as `load_tokenizer` has it: "[SEP]" in a user's text is ordinary text
    return trained
