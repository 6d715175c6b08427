"""Stores of MLflow's runs: check a tracking URI without importing MLflow, and show it without passwords."""

from __future__ import annotations

import base64
import configparser
import importlib.util
import os
import re
import shlex
import socket
import ssl
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

from raygpu.errors import TrackingError, cleaned, one_line, redacted

ALLOWED = "sqlite:///FILE, postgresql://USER@HOST/DATABASE, mysql+pymysql://USER@HOST/DATABASE, http(s)://SERVER"
ALLOWED_FILE = "sqlite:////FOLDER/FILE of a folder without one, and options as in sqlite:///FILE?timeout=60"
TIMEOUT_S = 20.0
"""Seconds in which a server has to answer: a busy one may take some."""
VERSION = re.compile(r"\d+\.\d+\S{0,30}")
DRIVERS = {"postgresql": ("psycopg2", "psycopg"), "mysql": ("MySQLdb", "pymysql")}
"""Python packages that can connect to each kind of database server, in order of preference."""
SQLALCHEMY_NAMES = {"MySQLdb": "mysqldb"}
PORTS = {"postgresql": 5432, "mysql": 3306}


def scheme(uri: str) -> str:
    """Return the kind of store, `postgresql` for `postgresql+psycopg2://...`; empty for a plain path."""
    return uri.split("://", 1)[0].split("+", 1)[0].lower() if "://" in uri else ""


def check(uri: str) -> None:
    """Check within seconds that a store can be used, without importing MLflow and without creating anything.

    A server is asked for its health and for its experiments, with the credentials that MLflow itself reads from the
    environment. Raises TrackingError of one line if the store cannot be used.
    """
    kind = scheme(uri)
    if kind in ("http", "https"):
        _check_server(uri)
    elif kind == "sqlite":
        _check_file(uri, sqlite_path(uri))
    elif kind in DRIVERS:
        _check_database(uri, kind)
    else:
        raise _fault(uri, f"not a tracking store that raygpu can use; allowed: {ALLOWED}")


def with_driver(uri: str) -> str:
    """Return a database's URI with an installed driver in it, as `postgresql+psycopg2://...`; other URIs as they are.

    Raises TrackingError if no driver is installed.

    SQLAlchemy's own choice for `postgresql://` changed from psycopg2 to psycopg in 2.1, whichever is installed.
    """
    name, rest = uri.split("://", 1)
    kind = scheme(uri)
    if kind not in DRIVERS or "+" in name:
        return uri
    for driver in DRIVERS[kind]:
        if importlib.util.find_spec(driver) is not None:
            return f"{kind}+{SQLALCHEMY_NAMES.get(driver, driver)}://{rest}"
    raise _fault(uri, f"no Python package for {kind} is installed; allowed: {' or '.join(DRIVERS[kind])}")


def ui_command(uri: str, port: int) -> str:
    """Return the command for the MLflow UI on a database, on loopback; a password in the URI is left to fill in."""
    return f"mlflow ui --backend-store-uri {shlex.quote(redacted(with_driver(uri)))} --port {port}"


def sqlite_path(uri: str) -> Path:
    """Return the absolute path of the file in a `sqlite:///FILE` URI. Raises TrackingError if it names none, or one
    with a question mark: SQLAlchemy takes the rest for options."""
    place, mark, options = uri.split("://", 1)[1].partition("?")
    name = place.removeprefix("/")
    if "?" in str(Path(name).absolute()) or (mark and ("=" not in options or "?" in options)):
        path = Path(uri.split(":///", 1)[-1]).absolute()
        raise _fault(uri, f"{path} has a '?', at which options begin; allowed: {ALLOWED_FILE}")
    if not name or name == ":memory:":
        raise _fault(uri, "a database in memory is gone when the sweep ends; write sqlite:///FILE")
    if not uri.split("://", 1)[1].startswith("/"):
        raise _fault(uri, "a slash is missing; write sqlite:///FILE, or sqlite:////FILE for an absolute path")
    return Path(name).absolute()


def _check_file(uri: str, path: Path) -> None:
    if os.path.isdir(path):  # unlike Path's, these never raise
        raise _fault(uri, f"{path} is a folder; name a file in it, as in sqlite:///{path}/mlflow.db")
    if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
        raise _fault(uri, f"{path} cannot be written; change its owner or name another file")
    try:
        existing = next(parent for parent in path.parents if parent.exists())
        # Tried, not asked: the superuser's access() says yes to read-only file systems.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise _fault(uri, f"{path.parent} cannot be written ({reason}); name a file in a folder of your own") from error


