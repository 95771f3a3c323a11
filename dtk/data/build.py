"""`build_dataset`: from the section `data` of the configuration to a dataset."""

from diagnostics.contract.invocation import command
from dtk.config.schema import (
    ClassificationData,
    CustomData,
    DataConfig,
    HFData,
    StdlibData,
    SyntheticData,
    TextData,
    TokensData,
)
from dtk.data.classification import classification_dataset
from dtk.data.corpus import stdlib_corpus, text_corpus
from dtk.data.custom import custom_dataset
from dtk.data.dataset import Dataset
from dtk.data.hf import hf_tokens
from dtk.data.language import language_dataset
from dtk.data.synthetic import synthetic_dataset
from dtk.data.tokenizer import build_tokenizer
from dtk.data.tokens import Tokens, corpus_tokens, token_file
from dtk.errors import DtkError


def build_dataset(config: DataConfig, allow_targets: list[str] | None = None) -> Dataset:
    """Build the dataset of this configuration; tokenised text comes from the cache after the first time.

    Args:
        config: the section `data`.
        allow_targets: import paths, or prefixes ending in `.*`, that its `_target_` may name.

    Raises:
        DtkError: whatever is wrong with path, content, sizes, tokenizer or optional packages.
    """
    if config.sequence_length < 1 or not 0 <= config.validation_fraction < 1:
        raise DtkError(
            f"data.sequence_length={config.sequence_length} data.validation_fraction={config.validation_fraction}",
            "a sample has at least one token, and a fraction is at least 0 and below 1",
        )
    if isinstance(config, SyntheticData):
        return synthetic_dataset(config)
    if isinstance(config, CustomData):
        return custom_dataset(config, allow_targets or [])
    if isinstance(config, ClassificationData):
        return classification_dataset(config)
    return language_dataset(config, _tokens(config))


def _tokens(config: DataConfig) -> Tokens:
    if isinstance(config, StdlibData):
        return corpus_tokens(stdlib_corpus(config.max_bytes), build_tokenizer(config.tokenizer))
    if isinstance(config, TextData):
        return corpus_tokens(text_corpus(config.path), build_tokenizer(config.tokenizer))
    if isinstance(config, HFData):
        return hf_tokens(config, build_tokenizer(config.tokenizer))
    if isinstance(config, TokensData):
        return token_file(config)
    raise DtkError(f"unknown data {config.name!r}", fix=f"{command('run', '--help')} lists the choices")
