"""Register models in MLflow, compare the scores of a model's versions, and choose its champion.

    verdict = registry.register(tree, uri, "digits", Claim(0.95, "accuracy", True, "8f3a..."), tags={})

`models:/NAME@champion` is the best version by one metric on the same validation data. A model that is worse by these is
not registered, so `latest` does not become worse; one that cannot be compared, or is equal, is the `challenger`.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raygpu.tracking import client, models
from raygpu.tracking.runs import RunTree

CHAMPION, CHALLENGER = "champion", "challenger"
TRIES = 10
"""Maximum number of looks at the champion while others register too."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Score of a model and how it was measured, kept as the tags of its version."""

    score: float
    metric: str
    maximize: bool
    validation: str
    """Fingerprint of the validation data."""

    def tags(self) -> dict[str, Any]:
        """Return the claim as tags of a version."""
        direction = "max" if self.maximize else "min"
        return {
            "raygpu.score": self.score,
            "raygpu.metric": self.metric,
            "raygpu.direction": direction,
            "raygpu.validation": self.validation,
        }

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> Claim | None:
        """Read the claim from a version's tags; None where they have none, as in a version of another program."""
        try:
            score = float(tags["raygpu.score"])
            direction, validation = tags["raygpu.direction"], tags["raygpu.validation"]
            claim = cls(score, tags["raygpu.metric"], direction == "max", validation)
        except (KeyError, ValueError):
            return None
        return claim if math.isfinite(score) else None

    def unlike(self, other: Claim) -> str | None:
        """Return why the other claim's score cannot be compared with this one; None if it can."""
        if (self.metric, self.maximize) != (other.metric, other.maximize):
            return f"is scored by {other.metric} ({'max' if other.maximize else 'min'})"
        return "was scored on other validation data" if self.validation != other.validation else None

    def beats(self, other: Claim) -> bool:
        """Return whether this score is better than that of another, comparable claim."""
        return self.score > other.score if self.maximize else self.score < other.score


@dataclass(frozen=True, slots=True)
class Version:
    """A registered version of a model."""

    number: int
    claim: Claim | None
    run_id: str | None = None
    """MLflow run that logged the model."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Outcome of a registration: whether the model was registered, and as what."""

    line: str
    """Message for the user."""
    registered: models.Registered | None = None
    """Version in the registry; None if the model was refused."""
    alias: str | None = None
    """Alias of the version, `champion` or `challenger`; None if it has none."""


def register(tree: RunTree, uri: str, name: str, claim: Claim, tags: Mapping[str, Any]) -> Registration:
    """Register the model at `uri` as a new version of the registered model `name`, and set its alias.

    A model is refused if the champion, or without one the best comparable version, beats it. A version of the same run
    with the same claim is kept as it is: a training that is resumed after its end has nothing new. tags: tags of the
    version. Raises TrackingError.
    """
    with models.store_of(tree):
        return _register(tree, uri, name, claim, tags)


def _register(tree: RunTree, uri: str, name: str, claim: Claim, tags: Mapping[str, Any]) -> Registration:
    import mlflow

    registry = mlflow.MlflowClient()
    try:
        versions, champion = _versions(registry, name)
        same = next((v for v in versions.values() if (v.run_id, v.claim) == (tree.run_id, claim)), None)
        if same is not None and (alias := _alias(registry, name, same)) is not None:
            before = models.Registered(name, str(same.number))
            return Registration(f"registered before: {before.uri}, as @{alias}", before, alias)
        others = [version for version in versions.values() if version is not same]
        best = champion or _best(claim, others)
        title = "champion" if champion else "best registered version"
        if best is not None and best.claim is not None and claim.unlike(best.claim) is None and best.claim.beats(claim):
            where, score = f"models:/{name}/{best.number}", f"{best.claim.score:.6g}"
            return Registration(f"{claim.metric} {claim.score:.6g} does not beat the {title}'s {score} ({where})")
        if same is None:  # else it was registered, and got no alias
            all_tags = {key: str(value) for key, value in {**tags, **claim.tags()}.items()}
            with contextlib.redirect_stderr(io.StringIO()):  # which tells in two lines what is told in one
                model_version = mlflow.register_model(uri, name, tags=all_tags)
            same = Version(int(model_version.version), claim)
    except Exception as error:
        raise client.fault(tree.uri, error) from error
    registered = models.Registered(name, str(same.number))
    why = _why_challenger(claim, best, name, title)
    try:
        if why is None:
            newest = max((number for number in versions if number != same.number), default=0)
            why = _claimed(registry, name, same, best, newest=newest)
        if why is not None:
            registry.set_registered_model_alias(name, CHALLENGER, registered.version)
    except Exception as error:  # noqa: BLE001 - the version is there: what is told is that
        return Registration(
            f"registered: {registered.uri}, without an alias: {client.fault(tree.uri, error)}", registered
        )
    alias = CHAMPION if why is None else CHALLENGER
    return Registration(
        f"registered: {registered.uri}, as @{alias}: {why or _beaten(claim, best, name)}", registered, alias
    )