def _check_database(uri: str, kind: str) -> None:
    with_driver(uri)
    try:
        parts = urlsplit(uri)
        address = parts.hostname, parts.port or PORTS[kind]
    except ValueError as error:
        raise _fault(uri, f"not a valid address ({error}); write {kind}://USER@HOST:PORT/DATABASE") from error
    if address[0] is None:
        return  # a local socket: only the driver knows where
    try:
        socket.create_connection(address, timeout=TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise _fault(uri, f"no answer from {address[0]}:{address[1]} ({reason}); is the database running?") from error


def _check_server(uri: str) -> None:
    """Ask an MLflow server for its health, which needs no credentials, and for its experiments, which may need them.

    Requests that MLflow signs by a plug-in or for AWS are left to MLflow.
    """
    base, headers = _request(uri)
    is_signed = os.environ.get("MLFLOW_TRACKING_AUTH") or _is_true("MLFLOW_TRACKING_AWS_SIGV4")
    for path in ("/health",) if is_signed else ("/health", "/api/2.0/mlflow/experiments/search?max_results=1"):
        api = path.startswith("/api")
        try:
            request = urllib.request.Request(base + path, headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=_tls(base)) as response:
                if api and "json" not in response.headers.get("Content-Type", ""):
                    raise _fault(uri, "something answers there, but not an MLflow server; check host, port and path")
        except urllib.error.HTTPError as error:
            if error.code in (401, 403) and not is_signed:
                raise _refused(uri, error, credentials="Authorization" in headers) from error
            if api or error.code >= 500:  # a hosted MLflow may have no /health
                raise _fault(uri, f"answered {error.code} {error.reason} to {path}; is it an MLflow server?") from error
        except (OSError, ValueError) as error:
            reason = one_line(getattr(error, "reason", None) or error) if isinstance(error, OSError) else str(error)
            raise _fault(uri, f"no answer ({cleaned(reason, uri)}); is the MLflow server running there?") from error


def server_version(uri: str) -> str | None:
    """Return the version of an MLflow server; None for other stores, and for a server that does not tell it."""
    if scheme(uri) not in ("http", "https"):
        return None
    base, headers = _request(uri)
    try:
        request = urllib.request.Request(f"{base}/version", headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=_tls(base)) as response:
            text = response.read(64).decode(errors="replace").strip()
    except (OSError, ValueError):
        return None
    return text if VERSION.fullmatch(text) else None


def _request(uri: str) -> tuple[str, dict[str, str]]:
    """Return the address without credentials, and the header with those of netrc, as MLflow's library of requests has
    it, of the environment, of MLflow's file or of the URI."""
    from requests.utils import get_netrc_auth

    parts = urlsplit(uri)
    base = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl().rstrip("/")
    if (of_host := get_netrc_auth(base)) is not None:
        return base, _basic(*of_host)
    kept_user, kept_password = _kept_credentials()
    user = os.environ.get("MLFLOW_TRACKING_USERNAME") or kept_user or unquote(parts.username or "")
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD") or kept_password or unquote(parts.password or "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    if user and password:
        return base, _basic(user, password)
    return base, {"Authorization": f"Bearer {token}"} if token else {}


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def _kept_credentials() -> tuple[str, str]:
    """Return the name and the password of the file in which MLflow looks for them; empty without any."""
    file = configparser.ConfigParser(interpolation=None)
    try:
        file.read(Path("~/.mlflow/credentials").expanduser())
    except (OSError, ValueError, RuntimeError, configparser.Error):
        return "", ""
    user, password = (file.get("mlflow", f"mlflow_tracking_{name}", fallback="") for name in ("username", "password"))
    return user, password


def _tls(base: str) -> ssl.SSLContext | None:
    """Return how to trust a server and to be trusted, as MLflow and the library of its requests do."""
    if not base.startswith("https"):
        return None
    if _is_true("MLFLOW_TRACKING_INSECURE_TLS"):
        context = ssl._create_unverified_context()
    else:
        names = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
        trusted = next((path for name in names if (path := os.environ.get(name))), None)
        is_folder = trusted is not None and os.path.isdir(trusted)
        file, folder = (None, trusted) if is_folder else (trusted, None)
        context = ssl.create_default_context(cafile=file, capath=folder)
    if client := os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH"):
        context.load_cert_chain(client)
    return context


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("true", "1")


def _refused(uri: str, error: urllib.error.HTTPError, *, credentials: bool) -> TrackingError:
    if b"host header" in error.read(500).lower():
        host = urlsplit(uri).netloc.rpartition("@")[2]
        return _fault(uri, f"answered 403: the server does not know this name; start it with --allowed-hosts {host}")
    cause = "the credentials were refused" if credentials else "no credentials were sent"
    variables = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    return _fault(uri, f"answered {error.code} {error.reason}: {cause}; set {variables}")


def _fault(uri: str, what: str) -> TrackingError:
    return TrackingError(f"tracking.uri: read {redacted(uri)!r}; {what}")


def absolute(uri: str) -> str:
    """Return a tracking URI with an absolute path, if it is a SQLite file: a resume may start in another folder."""
    if scheme(uri) != "sqlite":
        return uri
    _, question, options = uri.partition("?")
    return f"sqlite:///{sqlite_path(uri)}{question}{options}"
