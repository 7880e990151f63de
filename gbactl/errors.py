"""Exception hierarchy: every error is one sentence that a user can act on, with an exit code.

Everything a user can cause is a GbactlError; any other escaping exception is a bug and shows a traceback.
"""

from __future__ import annotations


class GbactlError(Exception):
    """Failure explained by one sentence; exit code 1."""

    exit_code = 1


class Stopped(BaseException):
    """Raised when signal `number` stops the program.

    `outcome`: that of what was stopped, as the second half of a sentence; OVER if a training had finished.
    """

    OVER = "the training had come to its end"

    def __init__(self, number: int, outcome: str = "") -> None:
        super().__init__(number)
        self.number, self.outcome = number, outcome


class UsageError(GbactlError):
    """Error in the command line or configuration; exit code 2."""

    exit_code = 2


class ConfigError(UsageError):
    """Invalid configuration value, or combination of values."""


class OwnCodeError(GbactlError):
    """Failure of a class of the user's during training: a process started again would fail by it, too."""


class DataError(GbactlError):
    """Input data that are missing, malformed or damaged; the sentence names file and line."""


class MissingDependencyError(GbactlError):
    """Optional library that is needed here and not installed."""


class ClusterError(GbactlError):
    """Failure of a process of the run, which died, hung or could not be started."""


class PeerGoneError(ClusterError):
    """Error of a process that only noticed another process's failure; the run reports the cause of that failure."""


class DivergedError(GbactlError):
    """Divergence of training: parameters that are infinite or NaN."""


class NoRoomError(GbactlError):
    """Full disk; the sentence names what could not be written."""


class AccountingError(ClusterError):
    """Accounting violation: read = trained + decayed + lost does not hold."""


class WireError(GbactlError):
    """Frame that is malformed, not authenticated, or out of bounds."""


class TrackingError(GbactlError):
    """Tracking store that cannot be reached or created."""


class EventLogError(GbactlError):
    """Event log that is damaged or of another version."""


class TornLogError(EventLogError):
    """Event log that ends within a record, as after a crash."""


class CheckpointError(GbactlError):
    """Checkpoint that is incomplete, damaged, of another run, or missing; the sentence names the file."""


class NotFiniteError(CheckpointError):
    """Checkpoint with infinities or NaN."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the error's type if the text is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def require(ok: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `ok`."""
    if not ok:
        raise ConfigError(message)
