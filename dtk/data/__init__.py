"""What `data=` chooses: corpora, tokenizers and the stateless sampler."""
