"""The training of `raygpu gpus --for FILE`: its kept profiles, by type of device. Nothing is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from raygpu.config import PackConfig, load, read_toml
from raygpu.config.code_folder import code_folder
from raygpu.config.command_names import typed
from raygpu.planning.gpu_room import need_of
from raygpu.planning.profiles import Profile, Subject
from raygpu.records.interrupts import output_to_stderr
from raygpu.records.profile_store import ProfileStore
from raygpu.search.signature import Signature
from raygpu.search.trials import Trial
from raygpu.workflow.gpu_rooms import WantedTraining
from raygpu.workflow.packing import subject_of
from raygpu.workflow.validation import draws

MOST_DRAWS = 256
"""Number of sets of hyper-parameters of a sweep's file whose profiles are looked for."""


def wanted_training(path: Path) -> WantedTraining:
    """Return what the kept profiles tell of the training in a sweep's, a pack's or a training's file. Raises BadInput.

    Its code and data are loaded, as the keys of profiles have their versions and shapes.
    """
    config = load(path, {}, PackConfig)
    table = read_toml(path).get("hyperparameters")
    sets = [table] if table and not config.space else list(islice(draws(config), MOST_DRAWS)) or [{}]
    trials = [Trial(Trial.name(index), config.seed, values) for index, values in enumerate(sets)]
    with output_to_stderr(wanted=True):  # whatever the user's code prints is no part of the output
        _, _, subject = subject_of(config, trials[0], [], code_folder(config, path, {}), lambda lines: None)
    needs = [need_of(profile, "process") for profile in kept(ProfileStore.at(config.profiles).all(), subject, trials)]
    # A pack reads [space], and not the [hyperparameters] of a training.
    command = f"{typed('pack')} {path}" if not table else f"{typed('pack')} with the file of a sweep"
    known_needs = tuple(need for need in needs if need is not None)
    return WantedTraining(path.name, known_needs, f"{command} measures it there")


def kept(profiles: Iterable[Profile], subject: Subject, trials: Sequence[Trial]) -> list[Profile]:
    """Return one profile for each type of device: of the first trial if there is one, else of the most trials.

    subject: the first trial's. Profiles of other versions are left out; the driver's is another one on each machine.
    """
    best: dict[tuple[str, float | None], tuple[tuple[bool, int, bool, str], Profile]] = {}
    for profile in profiles:
        theirs = profile.subject
        alike = replace(subject, hyperparameters=theirs.hyperparameters)
        if not theirs.same_training(alike) or _versions(theirs) != _versions(subject):
            continue
        signature = Signature(tuple(theirs.hyperparameters.items()))
        first = theirs.hyperparameters == subject.hyperparameters
        num_trials = Counter(signature.is_of(trial) for trial in trials)[True]
        if not first and not num_trials:
            continue
        rank = first, num_trials, theirs.num_cpus == subject.num_cpus, profile.measured_at
        device = theirs.device, theirs.device_gib
        if device not in best or rank > best[device][0]:
            best[device] = rank, profile
    return [profile for _, profile in best.values()]


def _versions(subject: Subject) -> dict[str, str]:
    return {name: version for name, version in subject.versions.items() if name != "driver"}
