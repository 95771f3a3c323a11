"""Gradients of parameters on their way into `.grad`: found by what autograd's nodes hand over, not by shapes.

A parameter that is used twice gets a gradient from each use and their sum before anything is put into `.grad`, and a
reducer may copy that elsewhere: none of it is ever seen in `.grad` itself. Knows autograd's graph, no model.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

_LEAF = "AccumulateGrad"
Told = Callable[[Iterable[Tensor]], None]


class GradientWatch:
    """Tells of every tensor that is, or becomes, the gradient of a parameter."""

    def __init__(self, told: Told) -> None:
        self.told = told
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
            places = [i for i, following in enumerate(nexts) if _is_leaf(following)]
            if places:
                self._handles.append(node.register_hook(self._hands_over(places, alone=len(nexts) == 1)))
            if _is_leaf(node):
                self._handles.append(node.register_prehook(self._flows_in))
            stack += nexts

    def _hands_over(self, places: list[int], alone: bool) -> Any:
        """Return a hook that reports the gradients that a node gives to parameters.

        With `alone`, a cast or a view of one parameter, it also reports the gradient that the node got and passes on.
        """

        def hook(given: Any, taken: Any) -> None:
            found = [given[i] for i in places if given[i] is not None]
            if alone and found:
                found += [one for one in taken if one is not None and one.numel() == found[0].numel()]
            self.told(found)

        return hook

    def _flows_in(self, gradients: Any) -> None:
        self.told(one for one in gradients if one is not None)


def _is_leaf(node: Any) -> bool:
    return node is not None and type(node).__name__ == _LEAF
