"""A thread that writes one file from pieces handed to it: training waits neither for the disk nor for the checksums.

Memory: the pieces handed over and not yet written; whoever hands them over sees how many wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gbactl.checkpoint.tensor_file import Layout, TensorFile, Written, not_finite
from gbactl.errors import NotFiniteError

Piece = Mapping[str, NDArray[Any]]


class Writing:
    """Begins at once, `pace` bytes a second (0: as fast as can be). What goes wrong is told at the end, in `error`;
    nothing is left of the file then. `finite`: no infinity and no NaN was found; with one, there is no file.

    `inline`: everything is written within `end`, in no other thread, and held until then. `spare`: see TensorFile."""

    def __init__(
        self, path: Path, layout: Layout, told: Mapping[str, str], pace: float = 0.0, inline: bool = False,
        spare: int = 0,
    ) -> None:  # fmt: skip
        self.path, self._layout, self._told, self._spare = path, layout, told, spare
        self.pace = 0.0 if inline else pace
        self.written: Written | None = None
        self.error = ""
        self.finite = True
        self.seconds = 0.0
        self._began = time.monotonic()
        self._given_up = self._ended = False
        self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # a piece was taken, or there is no rest any more
        self._thread = None if inline else threading.Thread(target=self._run, name="checkpoint", daemon=True)
        if self._thread is not None:
            self._thread.start()

    @property
    def waiting(self) -> int:
        """Pieces handed over and not yet begun."""
        return self._pieces.qsize()

    def add(self, piece: Piece) -> None:
        """Hand over a piece."""
        self._pieces.put(piece)

    def wait(self, most: int) -> None:
        """Until at most so many pieces wait."""
        if self._thread is not None:
            with self._changed:
                self._changed.wait_for(lambda: self.waiting <= most)

    def hurry(self) -> None:
        """As fast as can be from now on."""
        with self._changed:
            self.pace = 0.0
            self._changed.notify_all()

    def end(self) -> None:
        """That was the last piece."""
        self._pieces.put(None)
        if self._thread is None:
            self._run()

    @property
    def over(self) -> bool:
        """The file is on the disk, or will never be."""
        return self.written is not None or bool(self.error)

    def give_up(self) -> None:
        """Nobody wants it any more; comes back when nothing of it is left."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
        self._pieces.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:  # told to the coordinator; training goes on
            for _ in self._handed():  # whoever hands over pieces must not wait for ever
                pass
            self.finite = not isinstance(error, NotFiniteError)
            why = f"{self.path} could not be written ({getattr(error, 'strerror', None) or error})"
            self.error = why if self.finite else str(error)

    def _handed(self) -> Iterator[Piece]:
        while not self._ended:
            piece = self._pieces.get()
            with self._changed:
                self._changed.notify_all()
            if piece is None:
                self._ended = True
            else:
                yield piece

    def _rest(self, written: int) -> None:
        """Writing takes processor time from training: not more of it at a time than the pace allows."""
        with self._changed:
            if self.pace > 0:
                left = written / self.pace - (time.monotonic() - self._began)
                self._changed.wait_for(lambda: self._given_up or self.pace <= 0, max(0.0, left))

    def _write(self) -> None:
        file: TensorFile | None = None
        try:
            file = TensorFile(self.path, self._layout, self._told, self._spare)
            for piece in self._handed():
                if self._given_up:
                    break
                for name, values in piece.items():
                    file.add(name, values)
                if file.not_finite:
                    raise not_finite(self.path, file.not_finite)
                self._rest(file.bytes)
            if self._given_up:
                raise OSError("it was given up")
            written = file.finish()
        except BaseException:
            if file is not None:
                file.discard()
            raise
        self.seconds = time.monotonic() - self._began
        self.written = written
