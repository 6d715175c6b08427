"""Folders that every node reaches: a path that all of them share, or object storage by its URI.

    storage = Storage.at("s3://bucket/runs") / "digits-1"
    storage.upload(Path("runs/digits-1/config.toml"))
    storage.download(folder)

Object storage is read and written by pyarrow, as by Ray Tune and Ray Train: credentials and the server's address come
from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL ...).
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raygpu.errors import BadInput, RaygpuError, one_line, redacted

BEGUN_IN = Path.cwd()
"""The working directory of this process, before anything changes it."""
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray gives the driver of a submitted job."""
SCHEMES = ("s3", "gs")
LOCAL = "local"
"""Name of the storage of runs whose folder is on this machine."""
PROBE = ".raygpu-"
"""Prefix of the names of files that test whether a folder can be written."""
PLAIN = re.compile(r"[\w!.*'()=/-]*", re.ASCII)
"""Characters in names of object storage that no client treats as special."""
ATTEMPTS = 12
"""Attempts of each call to S3: with pauses of 50 ms, 100 ms, 200 ms ... between them, 102 s in all."""
S3_SAID = "AWS Error"
NO_SERVER = "AWS Error NETWORK_CONNECTION"
"""Part of pyarrow's message when no server answers."""
ALLOWED = "local, a folder that all nodes share, or s3://BUCKET/FOLDER"


def is_job() -> bool:
    """Return whether this process is the driver of a submitted job; its workers have the job's files already."""
    return JOB_VARIABLE in os.environ


