"""Data that `data=` selects: corpora, tokenizers and the stateless sampler."""
