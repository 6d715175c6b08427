"""The plan of a sweep in lines for a person: the trials, their architectures, their packing or fusion, and the
reasons."""

from __future__ import annotations

from collections.abc import Sequence

from raygpu.cli.formatting import counted, duration
from raygpu.cli.set_view import rules_lines, size_text
from raygpu.config import SweepConfig
from raygpu.planning.estimates import Hardware
from raygpu.planning.gpu_shares import ArrayPlan, DevicePlan, Plan
from raygpu.planning.sweep_plan import WHOLE_GPU, Decision
from raygpu.search.architectures import Architectures
from raygpu.search.generations import Generations
from raygpu.search.halving import rungs
from raygpu.search.hyperband import bracket_shares
from raygpu.search.optuna_samplers import notes
from raygpu.search.repeats import first_round
from raygpu.search.signature import ITS_OWN, MAX_MEMBERS, Group, Signature, cut, differing
from raygpu.search.space import Space
from raygpu.search.stopping import too_late

NEEDS = {
    "fused": "only a TorchExperiment can be fused",
    "split": "only a KerasExperiment runs on TensorFlow's logical devices",
}
MOST_LINES = 6
"""Largest number of groups, and of reasons, that are listed one by one."""
FEW_SIGNATURES = 6
"""Number of signatures that need no line: the plan lists their arrays one by one."""


def sweep_lines(config: SweepConfig, *, simulated: bool) -> list[str]:
    """State the search; also that its data is synthetic, or its device simulated, if so."""
    epochs = f", {counted(config.epochs, 'epoch')} each" if config.epochs else ""
    direction = "highest" if config.maximize else "lowest"
    lines = [
        f"sweep {config.name}: {size_text(config)} of {config.code_name}{epochs}; {config.search.algorithm} search,"
        f" {_stopping(config)}, {direction} {config.metric} wins{_further(config)}",
    ]
    lines += rules_lines(config)
    if config.data.synthetic:
        lines.append("data: synthetic, made up to measure speed; the scores mean nothing")
    if simulated:
        lines.append("no NVIDIA GPU here: trials are packed onto one simulated GPU, the CPU")
    return lines


def _further(config: SweepConfig) -> str:
    """Return the further metrics, of whose front the end tells, as text; empty with a single metric."""
    names = [f"{'highest' if more else 'lowest'} {name}" for name, more in config.further_metrics]
    return f"; Pareto front with {' and '.join(names)}" if names else ""


def search_lines(config: SweepConfig, space: Space) -> list[str]:
    """State what the search algorithm leaves to chance, hyperband's brackets and the starting points; empty where there
    is nothing to say."""
    lines = notes(config.search.algorithm, space)
    if config.stopping.algorithm == "hyperband" and "algorithm" not in too_late(config):
        lines.append(_brackets(config))
    if config.start and config.start_from is None:
        count = len(config.start)
        lines.append(f"start: tried first: {'1 set' if count == 1 else f'{count} sets'} of [[start]]")
    return lines


def decision_lines(
    decision: Decision, config: SweepConfig, hardware: Hardware, left_out: Sequence[str] = (), *, drawn: bool
) -> list[str]:
    """State the plan, with the prediction behind it.

    left_out: lines on GPUs that the plan does not use. drawn: whether the search has drawn its trials already.
    """
    plan = decision.plan
    if isinstance(plan, Plan):
        lines = plan_lines(config, plan, hardware.names)
    elif decision.mode == "split":
        lines = split_lines(plan, hardware.names)
    else:
        lines = fused_lines(config, plan, decision.groups if drawn else None, hardware.names)
    lines += [*left_out, *_predicted_lines(decision), *_budget_lines(decision, config)]
    if isinstance(plan, Plan) and config.gpu.mode in NEEDS:
        lines.append(f"plan: {NEEDS[config.gpu.mode]}, so every trial is trained alone")
    if decision.mps and hardware.device_gib is not None:  # a simulated device has no MPS
        lines += mps_lines(asked=config.gpu.mps == "on")
    return lines


def _predicted_lines(decision: Decision) -> list[str]:
    estimates, options = decision.estimates, decision.options
    notes = [f"plan: {note}" for note in estimates.notes]
    if not options:
        return [*notes, f"plan: not measured: {estimates.source}"] if estimates.source else notes
    predictions = "; ".join(option.told() for option in options)
    if len(options) > 1 and options[1].within_noise_of(options[0]):
        predictions += "; the first two are within noise of each other"
    if options[0].wall_s > min(option.wall_s for option in options):
        predictions += "; the first is taken, as a search learns more from trials drawn one by one than in generations"
    return [*notes, f"plan: predicted time of the trials, by a {estimates.source}: {predictions}"]


