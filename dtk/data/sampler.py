"""Which samples a step trains on: a pure function of seed, step and index, with no state to save.

Each epoch is a keyed permutation of the samples: a Feistel network over the next power of two, with cycle walking for
values out of range (Black & Rogaway 2002, "Ciphers with arbitrary finite domains").
"""

import hashlib
from functools import lru_cache

import numpy as np

STEP = np.uint64(0x9E3779B97F4A7C15)  # Increment of SplitMix64.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ROUNDS = 4  # Of the Feistel network; 4 make a strong pseudorandom permutation (Luby and Rackoff 1988).
_BIT = np.uint64(1)
_BLOCK = 2048  # Number of positions that are permuted at a time.


def mix64(values: np.ndarray) -> np.ndarray:
    """Apply the finaliser of SplitMix64 (Steele, Lea & Flood 2014), a bijection of uint64 that spreads every bit."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def sample_ids(seed: int, step: int, global_batch_size: int, size: int) -> np.ndarray:
    """Return the ids of the global batch of one step, int64 [global_batch_size], in [0, size), in the order of a seed.

    Sample i of the batch has position step * global_batch_size + i; epoch = position // size. Every epoch contains
    every id once, in its own order. A batch may extend into the next epoch. Time and memory are O(global_batch_size),
    whatever the size: ids are made for a block of steps, as numpy's fixed cost per call is most of a small batch's.
    """
    steps = max(1, min(_BLOCK, size) // global_batch_size)  # At most one epoch of tiny data: each has its own keys.
    block, within = divmod(step, steps)
    ids = _ids(seed, block * steps * global_batch_size, steps * global_batch_size, size)
    return ids[within * global_batch_size : (within + 1) * global_batch_size]


def evaluation_ids(seed: int, count: int, size: int) -> np.ndarray:
    """Return the held-out sample ids of every evaluation of a run, int64 [count], distinct, in [0, size)."""
    return permute(np.arange(count, dtype=np.int64), size, f"{seed}/held out")


@lru_cache(maxsize=2)
def _ids(seed: int, first: int, count: int, size: int) -> np.ndarray:
    """Return the ids at positions first to first + count, int64 [count], read-only."""
    ids = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        epoch, offset = divmod(first + done, size)
        part = min(count - done, size - offset)
        positions = np.arange(offset, offset + part, dtype=np.int64)
        ids[done : done + part] = permute(positions, size, f"{seed}/{epoch}")
        done += part
    ids.flags.writeable = False
    return ids


def samples_sum(step: int, ids: np.ndarray) -> int:
    """Return the sum of the mixed (step, sample id) pairs as int64; it does not depend on their order.

    Sums over ranks and steps can be added (modulo 2^64), so runs that trained on the same samples in the same steps
    have the same sum, however the samples were distributed.
    """
    with np.errstate(over="ignore"):
        mixed = mix64(mix64(ids.astype(np.uint64)) + np.uint64(step) * STEP)
    return int(mixed.sum(dtype=np.uint64).astype(np.int64))


def permute(positions: np.ndarray, size: int, key: str) -> np.ndarray:
    """Return the image of each position under the permutation of range(size) with this key, int64, same shape."""
    bits = max(2, (size - 1).bit_length())
    keys = _round_keys(key)
    images = _feistel(positions.astype(np.uint64), bits, keys)
    # The network permutes a power of two: follow its cycle until the value is in range.
    outside = np.flatnonzero(images >= size)
    while outside.size:
        walked = _feistel(images[outside], bits, keys)
        images[outside] = walked
        outside = outside[walked >= size]
    return images.astype(np.int64)


def _feistel(values: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """Apply a bijection of [0, 2**bits), uint64; the halves may differ by a bit and swap widths every round."""
    left_bits, right_bits = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    left, right = values >> right_bits, values & ((_BIT << right_bits) - _BIT)
    for key in keys:
        mixed = mix64(right ^ key) & ((_BIT << left_bits) - _BIT)
        left, right = right, left ^ mixed
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right


@lru_cache(maxsize=16)
def _round_keys(key: str) -> np.ndarray:
    digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
