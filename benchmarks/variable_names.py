"""How similar a mistyped environment variable is to the one that was meant, and two real ones to each other.

python benchmarks/variable_names.py [--seed S]

Names of the catalogue, without their prefix, by the measure of `rules_values.meant_by`. `one letter`, `two letters`: of
names with so many letters dropped, doubled, replaced, swapped or inserted, the share that is found at this similarity.
`real names`: the share of names that another one resembles as much. One that only a later release has would be taken
for a misspelling as often.
"""

import argparse
import random
from difflib import SequenceMatcher

from diagnostics.analysis.environment.catalogue import catalogue

SIMILARITIES = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"
MOST = 200


def mistyped(word: str, draw: random.Random) -> str:
    """Return the word with one mistake."""
    at = draw.randrange(len(word))
    before, letter, after = word[:at], word[at], word[at + 1 :]
    other = draw.choice(LETTERS)
    swapped = before + after[:1] + letter + after[1:]
    return draw.choice(
        [before + after, before + 2 * letter + after, before + other + after, swapped, before + other + letter + after]
    )


def best(word: str, names: list[str]) -> tuple[float, str]:
    """Return the similarity and the name most similar to a word."""
    return max((SequenceMatcher(None, word, name).ratio(), name) for name in names)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    draw = random.Random(parser.parse_args().seed)
    book = catalogue()
    print("| names of | similarity | one letter | two letters | real names |\n|---|---|---|---|---|")
    for label, expected in (("NCCL", [*book.nccl, *book.legacy]), ("torch", [*book.torch])):
        words = sorted({name.partition("_")[2] for name in expected})
        chosen = draw.sample(words, min(MOST, len(words)))
        result: list[list[float]] = [[], []]
        for word in chosen:
            once = mistyped(word, draw)
            for scores, wrong in zip(result, (once, mistyped(once, draw)), strict=True):
                score, meant = best(wrong, words)
                scores += [score if meant == word else 0.0] * (wrong not in words)
        result.append([best(word, [name for name in words if name != word])[0] for word in chosen])
        for least in SIMILARITIES:
            shares = (sum(score >= least for score in scores) / len(scores) for scores in result)
            print(f"| {label} | {least} | {' | '.join(f'{share:.0%}' for share in shares)} |")


if __name__ == "__main__":
    main()
