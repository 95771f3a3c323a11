"""Verification of a checkpoint's files against their recorded sizes and checksums, without torch."""

import shlex
import zlib
from pathlib import Path

from diagnostics.contract.artifacts import CHECKPOINT_INFO, RunPaths, complete_checkpoints
from diagnostics.contract.files import open_regular, read_json
from dtk.errors import DtkError

BUDGET_BYTES = 4 << 30
"""About 3 s of one core (CRC-32 at 1.4 GB/s): all of GPT-2 medium with AdamW, a sample of larger checkpoints."""
_BLOCK_BYTES = 1 << 20  # Bytes per read; larger blocks are not faster.


def describe_files(folder: Path) -> dict[str, dict[str, int]]:
    """Return size, checksum and block stride of each file but checkpoint.json; OSError if one cannot be read."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CHECKPOINT_INFO)
    sizes = {path: path.stat().st_size for path in files}
    share = max(1.0, sum(sizes.values()) / BUDGET_BYTES)
    stride_bytes = round(_BLOCK_BYTES * share)
    return {
        path.name: {"size_bytes": size, "crc32": _crc32(path, size, stride_bytes), "stride_bytes": stride_bytes}
        for path, size in sizes.items()
    }


def refuse_damaged(folder: Path) -> None:
    """Compare a checkpoint's files with their records; DtkError if they differ, with how to continue without it."""
    try:
        files = read_json(folder / CHECKPOINT_INFO).get("files", {})
        # An untrusted record may name files elsewhere, or request every block of a sparse file of terabytes.
        stride_bytes = _BLOCK_BYTES * sum(written["size_bytes"] for written in files.values()) // BUDGET_BYTES
        for name, written in files.items():
            path, size_bytes = folder / Path(name).name, written["size_bytes"]
            if not path.exists():
                raise damaged(folder, f"{path.name} is missing")
            if (size := path.stat().st_size) != size_bytes:
                raise damaged(folder, f"{path.name} has {size:,} bytes instead of {size_bytes:,}")
            if _crc32(path, size, max(written["stride_bytes"], stride_bytes)) != written["crc32"]:
                raise damaged(folder, f"{path.name} differs from what was written (CRC-32)")
    except OSError as error:
        raise damaged(folder, f"{Path(error.filename or CHECKPOINT_INFO).name}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(folder, f"{CHECKPOINT_INFO} is not what dtk wrote") from error


def damaged(folder: Path, why: str) -> DtkError:
    """Return the error for a checkpoint that cannot be used, with advice on how to continue without it."""
    earlier = [step for step in complete_checkpoints(RunPaths(folder.parent.parent)) if step.name < folder.name]
    instead = f"to continue from {earlier[-1].name}" if earlier else "to start again from step 1: it is the only one"
    fix = f"remove it {instead}: rm -r {shlex.quote(str(folder))}"
    return DtkError(f"the checkpoint {folder} is damaged", why, fix)


def _crc32(path: Path, size: int, stride_bytes: int) -> int:
    """Return the checksum of one block in every `stride_bytes` bytes."""
    checksum = 0
    with open_regular(path) as file:
        for offset in range(0, size, max(stride_bytes, _BLOCK_BYTES)):  # A small stride would read blocks repeatedly.
            file.seek(offset)
            checksum = zlib.crc32(file.read(_BLOCK_BYTES), checksum)
    return checksum
