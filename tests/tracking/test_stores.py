from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from raygpu.errors import TrackingError, cleaned, redacted
from raygpu.tracking.stores import check, ui_command, with_driver
from tests.tracking.services import Server, free_port


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:pass@db:5432/runs", "postgresql://me:***@db:5432/runs"),
        ("postgresql+psycopg2://me:p/a@s:s@db/runs", "postgresql+psycopg2://me:***@db/runs"),
        ("https://:key@mlflow.example/x", "https://:***@mlflow.example/x"),
        ("mysql://me@db/runs?ssl_password=abc&x=1", "mysql://me@db/runs?ssl_password=***&x=1"),
        ("postgresql://db/runs?user=me&password=abc", "postgresql://db/runs?user=me&password=***"),
        ("sqlite:////home/me:you@x/mlflow.db", "sqlite:////home/me:you@x/mlflow.db"),
        ("https://t0ken@mlflow.example/x", "https://***@mlflow.example/x"),
        ("https://host/x?api_key=abc&n=1", "https://host/x?api_key=***&n=1"),
        ("https://host/x?n=1&sig=a%2Fb#part", "https://host/x?n=1&sig=***#part"),
        ("https://host/x?X-Amz-Signature=abc", "https://host/x?X-Amz-Signature=***"),
        ("https://host/x?key=abc&monkey=1&keyboard=2", "https://host/x?key=***&monkey=1&keyboard=2"),
        ("postgresql://db/runs?sslkey=/a.pem&ssl_key=/b.pem", "postgresql://db/runs?sslkey=/a.pem&ssl_key=/b.pem"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_passwords_are_not_shown(uri: str, shown: str) -> None:
    assert redacted(uri) == shown


def test_the_ui_is_started_by_a_command_that_can_be_copied() -> None:
    assert ui_command("sqlite:////a b/mlflow.db", 5000) == (
        "mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db' --port 5000"
    )
    assert "'postgresql+psycopg2://me:***@db/runs'" in ui_command("postgresql://me:pass@db/runs", 5000)


def test_a_librarys_message_is_cleaned_of_the_password_in_every_form() -> None:
    uri = "postgresql://me:p%40ssword@db/runs"
    message = cleaned(f"cannot reach {uri}: password 'p@ssword' (p%40ssword) failed", uri)
    assert message == "cannot reach postgresql://me:***@db/runs: password '***' (***) failed"


@pytest.mark.parametrize("uri", ["mlruns", "./runs", "file:///tmp/mlruns", "ftp://x/y", "postgres://me@h/db", ""])
def test_other_stores_are_refused_with_the_allowed_ones(uri: str) -> None:
    with pytest.raises(TrackingError) as refused:
        check(uri)
    assert repr(uri) in str(refused.value)
    assert "sqlite:///FILE" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(uri: str) -> None:
    with pytest.raises(TrackingError, match="in memory"):
        check(uri)


def test_a_forgotten_slash_is_named() -> None:
    with pytest.raises(TrackingError, match="slash is missing"):
        check("sqlite://mlflow.db")


def test_the_driver_is_one_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for present, expected in (("psycopg2", "postgresql+psycopg2://h/d"), ("psycopg", "postgresql+psycopg://h/d")):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, present=present: name == present or None)
        assert with_driver("postgresql://h/d") == expected
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert with_driver("postgresql+asyncpg://h/d") == "postgresql+asyncpg://h/d"
    assert with_driver("sqlite:///x") == "sqlite:///x"
    with pytest.raises(TrackingError, match="psycopg2 or psycopg"):
        with_driver("postgresql://h/d")


def test_a_path_with_a_question_mark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri in (f"sqlite:///{tmp_path}/a?b/mlflow.db", f"sqlite:///{tmp_path}/a?b=c/d?timeout=60"):
        with pytest.raises(TrackingError, match=r"/a\?b.* has a '\?', at which options begin"):
            check(uri)
    (tmp_path / "a?b").mkdir()
    monkeypatch.chdir(tmp_path / "a?b")
    with pytest.raises(TrackingError, match=r"; /.*/a\?b/runs/mlflow.db has a '\?'"):
        check("sqlite:///runs/mlflow.db")
    check(f"sqlite:///{tmp_path}/mlflow.db?timeout=60")