def _budget_lines(decision: Decision, config: SweepConfig) -> list[str]:
    """Say that the time budget ends the sweep before its last trial, where the prediction says so."""
    budget_s, predicted = config.time_budget_s, decision.predicted
    if budget_s is None:
        return []
    short = predicted and predicted["wall_s"][predicted["chosen"]] > budget_s
    return [
        f"plan: the sweep ends after {duration(budget_s)}{', before its last trials' if short else ' at the latest'}"
    ]


def plan_lines(config: SweepConfig, made: Plan, names: Sequence[str]) -> list[str]:
    """Return the plan of process mode in lines. names: of the devices."""
    if len(made.parts) == 1:
        part = made.parts[0]
        lines = [
            f"plan: process mode, {part.share} ({part.reason}); {made.slots} at once on {', '.join(names)},"
            f" {_per_trial(part)} per trial"
        ]
    else:
        lines = [f"plan: process mode, {made.slots} at once on {len(made.parts)} types of GPU"]
        lines += [
            f"plan: on {_cards(part)}: {part.share} ({part.reason}); {_per_trial(part)} per trial"
            for part in made.parts
        ]
    generations = Generations.of(config, in_arrays=False)
    if config.search.learns and generations is None:
        each = "set" if config.per_set > 1 else "trial"
        repeatable = (
            "" if config.stopping.algorithm != "none" else "; --search.generation 8 draws what another run repeats"
        )
        lines.append(f"plan: {config.search.algorithm} draws each {each} by all results so far{repeatable}")
    if generations is not None and (used := generations.end(0) * first_round(config)) < made.slots:
        first = "" if generations.largest == generations.end(0) else " at first"
        lines.append(
            f"plan: {_generations(config, generations)} at a time, so {used} of {made.slots} slots are used{first}; a"
            " larger --search.generation uses more and learns less"
        )
    return lines


def _generations(config: SweepConfig, generations: Generations) -> str:
    """Return how many trials a search that learns asks for, as text."""
    first = first_round(config)
    each = f"sets of {counted(first, 'training')}" if config.per_set > 1 else "trials"
    return f"{config.search.algorithm} asks for {generations} {each}"


def fused_lines(
    config: SweepConfig, made: ArrayPlan, groups: Sequence[Group] | None, names: Sequence[str]
) -> list[str]:
    """Return the plan of fused mode in lines. groups: of all trials; None if the search draws them as it goes."""
    arrays = made.arrays
    alike = "similar trials train together, as one array of models"
    if config.gpu.width != "auto":
        alike += f", {config.gpu.width} at once"
    if len(arrays.parts) == 1:
        part = arrays.parts[0]
        lines = [
            f"plan: fused mode: {alike}; {counted(arrays.slots, 'array')} at a time on {', '.join(names)},"
            f" {part.share}{_held(part)}, {_per_trial(part)} per array"
        ]
    else:
        lines = [f"plan: fused mode: {alike}; {arrays.slots} arrays at a time on {len(arrays.parts)} types of GPU"]
        lines += [
            f"plan: on {_cards(part)}: arrays {part.share}{_held(part)}; {_per_trial(part)} per array"
            for part in arrays.parts
        ]
    if groups is None:
        generations = Generations.of(config, in_arrays=True)
        assert generations is not None  # of all other searches the trials are known
        return [
            *lines,
            f"plan: {_generations(config, generations)} at a time, so no array is wider than that; a larger"
            " --search.generation makes wider arrays and learns less",
        ]
    fused = {group.signature: group for group in groups if group.reason is None}
    counts = {signature: len(group.trials) for signature, group in fused.items()}
    numbers = cut(counts, arrays.slots, made.members or MAX_MEMBERS)
    for signature, group in list(fused.items())[:MOST_LINES]:
        lines.append(f"plan: {counted(numbers[signature], 'array')} of {len(group.trials)} trials{_values(signature)}")
    if len(fused) > MOST_LINES:
        rest = list(fused.values())[MOST_LINES:]
        trials, count = sum(len(group.trials) for group in rest), sum(numbers[group.signature] for group in rest)
        lines.append(f"plan: {counted(count, 'array')} of {trials} trials, with {len(rest)} other sets of values")
    return lines + _alone_lines(groups, made.alone)


def split_lines(made: ArrayPlan, names: Sequence[str]) -> list[str]:
    """Return the plan of split mode in lines: Keras trials on logical devices. names: of the devices."""
    arrays = made.arrays
    return [
        f"plan: split mode, one process for {made.members} trials, {_shares(arrays)}, its device split into"
        f" {made.members} logical devices; {arrays.slots} at once on {', '.join(names)}, {_per_trial(arrays.parts[0])}"
        " per process"
    ]


