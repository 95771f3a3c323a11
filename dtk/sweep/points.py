"""A point of a sweep: its overrides, and its configuration, frozen when the sweep was composed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.contract.origins import at_launch, dumps, loads
from dtk.config.compose import Composed, expand
from dtk.config.resume import Resumed
from dtk.config.strict import from_plain
from dtk.errors import DtkError
from dtk.launch.prepare import compose_point, place_point

REPEATS = "repeats"  # Typed like an override, but belongs to the sweep: the number of runs of each point.
MOST_REPEATS = 100  # Chosen: more runs hardly reduce the intervals.
NO_RESUME = DtkError("resume= continues one run", "a sweep starts new ones", "use --resume to continue a sweep")


@dataclass(frozen=True, slots=True)
class Point:
    """One checked point with every key of its configuration."""

    index: int
    name: str
    """Name that distinguishes the point from the others: `strategy=ddp`."""
    overrides: list[str]
    """All overrides of the point, in Hydra's grammar."""
    config: dict[str, Any]
    """Resolved configuration, as in a run folder; empty for a proposed point that could not be composed."""
    values: dict[str, Any]
    """Parameter -> value proposed by the search; empty without a search."""
    origins: str
    """Which file or override set each key, in the form of origins.json."""
    earlier: str | None
    """The run folder whose configuration is used instead of conf/."""

    def thaw(self, sweep: str) -> Resumed:
        """Return the point as a separate run, as it was composed, even if conf/ has changed since.

        W&B groups its runs by the id of the `sweep`, unless another group was chosen. DtkError if the stored values do
        not fit this version of dtk.
        """
        try:
            origins = loads(self.origins.encode())
        except ValueError as error:
            raise DtkError(f"point {self.index + 1} of the sweep is damaged", str(error)) from error
        tracker = self.config.get("tracker") or {}
        grouped = {"group": sweep} if tracker.get("name") == "wandb" and not tracker.get("group") else {}
        plain = {**self.config, "tracker": {**tracker, **grouped}}
        composed = Composed(from_plain(plain), list(self.overrides), origins)
        return Resumed(composed, None, 0, None if self.earlier is None else Path(self.earlier))


def take_repeats(overrides: Sequence[str]) -> tuple[list[str], int]:
    """Return the overrides without `repeats=N`, and N (default 1); DtkError unless it is 1 to `MOST_REPEATS`."""
    rest = [text for text in overrides if not text.startswith(f"{REPEATS}=")]
    given = [text.partition("=")[2] for text in overrides if text.startswith(f"{REPEATS}=")]
    if not given:
        return rest, 1
    value = given[-1]
    if not value.isdecimal() or not 1 <= int(value) <= MOST_REPEATS:
        raise DtkError(f"{REPEATS}={value}", f"a sweep is repeated 1 to {MOST_REPEATS} times", f"write {REPEATS}=3")
    return rest, int(value)


def freeze(
    index: int,
    name: str,
    overrides: list[str],
    config_dir: Path | None,
    *,
    earlier: Path | None = None,
    values: dict[str, Any] | None = None,
    trust: bool = False,
) -> Point:
    """Compose and check one point as a run of its own; DtkError if the point cannot be launched."""
    composed = compose_point(overrides, config_dir, earlier, trust=trust)
    if composed.paths is not None:
        raise NO_RESUME
    settled = place_point(composed)[0].composed
    origins = dumps(at_launch(settled.origins, settled.plain))
    folder = None if earlier is None else str(earlier.absolute())
    return Point(index, name, list(overrides), settled.plain, values or {}, origins, folder)


def combinations(typed: Sequence[str], config_dir: Path | None) -> list[tuple[str, list[str]]]:
    """Return every combination of the lists that were typed: (what sets it apart, its overrides).

    Raises:
        DtkError: bad syntax, a glob that matches nothing, too many points.
    """
    points = expand(list(typed), config_dir)
    differs = [len(set(column)) > 1 for column in zip(*points)]
    return [(" ".join(text for text, differ in zip(point, differs) if differ), point) for point in points]