def test_a_new_sqlite_file_is_fine_and_checking_creates_nothing(tmp_path: Path) -> None:
    check(f"sqlite:///{tmp_path}/a/b/mlflow.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(TrackingError, match=r"runs cannot be written \(Not a directory\)"):
        check(f"sqlite:///{tmp_path}/runs/mlflow.db")


def test_a_folder_nobody_may_write_is_named() -> None:
    with pytest.raises(TrackingError, match=r"/proc.* cannot be written"):
        check("sqlite:////proc/raygpu/mlflow.db")


def test_a_folder_instead_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="is a folder"):
        check(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize(
    "start", ["http://127.0.0.1", "http://me:s3cret@127.0.0.1", "postgresql://me:s3cret@127.0.0.1"]
)
def test_a_port_where_nobody_listens_is_reported_at_once(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"waits {seconds} s to try again"))
    with pytest.raises(TrackingError, match=r"no answer .*refused") as refused:
        check(f"{start}:{free_port()}")
    assert "s3cret" not in str(refused.value)


def test_an_mlflow_server_is_accepted(server: Server) -> None:
    check(server.uri)


class Other(BaseHTTPRequestHandler):
    """A hand-written stand-in for servers that are not ours: one that wants credentials, and one that is no MLflow."""

    seen: list[str | None] = []  # noqa: RUF012 - one server class for one test

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        status, kind = {"/locked/": (401, "application/json"), "/health": (200, "text/html")}.get(
            self.path.split("health")[0], (200, "text/html")
        )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def other() -> Iterator[str]:
    Other.seen.clear()
    with HTTPServer(("127.0.0.1", 0), Other) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}"
        web.shutdown()
        thread.join()


def test_missing_and_wrong_credentials_are_told_apart(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TrackingError, match=r"401 .*no credentials were sent; set MLFLOW_TRACKING_USERNAME"):
        check(f"{other}/locked")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    with pytest.raises(TrackingError, match="the credentials were refused"):
        check(f"{other}/locked")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "you")
    with pytest.raises(TrackingError, match="the credentials were refused"):
        check(f"{other}/locked")
    assert Other.seen == [None, "Bearer abc", "Basic bWU6eW91"]


def test_credentials_of_mlflows_file_are_sent(other: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".mlflow").mkdir()
    file = tmp_path / ".mlflow" / "credentials"
    file.write_text("[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = you\n")
    with pytest.raises(TrackingError, match="the credentials were refused"):
        check(f"{other}/locked")
    assert Other.seen == ["Basic bWU6eW91"]
    file.write_text("no section\n")
    with pytest.raises(TrackingError, match="no credentials were sent"):
        check(f"{other}/locked")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password you\n")
    with pytest.raises(TrackingError, match="the credentials were refused"):
        check(f"{other}/locked")
    assert Other.seen == ["Basic bWU6eW91", None, "Basic bWU6eW91"]


def test_a_server_that_is_not_verified_needs_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/bundle.pem")
    with pytest.raises(TrackingError, match="refused"):
        check(f"https://127.0.0.1:{free_port()}")


def test_requests_that_mlflow_signs_are_left_to_it(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_AUTH", "a plug-in")
    check(f"{other}/locked")


def test_another_web_server_is_not_taken_for_mlflow(other: str) -> None:
    with pytest.raises(TrackingError, match="not an MLflow server"):
        check(other)


def test_neither_the_check_nor_the_modules_import_mlflow() -> None:
    code = (
        "import sys, raygpu.tracking.runs, raygpu.tracking.writer as w; from raygpu.tracking.runs import check\n"
        "check('sqlite:///mlflow.db'); sys.exit('mlflow' in sys.modules or 'sqlalchemy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
