"""Builds the C stub of libnvidia-ml.so.1, and says what its devices answer."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")


def build(folder: Path, *defines: str) -> Path:
    """The library, in a folder to put on LD_LIBRARY_PATH; skips where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stub of libnvidia-ml.so.1 with")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-w", "-Wl,-soname,libnvidia-ml.so.1", *(f"-D{name}" for name in defines)]
    subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True)
    return library


def load(library: Path) -> None:
    """Make the stub this process's libnvidia-ml.so.1: a later dlopen of that name finds what is loaded already.

    It answers "Driver Not Loaded" whenever NVML_STUB is not set, so other tests of this process see no GPU.
    """
    ctypes.CDLL(str(library))


def script(path: Path, **answers: object) -> Path:
    """Write what the devices answer: `script(path, devices=1, **{"0.throttle": 0x40})`."""
    path.write_text("".join(f"{key}={value}\n" for key, value in answers.items()))
    return path
