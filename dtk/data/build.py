"""Construction of a dataset from the `data` section of the configuration, and checks that it fits the model."""

from torch.utils.data import Dataset as TorchDataset

from dtk.config import schema
from dtk.config.instantiate import instantiate
from dtk.data.classification import classification_dataset
from dtk.data.corpus import stdlib_corpus, text_corpus
from dtk.data.custom import CustomDataset
from dtk.data.dataset import Dataset, SyntheticDataset
from dtk.data.hf import hf_tokens
from dtk.data.tokenizer import build_tokenizer
from dtk.data.tokens import LanguageDataset, corpus_tokens, token_file
from dtk.errors import Errors

_errors = Errors(__file__)


def build_dataset(config: schema.DataConfig, allow_targets: list[str] | None = None) -> Dataset:
    """Build the configured dataset; tokenised text is cached; DtkError if the data or a package cannot be used."""
    good = config.sequence_length >= 1 and 0 <= config.validation_fraction < 1
    _errors.refuse({"section": not good}, data=config)
    if isinstance(config, schema.SyntheticData):
        return SyntheticDataset(config)
    if isinstance(config, schema.CustomData):
        samples = instantiate(config._target_, config.arguments, allow_targets or [], TorchDataset)
        return CustomDataset(config, samples)
    if isinstance(config, schema.ClassificationData):
        return classification_dataset(config)
    if isinstance(config, schema.StdlibData):
        tokens = corpus_tokens(stdlib_corpus(config.max_bytes), build_tokenizer(config.tokenizer))
    elif isinstance(config, schema.TextData):
        tokens = corpus_tokens(text_corpus(config.path), build_tokenizer(config.tokenizer))
    elif isinstance(config, schema.HFData):
        tokens = hf_tokens(config, build_tokenizer(config.tokenizer))
    else:
        assert isinstance(config, schema.TokensData)
        tokens = token_file(config)
    return LanguageDataset(config, tokens)


def check_dataset(config: schema.Config, dataset: Dataset) -> None:
    """Reject data that does not fit the model or the batch; called in the parent, before any rank starts.

    DtkError if it has more token ids or classes than the model, or fewer samples than a batch.
    """
    model, batch, classes = config.model, config.train.global_batch_size, getattr(config.model, "classes", None)
    rules = {
        "vocabulary": dataset.vocab_size > model.vocab_size,
        "classes": dataset.classes is not None and classes is not None and dataset.classes > classes,
        "samples": dataset.train_size < batch,
    }
    _errors.refuse(rules, model=model, data=dataset, classes=classes, batch=batch)
