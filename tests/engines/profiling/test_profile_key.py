"""What a profile is kept by: the training's own code and shape, not what only changes its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu.config.sections import Precision
from raygpu.config.source import Source, locate
from raygpu.engines.profiling.own_files import own_files
from raygpu.engines.profiling.profile_key import _modules, subject, versions_of
from raygpu.engines.profiling.workload import Workload
from raygpu.errors import BadInput
from raygpu.experiment import Splits
from raygpu.planning.estimates import Hardware
from raygpu.planning.profiles import Subject
from raygpu.search.signature import Signature
from raygpu.search.trials import Trial
from raygpu.training.start import signature
from raygpu.workflow.by_value import named
from tests.fakes.nvml import FakeNvml
from tests.models import few

ROOT = Path(__file__).parents[3]


def trial(**hp: Any) -> Trial:
    return Trial("t0000", 0, hp)


def key(source: Source, code: Any, splits: Splits | None, precision: Precision, hardware: Hardware) -> Subject:
    return subject(Workload(source, splits, trial(), precision), versions_of(source, code), Signature(()), hardware)


def of(name: str, folder: Path = ROOT) -> Subject:
    source, code = locate(name, folder)
    return key(source, code, None, "float32", Hardware([], [], "a processor", None, 2))


@pytest.mark.parametrize("name", ["tests.models:Mlp", "tests.keras_cases:FewKeras"])
def test_the_signature_is_what_shapes_the_program(name: str) -> None:
    source, code = locate(name, ROOT)
    found = signature(source, code, few(), trial(hidden=8, lr=0.1, batch_size=16))
    assert dict(found.values) == {
        "hidden": "8", "batch_size": "16", "micro_batch_size": "absent", "optimizer": "absent",
    }  # fmt: skip
    assert found == signature(source, code, few(), trial(hidden=8, lr=0.2, momentum=0.9, batch_size=16))


def test_a_function_and_a_script_have_none() -> None:
    source, code = locate("tests.cases:ramp", ROOT)
    assert signature(source, code, None, trial(x=1)) == Signature(())
    assert signature(Source("command", "python a.py", "."), None, None, trial(x=1)) == Signature(())


def test_what_the_experiment_raises_is_one_line() -> None:
    source, code = locate("tests.models:Mlp", ROOT)
    with pytest.raises(
        BadInput, match=r"experiment: tests.models:Mlp: a first step failed: .*no hyper-parameter 'hidden'"
    ):
        signature(source, code, few(), trial(lr=0.1))


def test_data_by_shape_and_a_device_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    source, code = locate("tests.models:Mlp", ROOT)
    found = key(source, code, few(), "bf16", Hardware([], [], "a processor", None, 2))
    assert found.data == "train float32 200x64; targets int64 200; validation float32 64x64"
    assert (found.device_gib, found.precision) == (None, "bf16")
    assert set(found.versions) == {"raygpu", "code", "torch"}

    FakeNvml(["NVIDIA A100-SXM4-40GB"]).install(monkeypatch)
    found = key(source, code, few(), "float32", Hardware([], [], "NVIDIA A100-SXM4-40GB", 39.49, 16))
    assert (found.device, found.device_gib, found.num_cpus) == ("NVIDIA A100-SXM4-40GB", 39.5, 16)
    assert found.versions["driver"] == "580.65.06"


def test_data_that_is_read_later_is_another_training_than_arrays() -> None:
    source, code = locate("tests.data_set_cases:Read", ROOT)
    hardware = Hardware([], [], "a processor", None, 2)
    read, arrays = code.data(), code.data().first(32)  # type: ignore[union-attr]
    found = key(source, code, read, "float32", hardware).data
    assert found == (
        "train float32 96x8, read later; targets int64 96, read later; validation float32 32x8, read later"
    )
    assert "read later" not in key(source, code, arrays, "float32", hardware).data


def test_a_change_of_the_code_is_another_version(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def train(config): pass\n")
    first = of("mine.py:train", tmp_path)
    assert of("mine.py:train", tmp_path) == first
    assert of("mine.py:train", tmp_path).versions == first.versions
    (tmp_path / "mine.py").write_text("def train(config): return 1\n")
    changed = of("mine.py:train", tmp_path)
    assert changed.file_name == first.file_name
    assert changed.versions["code"] != first.versions["code"]


def test_code_of_a_cell_has_the_key_of_its_content(tmp_path: Path) -> None:
    def version(result: int) -> str:
        cell: dict[str, Any] = {}
        exec(f"def train(config): return {result}", cell)
        return of(named(cell["train"], tmp_path), tmp_path).versions["code"]

    assert version(1) == version(1)
    assert version(1) != version(2)


def test_a_change_of_the_script_is_another_version(tmp_path: Path) -> None:
    def version() -> str:
        source = Source("command", "python mine.py --lr {lr}", str(tmp_path))
        return key(source, None, None, "float32", Hardware([], [], "a processor", None, 2)).versions["code"]

    (tmp_path / "mine.py").write_text("print(1)\n")
    first = version()
    (tmp_path / "mine.py").write_text("print(2)\n")
    assert version() != first


def test_a_base_class_of_the_users_own_counts() -> None:
    assert of("tests.models:Mlp").versions["code"] != of("experiments.digits:Mlp").versions["code"]


def test_a_change_of_what_the_code_imports_is_another_version(tmp_path: Path) -> None:
    """Of an experiment's blocks in a file of their own, say; wherever the folder lies."""
    versions = []
    for number, text in enumerate(("WIDTH = 8\n", "WIDTH = 8\n", "WIDTH = 16\n")):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        (folder / "mine.py").write_text("from raygpu import report\n\ndef train(config):\n    import blocks_of_mine\n")
        (folder / "blocks_of_mine.py").write_text(text)
        (folder / "plots.py").write_text(f"{number}\n")
        versions.append(of("mine.py:train", folder).versions["code"])
    assert versions[0] == versions[1] != versions[2]