class StorageError(RaygpuError):
    """Object storage refused a request, or is out of reach."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder on disk or in object storage; it need not exist."""

    uri: str
    """An absolute path, or s3://BUCKET/FOLDER with pyarrow's options after a question mark."""

    @classmethod
    def at(cls, text: str) -> Storage:
        """Parse a folder's path or a URI as a person writes it. Raises BadInput."""
        if "://" not in text:
            return cls(str(Path(text).resolve()))
        parts = urlsplit(text)
        if parts.scheme not in SCHEMES or not parts.netloc or not PLAIN.fullmatch(parts.path) or parts.fragment:
            raise BadInput(f"storage: read {redacted(text.partition('?')[0])!r}; allowed: {ALLOWED}")
        if parts.username is not None:
            raise BadInput(
                "storage: has credentials in it, which would be kept with the run; set AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY in the environment of all nodes"
            )
        return cls(text)

    @property
    def path(self) -> Path | None:
        """The folder's path in the file system; None for object storage."""
        return None if "://" in self.uri else Path(self.uri)

    @property
    def name(self) -> str:
        """Last part of the folder's path."""
        return self.parts()[0].rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Storage:
        """The folder above this one, in the same storage."""
        base, options = self.parts()
        return Storage(base.rstrip("/").rpartition("/")[0] + options)

    def __truediv__(self, name: str) -> Storage:
        base, options = self.parts()
        return Storage(f"{base.rstrip('/')}/{name}{options}")

    def __str__(self) -> str:
        return self.uri

    def parts(self) -> tuple[str, str]:
        """Return the folder, and the options of object storage with their question mark; a path may have one itself."""
        if self.path is not None:
            return self.uri, ""
        base, mark, options = self.uri.partition("?")
        return base, mark + options

    def for_ray(self) -> tuple[str, Any]:
        """Return Ray Tune's and Ray Train's storage_path and storage_filesystem. Raises StorageError."""
        if self.path is not None:
            return self.uri, None
        system, path = self._at()
        return path, system

    def beside(self, path: str) -> Storage:
        """Return another folder of the same storage by the path that Ray gives; in object storage, it has no scheme."""
        if self.path is not None:
            return Storage(path)
        base, options = self.parts()
        return Storage(f"{base.partition('://')[0]}://{path}{options}")

    def is_dir(self) -> bool:
        """Return whether the folder exists; object storage may keep an empty one."""
        return self._info(self).type.name == "Directory"

    def has(self, name: str) -> bool:
        """Return whether the folder has a file of this name."""
        return self._info(self / name).type.name == "File"

    def folders(self) -> list[str]:
        """Return the names of the folders in this one, sorted."""
        return self._names("Directory")

    def files(self) -> list[str]:
        """Return the names of the files in this folder, sorted."""
        return self._names("File")

    def _names(self, kind: str) -> list[str]:
        if self.path is not None:
            wanted = Path.is_dir if kind == "Directory" else Path.is_file
            return sorted(path.name for path in self.path.glob("*") if wanted(path))
        from pyarrow.fs import FileSelector

        system, path = self._at()
        with _told(self):
            entries = system.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in entries if info.type.name == kind)

    def read(self, name: str) -> bytes:
        """Read a file of the folder. Raises FileNotFoundError, and StorageError."""
        system, path = (self / name)._at()
        with _told(self), system.open_input_stream(path) as stream:
            return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the folder, new or in place of an old one. Raises StorageError."""
        if self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)
        system, path = (self / name)._at()
        with _told(self), system.open_output_stream(path) as stream:
            stream.write(content)

    def sync(self, name: str) -> None:
        """Wait until the disk has a file of the folder; object storage has it already. Raises OSError."""
        if self.path is not None:
            with (self.path / name).open("rb+") as file:
                os.fsync(file.fileno())

    def upload(self, source: Path) -> None:
        """Copy a file, or the content of a folder, into this folder. Raises StorageError."""
        if source.is_file():
            self.write(source.name, source.read_bytes())
            return
        self._copy(Storage(str(source.resolve())), self)

    def download(self, target: Path) -> None:
        """Copy the folder's content into a folder of this machine. Raises FileNotFoundError, and StorageError."""
        target.mkdir(parents=True, exist_ok=True)
        self._copy(self, Storage(str(target.resolve())))

    def copy_to(self, target: Storage) -> None:
        """Copy the folder's content into another folder of the same storage."""
        self._copy(self, target)

    def move_to(self, target: Storage) -> None:
        """Rename the folder to an unused name in the same storage: at once in a file system, by a copy in object
        storage."""
        if self.path is not None:
            self.path.rename(target.uri)
        else:
            self.copy_to(target)
            self.remove()

    def remove(self) -> None:
        """Delete the folder with its content, if it exists."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        elif self.is_dir():
            system, path = self._at()
            with _told(self):
                system.delete_dir(path)

    def require_answer(self) -> None:
        """Raise StorageError within seconds if no server answers; any other call would wait for one."""
        if self.path is not None:
            return
        from pyarrow import fs

        with _told(self):
            system, path = fs.FileSystem.from_uri(self.uri)
            try:
                system.get_file_info(path)
            except OSError as error:
                if NO_SERVER in str(error):
                    raise

    def check(self) -> None:
        """Write a file, read it and delete it. Raises BadInput if that fails."""
        token = uuid.uuid4().hex
        try:
            self.require_answer()
            self.write(PROBE + token, token.encode())
            read = self.read(PROBE + token).decode()
            self.discard(PROBE + token)
        except (OSError, StorageError) as error:
            raise BadInput(f"storage: {self} cannot be used: {_cause(error)}") from error
        if read != token:
            raise BadInput(f"storage: {self} does not give back what was written to it")

    def discard(self, name: str) -> None:
        """Delete a file of the folder. Raises StorageError."""
        system, path = (self / name)._at()
        with _told(self):
            system.delete_file(path)

    def _at(self) -> tuple[Any, str]:
        """Return pyarrow's file system, and the folder's path in it."""
        if self.path is not None:
            return _file_system(""), self.uri
        parts = urlsplit(self.uri)
        with _told(self):
            system = _file_system(parts._replace(path="").geturl())
        return system, f"{parts.netloc}{parts.path}"

    @staticmethod
    def _info(at: Storage) -> Any:
        system, path = at._at()
        with _told(at):
            return system.get_file_info(path)

    @staticmethod
    def _copy(source: Storage, target: Storage) -> None:
        from pyarrow import fs

        from_system, from_path = source._at()
        to_system, to_path = target._at()
        with _told(source if source.path is None else target):
            if not source.is_dir():
                raise FileNotFoundError(str(source))
            to_system.create_dir(to_path)
            # By threads, uploads to S3 come to a standstill (apache/arrow#32372).
            fs.copy_files(
                from_path,
                to_path,
                source_filesystem=from_system,
                destination_filesystem=to_system,
                use_threads=False,
            )


@lru_cache(maxsize=8)
def _file_system(bucket: str) -> Any:
    """Return pyarrow's file system of a bucket, found by asking the server; of this machine for an empty name."""
    from pyarrow import fs

    if not bucket:
        return fs.LocalFileSystem()
    system, _ = fs.FileSystem.from_uri(bucket)
    if not isinstance(system, fs.S3FileSystem) or "tls_verify_certificates" in bucket:  # which the next would forget
        return system
    _, (options,) = system.__reduce__()
    return _patient(options)


def _patient(options: dict[str, Any]) -> Any:
    """Return an S3 file system that repeats calls for a minute and a half when the server does not answer.

    By its URI, pyarrow gives up after six seconds. Ray makes the file system anew in a worker, and pyarrow forgets the
    retry strategy when it is pickled. Of AWS's two strategies, the other has a number of tries that a process uses up.
    """
    from pyarrow import fs

    class Patient(fs.S3FileSystem):
        """Ray looks for this class, to copy without threads."""

        def __reduce__(self) -> tuple[Any, ...]:
            return _patient, (options,)

    return Patient(**options, retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=ATTEMPTS))


@contextmanager
def _told(storage: Storage) -> Iterator[None]:
    """Turn an error of object storage into one line. Raises StorageError, and FileNotFoundError as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's are of both kinds
        raise StorageError(f"storage: {storage}: {one_line(error)}") from error


def _cause(error: Exception) -> str:
    return one_line(error.__cause__ or error)
