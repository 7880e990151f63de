"""Exception hierarchy: one sentence a user can act on, and an exit code.

Everything a user can cause is a GbactlError; any other escaping exception is a bug and shows a traceback.
"""

from __future__ import annotations


class GbactlError(Exception):
    """Failure that is explained in one sentence. Exit code 1."""

    exit_code = 1


class Stopped(BaseException):
    """Stop of the program by signal `number`.

    `told`: the outcome of what was stopped, as the second half of a sentence.
    """

    def __init__(self, number: int, told: str = "") -> None:
        super().__init__(number)
        self.number, self.told = number, told


class UsageError(GbactlError):
    """Command line or configuration that is wrong. Exit code 2."""

    exit_code = 2


class ConfigError(UsageError):
    """Configuration value, or combination of values, that cannot work."""


class DataError(GbactlError):
    """Input data that are missing, malformed or damaged; names file and line."""


class MissingDependencyError(GbactlError):
    """Optional library that is required here and not installed."""


class ClusterError(GbactlError):
    """Failure of a process of the run: died, hung or could not be started."""


class PeerGoneError(ClusterError):
    """Loss of another process of the run; that process reports its own failure."""


class DivergedError(GbactlError):
    """Divergence: parameters that are infinite or NaN."""


class NoRoomError(GbactlError):
    """Full disk; names what could not be written."""


class AccountingError(ClusterError):
    """Accounting violation: read = trained + decayed + lost does not hold."""


class WireError(GbactlError):
    """Frame that is malformed, not authenticated, or out of bounds."""


class TrackingError(GbactlError):
    """Tracking store that cannot be reached or created."""


class EventLogError(GbactlError):
    """Event log that is damaged or of another version."""


class TornLogError(EventLogError):
    """Event log that ends within a record."""


class CheckpointError(GbactlError):
    """Checkpoint that is torn, damaged, foreign or missing; names the file."""


class NotFiniteError(CheckpointError):
    """Checkpoint that contains infinities or NaN."""


def require(ok: bool, message: str) -> None:
    """Raise ConfigError with `message` unless ok."""
    if not ok:
        raise ConfigError(message)
