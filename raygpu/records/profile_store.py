"""A folder of profiles, which `raygpu.pack` and a sweep's probe write and later sweeps read.

    store = ProfileStore(folder)
    store.keep(profile)
    profile = store.find(subject)       # None without measurements of the same versions

Each subject has one JSON file. To look for a profile changes no file: one of other versions is passed over, until the
subject is measured anew.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raygpu.config.sections import WAYS
from raygpu.errors import BadInput
from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.records.cache_folder import cache_folder
from raygpu.records.whole_files import write_whole


class ProfileStore:
    """A folder of profiles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def at(cls, path: str | None) -> ProfileStore:
        """Return the profiles in a folder. path: None for the user's cache folder. Raises BadInput without one."""
        if path is not None:
            return cls(Path(path).expanduser())
        return cls(cache_folder() / "profiles")

    def check(self) -> None:
        """Raise BadInput if the folder cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # The rights alone do not tell of a read-only file system.
            tempfile.TemporaryDirectory(dir=self.folder).cleanup()
        except OSError as error:
            raise BadInput(
                f"profiles: {self.folder} cannot be written ({error.strerror}); choose another --profiles"
            ) from error

    def told(self, profile: Profile) -> str:
        """Keep a profile; return where, or why it cannot be written, as text: a measurement is of use without it."""
        try:
            return f"kept for later sweeps in {self.keep(profile)}"
        except OSError as error:
            return f"not kept: {self.folder} cannot be written ({error.strerror or error})"

    def keep(self, profile: Profile) -> Path:
        """Write a profile; return its file. Raises OSError.

        Points of an earlier profile of the same versions stay unless measured again. Points in doubt, and notes that
        hold for this measurement alone, are left out: later sweeps would trust them.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        profile = profile.lasting()
        earlier = self.find(profile.subject)
        if earlier is not None:
            profile = profile.over(earlier)
        path = self.folder / profile.subject.file_name
        write_whole(path, json.dumps(profile.as_dict(), indent=1))
        return path

    def find(self, subject: Subject) -> Profile | None:
        """Return the subject's profile of the same versions, or None; a file of other versions stays until the subject
        is measured anew."""
        profile = read(self.folder / subject.file_name)
        if profile is None or not profile.subject.same_versions(subject):
            return None
        return profile.as_of(datetime.now(UTC))

    def all(self) -> Iterator[Profile]:
        """Yield every profile of the folder that can be read."""
        for path in sorted(self.folder.glob("*.json")):
            profile = read(path)
            if profile is not None:
                yield profile


def read(path: Path) -> Profile | None:
    """Return the profile in a file; None if there is no such file, or none of this form."""
    try:
        values: dict[str, Any] = {"ended_s": {}} | json.loads(path.read_text())
        points = tuple(_point(point) for point in values["points"])
        arguments = {f.name: values[f.name] for f in fields(Profile) if f.name not in ("subject", "points")}
        arguments |= {"subject": Subject(**values["subject"]), "points": points, "notes": tuple(values["notes"])}
        profile = Profile(**arguments)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return profile if _is_sound(profile) else None


def _point(values: dict[str, Any]) -> Point:
    """Read a point from JSON. Raises ValueError for text in place of a number."""
    several = {name: tuple(values[name]) for name in ("rounds", "references")}
    texts = {"way", "doubt", "fault", *several}
    numbers = [value for name, value in values.items() if name not in texts and value is not None]
    numbers += [number for each in several.values() for number in each]
    if values["way"] not in WAYS or not isinstance(values["n"], int) or not all(map(_is_number, numbers)):
        raise ValueError("not a point of a profile")
    return Point(**{**values, **several})


def _is_sound(profile: Profile) -> bool:
    """Return whether the parts of a profile from a file are of their types; those of its points are known to be."""
    subject = profile.subject
    texts = [subject.source, subject.data, subject.precision, subject.device, profile.measured_at, *profile.notes]
    tables = (subject.hyperparameters, subject.versions, profile.ended_s)
    if not all(isinstance(table, dict) for table in tables):
        return False
    texts += [*subject.hyperparameters.values(), *subject.versions.values()]
    numbers = [subject.num_cpus, *profile.ended_s.values()]
    numbers += [number for number in (subject.device_gib, profile.num_train) if number is not None]
    return all(isinstance(text, str) for text in texts) and all(map(_is_number, numbers))


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number, not below 0."""
    return isinstance(value, int | float) and 0 <= value < math.inf
