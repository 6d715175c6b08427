"""A step is kept for the code that it was asked for alone."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from raygpu.records.array_store import ArrayStore
from raygpu.training.fused import array_cache, compile_process
from raygpu.training.fused.compile_process import CompileRequest, compile_and_keep
from tests.training.fused.test_array_cache import array, kept


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileRequest:
    """What an array asks for; one more file is of its code."""
    requests: list[CompileRequest] = []
    monkeypatch.setattr(array_cache, "start", lambda request, _: requests.append(request))
    assert kept(array(), tmp_path / "arrays").request(10) is None
    (asked,) = requests
    file = tmp_path / "losses.py"
    file.write_text("SMOOTHING = 0.1\n")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return replace(asked, code=replace(asked.code, digests=(*asked.code.digests, (str(file), digest))))


@pytest.mark.parametrize("when", ["before", "meanwhile", "never"])
def test_a_step_of_code_that_was_edited_meanwhile_is_not_kept(
    request_of: CompileRequest, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    file, compiled = Path(request_of.code.digests[-1][0]), []

    def compile_step(request: CompileRequest, code: object, package: Path) -> None:
        compiled.append(request.width)
        package.write_bytes(b"a step")
        if when == "meanwhile":
            file.write_text("SMOOTHING = 0.12\n")

    monkeypatch.setattr(compile_process, "_compile", compile_step)
    if when == "before":
        file.write_text("SMOOTHING = 0.12\n")
    compile_and_keep(request_of)
    store = ArrayStore(request_of.folder)
    assert compiled == ([] if when == "before" else [10])
    assert (store.program(request_of.name) is not None) == (when == "never")
    assert store.fault(request_of.name) is None, "it may be tried again"


def test_a_step_with_other_constants_is_not_kept(request_of: CompileRequest) -> None:
    code = replace(request_of.code, digests=request_of.code.digests[:-1])
    other = replace(request_of, code=code, optimizers=[replace(each, clip_norm=0.1) for each in request_of.optimizers])
    compile_and_keep(other)
    store = ArrayStore(other.folder)
    assert store.program(other.name) is None
    assert "numbers that its code reads are others" in str(store.fault(other.name))
