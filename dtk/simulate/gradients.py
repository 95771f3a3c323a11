"""Gradients of parameters on their way into `.grad`: found by what autograd's nodes hand over, not by shapes."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor


class GradientWatch:
    """Reports every tensor that is, or becomes, the gradient of a parameter."""

    def __init__(self, report: Callable[[Iterable[Tensor]], None]) -> None:
        self.report = report
        self._handles: list[Any] = []

    def follow(self, output: Tensor) -> None:
        """Watch the graph behind a result until the next one is followed."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        stack, seen = [output.grad_fn], set()
        while stack:
            node: Any = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            nexts = [following for following, _ in node.next_functions]
            if leaves := [i for i, following in enumerate(nexts) if _is_leaf(following)]:
                self._handles.append(node.register_hook(partial(self._handed_over, leaves, len(nexts) == 1)))
            if _is_leaf(node):
                self._handles.append(node.register_prehook(partial(self._handed_over, None, False)))
            stack += nexts

    def _handed_over(self, leaves: list[int] | None, alone: bool, given: Any, taken: Any = ()) -> None:
        """Report the gradients that a node gives to `leaves`, or all that flow into a leaf (None)."""
        present = [g for i, g in enumerate(given) if g is not None and (leaves is None or i in leaves)]
        if alone and present:  # A cast or a view of one parameter: also what the node got and passes on.
            present += [g for g in taken if g is not None and g.numel() == present[0].numel()]
        self.report(present)


def _is_leaf(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"
