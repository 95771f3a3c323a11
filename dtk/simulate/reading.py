"""Code that needs the values of tensors cannot be simulated: says where it stands and what to do instead."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from dtk.errors import DtkError

_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


@contextmanager
def explained(model: str) -> Iterator[None]:
    """Turn what the model's own code raises into one line with file and line.

    Args:
        model: how the configuration names it.

    Raises:
        DtkError: the model reads values, or fails in its own code.
    """
    try:
        yield
    except DtkError:
        raise
    except Exception as error:
        place = _own_place(error)
        if place is None:
            raise
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            raise DtkError(
                f"{model} needs the values of a tensor at {place}",
                "a simulated step has shapes but no values, so it cannot branch on .item(), a truth value or nonzero()",
                "decide by shapes, or use torch.where in place of the branch; the closed form does not run the model",
            ) from error
        raise DtkError(f"{model} fails at {place}", f"{type(error).__name__}: {error}") from error


def _own_place(error: Exception) -> str | None:
    """File and line of the innermost frame that is neither torch's nor dtk's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*_OURS, "<")):
            return f"{frame.filename}:{frame.lineno}"
    return None
