"""`python -m dtk.doctor.rank BACKEND TIMEOUT_S`: one rank of the collectives, with RANK, MASTER_ADDR and the rest set.

Says that it lives before it imports torch.
"""

import sys

from dtk.orphan import run_child, tell


def main() -> None:
    """Try every collective."""
    tell(begin="importing torch")
    from dtk.doctor.collective_ranks import try_all

    try_all(sys.argv[1], float(sys.argv[2]))


if __name__ == "__main__":
    run_child(main)
