"""A run on this machine: starts the ranks, follows them, and writes the final status."""

import json
import os
import sys

from diagnostics.contract.artifacts import RunPaths, Status, complete_checkpoints, read_status
from diagnostics.contract.secrets import masked
from dtk.config.placement import Placement, own_threads
from dtk.config.schema import Config
from dtk.config.strict import to_plain
from dtk.errors import USER_ERROR
from dtk.launch.blame import find_failure, user_error
from dtk.launch.console import Console, Follower
from dtk.launch.elastic import ExitCodes, rank_environment, run_ranks
from dtk.launch.stopping import StopSignals
from dtk.launch.variables import rank_variables
from dtk.rank import job
from dtk.record.run_folder import begin, close


def launch(config: Config, paths: RunPaths, placement: Placement, attempt: int, console: Console) -> Status:
    """Run all ranks to their end and close the status; prints progress."""
    begin(paths, attempt)
    # If the user has set a number, each rank sets its threads itself, if configured.
    threads = 0 if own_threads() else placement.threads
    variables = rank_variables(config, paths, os.environ, threads=threads, one_machine=True)
    variables |= {job.DEVICE: placement.device, job.BACKEND: placement.backend, job.ATTEMPT: str(attempt)}
    if masked(plain := to_plain(config)) != plain:
        variables[job.CONFIG] = json.dumps(plain)
    with rank_environment(variables) as own_variables, StopSignals() as stop:
        for name, value in own_variables.items():
            console.line(f"your {name}={value} is kept")
        ended: ExitCodes = {}
        with Follower(paths, console, placement.nproc, attempt, ended, stop.repeat) as follower:
            try:
                restarts, port = config.launcher.max_restarts, config.launcher.master_port
                failed = run_ranks(paths, placement.nproc, attempt, restarts, port, ended)
            except Exception as error:
                close(paths, "failed", 1, reason=f"the launcher failed: {type(error).__name__}: {error}")
                raise
        last_attempt = follower.attempt
        exit_codes = ended.get(last_attempt, {}) if failed else {}
        failed_by_itself = any(code > 0 for code in exit_codes.values())  # Other ranks were asked to stop.
        if stop.signal_number is not None and (stop.twice or not failed_by_itself):
            return _stopped(paths, stop)
    if not exit_codes:
        return _ended_in_order(config, paths)
    return _failed(paths, placement, last_attempt, exit_codes)


def _ended_in_order(config: Config, paths: RunPaths) -> Status:
    """Handle the normal exit of all ranks; rank 0 wrote the status unless the disk was full."""
    status = read_status(paths.status)
    if status.state != "running":
        return status
    if config.checkpoint.at_end and paths.checkpoint(config.train.steps) not in complete_checkpoints(paths):
        reason = "the run folder could not be written at the end, and holds no checkpoint of the last step"
        return close(paths, "failed", 1, reason=reason)
    return close(paths, "finished", 0)


def _stopped(paths: RunPaths, stop: StopSignals) -> Status:
    """Write the status of a stopped run; rank 0 has written it if it had time."""
    assert stop.signal_number is not None
    status = read_status(paths.status)
    if status.state == "finished":
        return status
    # Rank 0 reports more, such as why there is no checkpoint, but knows only the parent's own signal.
    stated = status.reason if status.state == "preempted" else ""
    reason = "stopped at once, without a checkpoint" if stop.twice else stated or "stopped by a signal"
    return close(paths, "preempted", 128 + stop.signal_number, reason=reason)


def _failed(paths: RunPaths, placement: Placement, attempt: int, exit_codes: dict[int, int]) -> Status:
    """Write the status of a failed run: a user's error is one line, anything else names the first failed rank."""
    message = user_error(paths, attempt, placement.nproc)
    if message is not None:
        print(f"dtk: {message}", file=sys.stderr, flush=True)
        return close(paths, "failed", USER_ERROR, reason=message)
    failure, state = find_failure(paths, attempt, placement.nproc, exit_codes)
    return close(paths, state, 1, reason=failure.reason, failure=failure)
