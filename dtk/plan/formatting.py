"""Formats the figures of a plan other than bytes and seconds: rates, shares, counts."""


def rate_text(tokens_per_s: float) -> str:
    """Format as `412,000`, to three digits."""
    return f"{float(f'{tokens_per_s:.3g}'):,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"


def percent_text(part: float) -> str:
    """Format as `43.1%`, `19,792%`."""
    return f"{part:.1%}" if part < 10 else f"{part:,.0%}"


def flops_text(flops: float) -> str:
    """Format as `989 TFLOP/s`."""
    tera = flops / 10**12
    return f"{tera:.3g} TFLOP/s" if tera < 1000 else f"{tera:,.0f} TFLOP/s"


def count_text(count: float) -> str:
    """Format parameters or tokens/s as `1.56 B`, `124 M`, `812 k`."""
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale:
            value = count / scale
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{count:.3g}"