def mps_lines(*, asked: bool) -> list[str]:
    """Return the reason for CUDA MPS in a line. asked: whether a person asked for it."""
    why = "asked for" if asked else "measured to be faster"
    return [f"plan: packed trials run under CUDA MPS ({why}), each with its part of the GPU"]


def _alone_lines(groups: Sequence[Group], alone: Plan) -> list[str]:
    """Return lines that count the trials that are not fused, by reason."""
    by_reason: dict[str, list[Group]] = {}
    for group in groups:
        if group.reason is not None:
            by_reason.setdefault(group.reason, []).append(group)
    lines = []
    for reason, alone_groups in list(by_reason.items())[:MOST_LINES]:
        count = sum(len(group.trials) for group in alone_groups)
        counted_trials = f"{counted(count, 'trial')} {'is' if count == 1 else 'are'}"
        if reason == ITS_OWN and (names := differing(groups)):
            reason = f"{ITS_OWN}: no other has its values of {', '.join(names)}, which shape its program"
        lines.append(f"plan: {counted_trials} trained alone, {_shares(alone)}: {reason}")
    if len(by_reason) > MOST_LINES:
        rest = list(by_reason.values())[MOST_LINES:]
        count = sum(len(group.trials) for same_reason in rest for group in same_reason)
        lines.append(f"plan: {count} trials are trained alone for {len(rest)} other reasons")
    return lines


def _values(signature: Signature) -> str:
    """Return the values by which this group of trials differs from others, as text."""
    return f" with {signature}" if str(signature) else ""


def _held(part: DevicePlan) -> str:
    """Return the reason for a share that is not the requested one, in parentheses; empty otherwise."""
    is_usual = part.reason == WHOLE_GPU or (part.reason.startswith("gpu.fraction") and "," not in part.reason)
    return "" if is_usual else f" ({part.reason})"


def _cards(part: DevicePlan) -> str:
    return part.device if part.num_gpus == 1 else f"{part.num_gpus} x {part.device}"


def _shares(made: Plan) -> str:
    if len(made.parts) == 1:
        return str(made.parts[0].share)
    return "; ".join(f"on {part.device}, {part.share}" for part in made.parts)


def _per_trial(made: DevicePlan) -> str:
    cpus = "1 CPU" if made.cpus_per_trial == 1 else f"{made.cpus_per_trial:g} CPUs"
    return f"{cpus} and {counted(made.threads_per_trial, 'thread')}"


def _stopping(config: SweepConfig) -> str:
    stopping, idle = config.stopping, too_late(config)
    rules = []
    match "none" if "algorithm" in idle else stopping.algorithm:
        case "halving" | "hyperband" as rule:
            rules = [f"by {rule} (grace {stopping.grace_epochs}, one in {stopping.reduction:g} survives)"]
        case "median":
            rules = [f"below the median (grace {stopping.grace_epochs})"]
    if stopping.patience is not None and "patience" not in idle:
        rules.append(f"after {counted(stopping.patience, 'epoch')} without improvement")
    if config.population.interval is not None:
        return f"a population compared every {config.population.interval} epochs"
    return f"stopping {' and '.join(rules)}" if rules else "no early stopping"


def _brackets(config: SweepConfig) -> str:
    """Return a line on hyperband's brackets: the first rung of each, with its share of the trials."""
    stopping = config.stopping
    assert config.epochs is not None  # the schema asks for it
    first = rungs(stopping.grace_epochs, stopping.reduction, config.epochs)
    shares = bracket_shares(len(first), stopping.reduction, stopping.brackets)
    begins = [*(f"after epoch {rung}" for rung in first), "never"]
    parts = [f"{100 * share:.0f} % {begin}" for share, begin in zip(shares, begins, strict=False)]
    return f"hyperband: trials are first compared: {', '.join(parts)}"


def architecture_lines(found: Architectures | None, *, drawn: bool) -> list[str]:
    """Return a line on the signatures of a search; empty for a few.

    drawn: whether these are all trials of the sweep; otherwise they are a random sample.
    """
    if found is None or (max(found.num_signatures, found.possible or 0) <= FEW_SIGNATURES and not found.endless):
        return []
    have = "have" if drawn else "drawn at random have about"
    by = ", ".join(found.names)
    possible = f"; [space] makes {found.possible:,}" if found.possible is not None else ""
    width = f"{found.mean_width:.1f}".removesuffix(".0")
    endless = ""
    if found.endless:
        verb = "has" if len(found.endless) == 1 else "have"
        endless = f"; {', '.join(found.endless)} {verb} no end of values, which a choice of few values would fix"
    return [
        f"plan: {found.num_trials} trials {have} {found.num_signatures} signatures, by {by}{possible}: only equal ones"
        f" share an array, so {width} trials on average where one signature would allow {found.num_trials}{endless}"
    ]
