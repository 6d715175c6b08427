"""The order of test files, and which of them one process has for itself: hooks of pytest for `conftest`.

Processes take a file after another (pytest-xdist's `loadfile`), so a long one that began last would be waited for; and
files whose tests share slow processes of their own would start these once in each process. Beside the slow tests, whose
files take minutes each, a start more is nothing, and the processes end together when the files, and the tests of the
longest, go one by one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

TOGETHER = {
    "tests/training/keras/": "keras and ranks",
    "tests/training/distributed/test_keras": "keras and ranks",
    "tests/training/test_model_scores.py": "keras and ranks",
    "tests/contracts/test_folds.py": "keras and ranks",
    "tests/contracts/test_images.py": "keras and ranks",
    "tests/contracts/test_training.py": "keras and ranks",
    "tests/config/test_conf.py": "keras and ranks",
    "tests/engines/profiling/test_profile_key.py": "keras and ranks",
    "tests/engines/train/test_losses.py": "keras and ranks",
    "tests/experiments/test_data_parallel.py": "keras and ranks",
    "tests/experiments/test_networks.py": "keras and ranks",
    "tests/experiments/test_reviews.py": "keras and ranks",
    "tests/workflow/test_first_step.py": "keras and ranks",
    "tests/test_public_names.py": "keras and ranks",
    "tests/training/distributed/test_torch_ranks.py": "keras and ranks",
    "tests/training/distributed/test_ranks_": "keras and ranks",
    "tests/training/distributed/test_hidden_group.py": "keras and ranks",
    "tests/training/distributed/test_torch_sharded.py": "keras and ranks",
    "tests/training/distributed/sharded/test_fsdp_private_api.py": "keras and ranks",
    "tests/training/torch/test_pipeline.py": "keras and ranks",
    "tests/training/fused/": "compiler",
    "tests/contracts/test_zoo": "transformers",
    "tests/docs/test_callbacks.py": "transformers",
    "tests/experiments/test_hugging_face.py": "transformers",
    "tests/engines/tune/": "a Ray",
    "tests/engines/cluster/test_": "a Ray",
    "tests/engines/profiling/test_concurrency_benchmark.py": "a Ray",
    "tests/engines/train/test_train_private_api.py": "a Ray",
    "tests/workflow/test_gpu_nodes.py": "a Ray",
    "tests/test_deliver.py": "waiting",
    "tests/test_gpus.py": "waiting",
    "tests/test_storage.py": "waiting",
    "tests/tracking/test_pending_writes.py": "waiting",
    "tests/tracking/test_proxy.py": "waiting",
    "tests/tracking/test_runs.py": "waiting",
    "tests/tracking/test_stores.py": "waiting",
    "tests/tracking/test_upload_time.py": "waiting",
    "tests/tracking/test_writer.py": "waiting",
    "tests/workflow/test_automatic_mode.py": "another Ray",
    "tests/test_api.py": "another Ray",
    "tests/test_data_sets.py": "another Ray",
    "tests/test_folds_and_test_data.py": "another Ray",
    "tests/test_measured_in_storage.py": "another Ray",
    "tests/test_pack.py": "another Ray",
    "tests/test_place.py": "another Ray",
    "tests/test_sweep": "another Ray",
    "tests/test_train.py": "another Ray",
}
"""Name of what files have in common, by the beginning of their paths: the ranks of `tests.ranks`; libraries whose
import takes seconds; Ray, which takes four to start and a fortieth of a core from then on; and an MLflow server and
waits, during which other processes have the cores."""
ALONE_BESIDE_SLOW_TESTS = ("a Ray", "waiting", "another Ray")
"""Of these, the files that go one by one in a run that has slow tests; the zoo's compare with the same trials alone."""
SPLIT = ("tests/docs/test_searching_pages.py", "tests/docs/test_training_pages.py", "tests/test_train.py")
"""Files whose tests go one by one there: each is whole runs of minutes, and they share a Ray alone."""
TRAINING = ("tests/training/", "tests/contracts/")
"""Beginnings of the paths of files that train models: they take long without a Ray."""
RUN_S = 6
"""Seconds of a test that is a whole run."""
SLOW_SECONDS = {
    "tests/test_slurm_course.py": 1060,
    "tests/test_train.py": 650,
    "tests/docs/test_searching_pages.py": 440,
    "tests/test_pack.py": 410,
    "tests/contracts/test_zoo.py": 400,
    "tests/docs/test_training_pages.py": 370,
    "tests/engines/tune/test_best_epoch.py": 360,
    "tests/test_submit.py": 420,
    "tests/deploy/test_rehearsal.py": 280,
    "tests/engines/tune/test_population_sweep.py": 230,
    "tests/test_api.py": 200,
    "tests/engines/cluster/service/test_service.py": 220,
    "tests/engines/cluster/test_unequal_gpus.py": 180,
    "tests/engines/profiling/test_concurrency_benchmark.py": 180,
    "tests/training/distributed/test_torch_sharded.py": 170,
    "tests/engines/tune/test_time_limits.py": 160,
    "tests/engines/tune/test_engine.py": 140,
    "tests/docs/test_notebooks.py": 140,
    "tests/contracts/test_zoo_sharded.py": 120,
    "tests/test_train_function.py": 110,
    "tests/test_balance.py": 110,
    "tests/contracts/test_zoo_ranks.py": 100,
    "tests/docs/test_readme.py": 100,
    "tests/engines/train/test_production.py": 90,
    "tests/engines/tune/test_packing_on_a_cluster.py": 80,
    "tests/test_data_sets.py": 120,
    "tests/engines/tune/test_space_pause.py": 60,
}
"""Seconds of a file's slow tests in `make test-all`, beside two other processes, where they take a minute or more."""
SECONDS = {
    "tests/contracts/test_zoo.py": 42,
    "tests/training/distributed/test_keras_loss_check.py": 36,
    "tests/test_train.py": 30,
    "tests/workflow/test_automatic_mode.py": 28,
    "tests/engines/tune/test_time_limits.py": 24,
    "tests/test_data_sets.py": 23,
    "tests/training/keras/test_first_step.py": 23,
    "tests/test_sweep.py": 23,
    "tests/tracking/test_writer.py": 22,
    "tests/training/distributed/test_keras_ranks.py": 22,
    "tests/engines/tune/test_out_of_memory.py": 19,
    "tests/contracts/test_training.py": 18,
    "tests/training/fused/test_array_cache.py": 18,
    "tests/training/fused/test_model_array.py": 17,
    "tests/engines/tune/test_rule_actor.py": 18,
    "tests/test_storage.py": 17,
    "tests/training/torch/test_pipeline.py": 16,
    "tests/training/distributed/test_torch_sharded.py": 16,
    "tests/test_pack.py": 15,
    "tests/test_measured_in_storage.py": 15,
    "tests/tracking/test_deliverer.py": 15,
    "tests/test_deliver.py": 14,
    "tests/tracking/test_store_process.py": 14,
    "tests/tracking/test_runs.py": 13,
    "tests/test_place.py": 13,
    "tests/test_api.py": 13,
    "tests/engines/tune/test_best_epoch.py": 13,
    "tests/engines/cluster/test_preload.py": 13,
    "tests/engines/tune/test_engine.py": 12,
    "tests/test_sweep_repeats.py": 12,
    "tests/engines/tune/test_store_fault.py": 12,
    "tests/training/fused/test_dry_run.py": 12,
    "tests/contracts/test_zoo_ranks.py": 12,
    "tests/tracking/test_upload_time.py": 12,
    "tests/engines/profiling/test_concurrency_benchmark.py": 11,
    "tests/engines/tune/test_interruption.py": 11,
    "tests/experiments/test_hugging_face.py": 10,
    "tests/training/distributed/test_ranks_gradient.py": 10,
    "tests/training/keras/test_placement.py": 10,
    "tests/experiments/test_datasets.py": 10,
    "tests/tracking/test_in_place.py": 10,
    "tests/engines/tune/test_evolution.py": 9,
    "tests/contracts/test_folds.py": 9,
    "tests/test_submit_slurm.py": 8,
    "tests/training/distributed/test_ranks_turns.py": 8,
    "tests/tracking/test_proxy.py": 8,
    "tests/contracts/test_images.py": 8,
    "tests/training/fused/test_member_generators.py": 8,
    "tests/engines/tune/test_saved_state.py": 7,
}
"""Seconds of the files that take longest in `make test`, in one process on a quiet machine. A run's end names them."""


