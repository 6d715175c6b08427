"""A folder that is replaced in one step, on disk or in object storage: a reader, and the command after a killed one,
finds the old content or the new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raygpu.storage import Storage

WHOLE = "whole"
"""Empty file that marks completely written content."""


@dataclass(frozen=True, slots=True)
class WholeFolder:
    """A folder, and beside it the next content until that is complete: moves in object storage take time."""

    folder: Storage

    @property
    def content(self) -> Storage | None:
        """The folder of the last complete content; None if there is none."""
        if self._part.has(WHOLE):
            return self._part
        return self.folder if self.folder.is_dir() else None

    def replace(self, fill: Callable[[Storage], None]) -> None:
        """Put new content in the place of the old one; may be called again after it failed.

        fill: function that writes the content into the folder that it is given.
        """
        self._settle()
        self._part.remove()
        fill(self._part)
        self._part.write(WHOLE, b"")
        self._settle()

    def remove(self) -> None:
        """Delete the content, the next one too."""
        self._settle()
        self._part.remove()
        self.folder.remove()

    def _settle(self) -> None:
        """Move complete content to its place; an earlier process may have been killed before that."""
        if self._part.has(WHOLE):
            self.folder.remove()
            if self.folder.path is not None:
                self._part.move_to(self.folder)
                self.folder.discard(WHOLE)
            else:  # a removal that is cut short must not leave the mark to a part of the content
                self._part.copy_to(self.folder)
                self.folder.discard(WHOLE)
                self._part.discard(WHOLE)
                self._part.remove()

    @property
    def _part(self) -> Storage:
        return self.folder.parent / f".{self.folder.name}"
