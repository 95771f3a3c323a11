"""One 64-bit mixing function, the source of everything pseudo-random in the data."""

import numpy as np

_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix64(values: np.ndarray) -> np.ndarray:
    """Apply the finaliser of SplitMix64 (Steele, Lea & Flood 2014), a bijection of uint64 that spreads every bit."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
