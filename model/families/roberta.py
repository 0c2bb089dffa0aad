"""RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020).

Positions are numbered from the padding id plus one, so the rows of the position table before that are unused. They are
dropped, and positions start at 0 as in every family.
"""

from model.encoder import EncoderConfig
from model.families import bert
from model.families.family import ROBERTA_CLASSIFIER, ConfigReader, Family, read_roberta_head


def first_position(config: ConfigReader) -> int:
    """Return the number of unused rows at the start of the position table."""
    return config.size("pad_token_id", 1, least=0) + 1


def read_config(config: ConfigReader) -> EncoderConfig:
    """Return the configuration."""
    return bert.read_config(config, first_position(config))


FAMILIES = tuple(
    Family(
        name,
        read_config,
        bert.NAMES,
        prefixes,
        bert.RENAMES,
        first_position=first_position,
        classifier=ROBERTA_CLASSIFIER,
        masked_lm=read_roberta_head,
    )
    for name, prefixes in {
        "roberta": ("", "roberta."),
        "xlm-roberta": ("", "roberta."),
        "camembert": ("", "roberta.", "camembert."),
    }.items()
)