def _alias(registry: Any, name: str, version: Version) -> str | None:
    """Return the alias that raygpu has given to a version."""
    aliases = registry.get_registered_model(name).aliases
    return next((alias for alias in (CHAMPION, CHALLENGER) if int(aliases.get(alias, 0)) == version.number), None)


def _versions(registry: Any, name: str) -> tuple[dict[int, Version], Version | None]:
    """Return the registered versions, by number, and the champion; empty and None for a name that is new."""
    quote = '"' if "'" in name else "'"
    entries = registry.search_model_versions(f"name = {quote}{name}{quote}")
    versions = {int(each.version): Version(int(each.version), Claim.of(each.tags), each.run_id) for each in entries}
    if not versions:
        return {}, None
    number = int(registry.get_registered_model(name).aliases.get(CHAMPION, 0))
    return versions, versions.get(number)


def _best(claim: Claim, versions: Iterable[Version]) -> Version | None:
    """Return the best of the versions that are comparable with the claim, the first of equal ones; None without any."""
    best: Version | None = None
    for version in sorted(versions, key=lambda version: version.number):
        if version.claim is None or claim.unlike(version.claim) is not None:
            continue
        if best is None or best.claim is None or version.claim.beats(best.claim):
            best = version
    return best


def _why_challenger(claim: Claim, best: Version | None, name: str, title: str) -> str | None:
    """Return why a model that is no worse does not become the champion; None if it does."""
    if best is None:
        return None
    where = f"the {title} models:/{name}/{best.number}"
    if best.claim is None:
        return f"not compared with {where}, which has no score of raygpu's; latest is this version now"
    if (difference := claim.unlike(best.claim)) is not None:
        return f"not compared with {where}, which {difference}; latest is this version now"
    return None if claim.beats(best.claim) else f"{claim.metric} {claim.score:.6g} equals that of {where}"


def _beaten(claim: Claim, best: Version | None, name: str) -> str:
    """Return why a model is the champion."""
    if best is None or best.claim is None:
        return f"{claim.metric} {claim.score:.6g}, the first with a score"
    return f"{claim.metric} {claim.score:.6g} beats the {best.claim.score:.6g} of models:/{name}/{best.number}"


def _claimed(registry: Any, name: str, own: Version, best: Version | None, *, newest: int) -> str | None:
    """Make the own version the champion, or a better one that was registered at the same time; return why, then.

    MLflow cannot compare and change an alias in one step: each registration looks at the versions again, until the
    champion is the best of the versions since `newest`, the last version before.
    """
    assert own.claim is not None
    for _ in range(TRIES):
        versions, champion = _versions(registry, name)
        contenders = [each for each in versions.values() if each.number > newest]
        if champion is not None and (best is None or champion.number == best.number):
            contenders.append(champion)
        winner = _best(own.claim, [own, *contenders]) or own
        if champion is not None and champion.number == winner.number:
            break
        registry.set_registered_model_alias(name, CHAMPION, str(winner.number))
    if winner.number == own.number or winner.claim is None:
        return None
    return f"models:/{name}/{winner.number}, registered at the same time, has {winner.claim.score:.6g}"
