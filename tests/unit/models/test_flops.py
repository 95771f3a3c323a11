"""FLOPs per token by PaLM's formula."""

from dtk.models.flops import training_flops_per_token


def test_palm_540b_as_published() -> None:
    # Chowdhery et al. 2022, table 1 and appendix B: 118 layers, 48 heads of 256, 2,048 tokens.
    flops = training_flops_per_token(540_350_000_000, 118, 48 * 256, 2048)
    assert flops == 6 * 540_350_000_000 + 12 * 118 * 48 * 256 * 2048
    assert 0.01 < flops / (6 * 540_350_000_000) - 1 < 0.02, "attention adds little at that size"


def test_attention_grows_with_the_sequence_and_parameters_do_not() -> None:
    short, long = (training_flops_per_token(10**6, 4, 128, tokens) for tokens in (128, 1024))
    assert long - short == 12 * 4 * 128 * (1024 - 128)