def test_a_change_of_what_a_script_imports_is_another_version(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import blocks\n")
    found = []
    for text in ("1\n", "2\n"):
        (tmp_path / "blocks.py").write_text(text)
        found.append(versions_of(Source("command", "python mine.py --lr {lr}", str(tmp_path)), None)["code"])
    assert found[0] != found[1]


@pytest.mark.parametrize("name", ["train.py:train", "python scripts/train.py"])
def test_a_change_of_an_editable_package_beside_the_code_is_another_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a src layout, whose folder an installation adds to `sys.path`."""
    for folder in ("scripts", "src/net_of_mine"):
        (tmp_path / folder).mkdir(parents=True)
    for path in ("train.py", "scripts/train.py"):
        (tmp_path / path).write_text("def train(config):\n    from net_of_mine import heads\n")
    monkeypatch.syspath_prepend(tmp_path / "src")
    versions = []
    for text in ("WIDTH = 8\n", "WIDTH = 16\n"):
        (tmp_path / "src/net_of_mine/heads.py").write_text(text)
        source, code = locate(name, tmp_path) if ":" in name else (Source("command", name, str(tmp_path)), None)
        versions.append(versions_of(source, code)["code"])
    assert versions[0] != versions[1]


def test_data_among_a_command_s_words_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print(1)\n")
    table = tmp_path / "table.csv"
    versions = []
    for text in ("import blocks\n", "import blocks, 1\n"):
        table.write_text(text)
        (tmp_path / "blocks.py").write_text(text)
        source = Source("command", f"python mine.py table.csv --note {'long' * 100} --lr {{lr}}", str(tmp_path))
        versions.append(versions_of(source, None)["code"])
        table.unlink()
        table.mkdir()
        versions.append(versions_of(source, None)["code"])
        table.rmdir()
    assert versions[0] != versions[2], "its content counts"
    assert versions[1] == versions[3], "what it names does not"


def test_a_file_without_the_right_to_read_it_counts_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("print(1)\n")

    def refused(*_: Any) -> Any:
        """Stand in for a file without the right to read it."""
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "read_bytes", refused)
    codes = [versions_of(Source("command", f"python mine.py {x}", str(tmp_path)), None)["code"] for x in "ab"]
    assert codes[0] == codes[1]


def test_neither_raygpu_nor_its_requirements_are_the_users_code() -> None:
    source, code = locate("experiments.digits:Mlp", ROOT)
    names = {str(path.relative_to(ROOT)) for path in own_files(dict(_modules(source, code)), [ROOT])}
    assert "experiments/digits.py" in names
    assert not [name for name in names if not name.startswith("experiments/")]