def has_slow(config: pytest.Config) -> bool:
    """Return whether a run has slow tests."""
    return "not slow" not in config.getoption("markexpr")


def scope(file: str, slow: bool = False) -> str:
    """Return what a file belongs to: the files that one process takes, by name, or the file alone.

    slow: whether the run has slow tests.
    """
    name = next((name for start, name in TOGETHER.items() if file.startswith(start)), file)
    return file if slow and name in ALONE_BESIDE_SLOW_TESTS else name


def unit(test: str, slow: bool = False) -> str:
    """Return what one process takes at once: the scope of a test's file, or the test alone.

    test: its id. slow: whether the run has slow tests.
    """
    file = test.partition("::")[0]
    return test if slow and file in SPLIT else scope(file, slow)


def in_order(files: Counter[str], slow: bool = False) -> list[str]:
    """Return the files in the order in which they begin: those first that take longest, then those that train models.

    files: the number of each file's whole runs, besides those in SECONDS and SLOW_SECONDS. Files that belong together
    follow each other.
    """
    takes: Counter[str] = Counter()
    trains: dict[str, bool] = {}
    scopes = {file: scope(file, slow) for file in files}
    for file, number in files.items():
        takes[scopes[file]] += SECONDS.get(file, 0) + RUN_S * number + (SLOW_SECONDS.get(file, 0) if slow else 0)
        trains[scopes[file]] = trains.get(scopes[file], False) or file.startswith(TRAINING)
    first = {each: place for place, each in reversed(list(enumerate(scopes.values())))}
    return sorted(files, key=lambda file: (-takes[own := scopes[file]], not trains[own], first[own]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files in order, once those that were not asked for are taken out."""
    whole: Counter[str] = Counter()
    paths = {item: item.path.relative_to(config.rootpath).as_posix() for item in items}
    for item, path in paths.items():
        runs = path not in SECONDS and "ray_address" in getattr(item, "fixturenames", ())
        whole[path] += runs or (path not in SLOW_SECONDS and item.get_closest_marker("slow") is not None)
    places = {file: place for place, file in enumerate(in_order(whole, has_slow(config)))}
    items.sort(key=lambda item: places[paths[item]])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the files that belong together to one process, where files are spread over processes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):  # type: ignore[misc]
        """As `loadfile`, with some files taken for one."""

        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid, has_slow(config))

    return Together(config, log)
