"""The exception tree: one sentence a user can act on, and an exit code.

Everything a user can cause is a GbactlError; anything else that escapes is a bug and shows a traceback.
"""

from __future__ import annotations


class GbactlError(Exception):
    """A failure that is explained in one sentence. Exit code 1."""

    exit_code = 1


class Stopped(BaseException):
    """The end of what a signal stopped. `told`: what became of it, as the second half of a sentence."""

    def __init__(self, number: int, told: str = "") -> None:
        super().__init__(number)
        self.number, self.told = number, told


class UsageError(GbactlError):
    """The command line or the configuration is wrong. Exit code 2."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration value, or a combination of values, that cannot work."""


class DataError(GbactlError):
    """Input data that is missing, malformed or damaged; names file and line."""


class MissingDependencyError(GbactlError):
    """An optional library is asked for and is not installed."""


class ClusterError(GbactlError):
    """A process of the run died, hung or could not be started."""


class PeerGoneError(ClusterError):
    """Another process of the run is gone; what happened to it is that process's story."""


class DivergedError(GbactlError):
    """The parameters are no longer numbers."""


class NoRoomError(GbactlError):
    """A disk that is full; names what could not be written."""


class AccountingError(ClusterError):
    """read = trained + decayed + lost does not hold."""


class WireError(GbactlError):
    """A frame that is malformed, not authenticated, or out of bounds."""


class TrackingError(GbactlError):
    """The tracking store cannot be reached or created."""


class EventLogError(GbactlError):
    """An event log that is damaged or of another version."""


class TornLogError(EventLogError):
    """An event log that ends within a record."""


class CheckpointError(GbactlError):
    """A checkpoint that is torn, damaged, foreign or not there; names the file."""


class NotFiniteError(CheckpointError):
    """A checkpoint with infinities or NaN in it."""
