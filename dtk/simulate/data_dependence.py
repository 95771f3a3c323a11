"""Reports code that needs the values of tensors and so cannot be simulated: its location, and the alternative."""

import inspect
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from diagnostics.contract.formatting import first_of
from dtk.errors import DtkError, Errors
from dtk.tasks.cross_entropy import logits_of

_errors = Errors(__file__)
_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_NO_GRADIENT = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_NAMED = 4  # Maximum number of parameters that a message names.
_READS = (DataDependentOutputException, DynamicOutputShapeException)


@contextmanager
def explained(model: str) -> Iterator[None]:
    """Convert errors of the model's code, a read of values or an exit included, into a DtkError with file and line."""
    try:
        yield
    except (DtkError, KeyboardInterrupt):
        raise
    except BaseException as error:
        # The innermost frame of user code, else of a library other than torch and dtk.
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
        if not frames:
            raise
        frame = ([frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        if isinstance(error, _READS) or ".numpy()" in str(error) or "call numpy()" in str(error):
            raise _errors("values", model=model, place=place) from error
        raise DtkError(f"{model} fails at {place}", f"{type(error).__name__}: {error}") from error


def check_answer(model: str, module: nn.Module, output: object) -> None:
    """Check that the loss can be computed from the output; DtkError at the line of forward if it has no logits."""
    try:
        logits_of(output)
    except DtkError as error:
        code = inspect.unwrap(type(module).forward).__code__
        what = f"{model} returns a {type(output).__name__} from forward at {code.co_filename}:{code.co_firstlineno}"
        raise DtkError(what, error.why, error.fix) from None


def check_gradients(model: str, module: nn.Module, error: RuntimeError) -> None:
    """Check for DDP's error on parameters without gradients, raised one step later; DtkError names the parameters."""
    match = _NO_GRADIENT.search(str(error))
    if match is None:
        return
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    without = [names[int(index)] for index in match[1].split() if int(index) < len(names)]
    raise _errors("no_gradient", model=model, without=first_of(without, _NAMED)) from error
