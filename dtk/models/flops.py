"""Training FLOPs per token of a transformer: the numerator of MFU."""


def training_flops_per_token(parameters: int, layers: int, width: int, sequence_length: int) -> int:
    """Return the FLOPs of forward and backward for one token, by PaLM's formula 6N + 12LHQT.

    Source: Chowdhery et al. 2022, "PaLM", appendix B. A multiply-add counts 2; backward counts twice the forward. Not
    counted: recomputation (activation checkpointing), norms, softmax, activation functions, the optimizer. Attention is
    counted over the full sequence, also where it is causal.

    Args:
        parameters: N, the parameters that a token is multiplied with: all of them, biases and norms included, without
            the lookup tables of tokens and positions, but with the output projection (tied weights count once, as it).
        layers: L, blocks.
        width: H * Q, heads times the width of a query head.
        sequence_length: T, tokens per sample.
    """
    return 6 * parameters + 12 * layers * width * sequence_length
