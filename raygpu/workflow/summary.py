"""The results of a run: a sweep's summary, files and description of its best model; a training's summary."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raygpu.config import SweepConfig, TrainConfig
from raygpu.errors import RaygpuError, one_line
from raygpu.experiment import Experiment, take
from raygpu.planning.sweep_plan import Decision
from raygpu.records import objectives_csv, population_file, sets_csv, trials_csv
from raygpu.records.best_trial import add_to_best, command_line, drop_best, drop_description, is_best, write_best
from raygpu.records.clock import Stages
from raygpu.records.run_directory import RunDirectory
from raygpu.records.run_files import rounded
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.records.set_records import compared
from raygpu.records.training_progress import History
from raygpu.records.trial_checkpoints import keep_checkpoints, kept_epoch
from raygpu.records.trial_files import drop_files
from raygpu.records.trial_records import Records
from raygpu.search.trial_record import TrialRecord, cut_short
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.training.callable.working_folder import settle
from raygpu.workflow.population_checks import winners_lineage, winners_values
from raygpu.workflow.user_code import Problem
from raygpu.workflow.winner_score import trained_models

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.train.production import TrainingOutcome
    from raygpu.planning.worker_devices import WorkerDevices

NUM_SHOWN = 20
"""Most numbers of a target, or of an output, in the table of predictions."""
NUM_SAMPLES = 8


def summarize(
    config: SweepConfig,
    decision: Decision,
    records: Records,
    cluster: Cluster,
    stages: Stages,
    tracking: Mapping[str, Any],
    arrays_s: Mapping[str, float],
) -> dict[str, Any]:
    """Return the content of `summary.json`; a reading that does not exist is None.

    stages: the command's so far. arrays_s: seconds of fused arrays, by purpose.
    """
    best = best_record(records)
    wall_s = records.snapshot().elapsed_s
    throughput = records.gpu_throughput(wall_s)
    return {
        "name": config.name,
        "mode": decision.mode,
        "seed": config.seed,
        "metric": config.metric,
        "score": config.score,
        "data": "synthetic" if config.data.synthetic else "real",
        "num_trials": records.num_trials,
        **(_of_sets(records) if not records.repetition.is_single else {}),
        "completed": records.count("finished"),
        "diverged": records.count("diverged"),
        "stopped_early": records.count("stopped"),
        "failed": records.count("failed"),
        "interrupted": records.count("interrupted"),
        "common_failure": records.hopeless,
        "out_of_time": records.out_of_time,
        "taken_over": sum(len(record.changes) for record in records.by_id.values()),
        "retries": records.retries,
        "out_of_memory": records.out_of_memory,
        "wall_s": round(wall_s, 2),
        "rgu_hours": rounded(records.rgu_hours(), 6),
        "plan": decision.plan.as_dict(),
        "predicted": decision.predicted,
        "best": _described(records, best, command_line(config, best.trial)) if best is not None else None,
        **_several(records),
        "gpus": [
            {
                "index": device.index,
                "uuid": device.uuid,
                "name": device.name,
                "samples_per_s": rounded(throughput[device.index]),
                "memory_gib": rounded(records.gpus.mean_reading(device.index, "memory_gib"), 3),
                "util_pct": rounded(records.gpus.mean_reading(device.index, "util_pct")),
            }
            for device in cluster.devices
        ],
        "first_epoch_s": rounded(records.first_epoch_s, 2),
        "command_s": rounded(sum(stages.seconds.values()), 2),
        "stages_s": stages.rounded(),
        "workers_s": {activity: rounded(seconds, 2) for activity, seconds in records.spent.items()},
        "arrays_s": {activity: rounded(seconds, 2) for activity, seconds in arrays_s.items()},
        "tracking": dict(tracking),
    }


def _of_sets(records: Records) -> dict[str, Any]:
    """Return the part of the summary on sets that are trained several times."""
    sets = records.sets()
    comparison = compared(sets)
    return {
        "repeats": records.repetition.repeats,
        "folds": records.repetition.folds,
        "num_sets": len(sets),
        "complete_sets": sum(each.is_complete for each in sets),
        "left_out": len(records.saved),
        "comparison": comparison.as_dict() if comparison is not None else None,
    }


def _several(records: Records) -> dict[str, Any]:
    """Return the summary's part on several metrics: their directions and the Pareto front; empty with a single one."""
    scoring = records.scoring
    if not scoring.further:
        return {}
    goals = [(scoring.metric, scoring.maximize), *scoring.further]
    front = [
        {
            "trial_id": record.trial.trial_id,
            "values": list(record.objectives or ()),
            "hyperparameters": {name: plain(value) for name, value in record.trial.hyperparameters.items()},
        }
        for record in records.front()
    ]
    metrics = [{"metric": name, "direction": "max" if more else "min"} for name, more in goals]
    return {"metrics": metrics, "front": front}


def _described(records: Records, best: TrialRecord, line: str | None) -> dict[str, Any]:
    """Return the best trial's part of the summary, or the best set's. line: the command line of a script."""
    described = {
        "trial_id": best.trial.trial_id,
        **set_score(records, best),
        "epoch": best.score_epoch,
        "best_epoch": best.best_epoch,
        "epochs": best.epochs,
        "ended": cut_short(best.status, best.epochs, records.epochs),
        "hyperparameters": {name: plain(value) for name, value in best.trial.hyperparameters.items()},
    }
    return described if line is None else {**described, "command_line": line}


def summarize_training(
    config: TrainConfig,
    history: History,
    placing: WorkerDevices,
    global_batch: int | None,
    ended: TrainingOutcome,
    stages: Stages,
) -> dict[str, Any]:
    """Return the content of a production training's `summary.json`, but for its tracking.

    stages: the command's so far. A reading that does not exist is None.
    """
    last, best = history.last, history.best
    by_device = history.by_device()
    return {
        "name": config.name,
        "source": config.source,
        "hyperparameters": config.hyperparameters,
        "seed": config.seed,
        "data": "synthetic" if config.data.synthetic else "real",
        "workers": placing.workers,
        "global_batch": global_batch,
        "shares": list(last.shares) if last is not None and last.shares else None,
        "epochs": history.epoch,
        "metrics": {name: rounded(value, 9) for name, value in history.metrics.items()},
        "best": {"score": best.score, "epoch": best.epoch} if best is not None else None,
        "retries": max(0, history.starts - 1),
        "wall_s": round(history.elapsed_s, 2),
        "samples_per_s": rounded(history.samples_per_s),
        "noise_scale": last.noise.samples if last is not None and last.noise is not None else None,
        "gpus": [
            {"index": d.index, "uuid": d.uuid, "name": d.name, "samples_per_s": rounded(by_device.get(d.index))}
            for d in history.devices
        ],
        "first_epoch_s": rounded(history.first_epoch_s, 2),
        "command_s": rounded(sum(stages.seconds.values()), 2),
        "stages_s": stages.rounded(),
        "workers_s": {activity: rounded(seconds, 2) for activity, seconds in history.spent.items()},
        "checkpoint": str(ended.kept) if ended.kept is not None else None,
    }


def plain(value: Any) -> Any:
    """Convert a hyper-parameter to a value that JSON can hold: infinities, dates and the like become text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def set_score(records: Records, best: TrialRecord) -> dict[str, Any]:
    """Return the score of the best trial, or of the set that it is the best repeat of."""
    if records.repetition.is_single:
        return {"score": best.score}
    best_set = records.set_of(best.trial.set_id)
    return {
        "set_id": best_set.set_id,
        "score": best_set.mean,
        "standard_error": best_set.error,
        "repeats": len(best_set.scores),
        "scores": best_set.scores,
    }


def best_record(records: Records) -> TrialRecord | None:
    """Return the best trial with a finite score, of sets the best one's best repeat; None without one."""
    if not records.repetition.is_single:
        return next((each.best for each in records.sets() if each.best is not None), None)
    ranked = records.ranked()
    return ranked[0] if ranked and not ranked[0].diverged else None


def write_files(
    folder: RunDirectory,
    config: SweepConfig,
    found: Problem,
    records: Records,
    checkpoints: Mapping[str, str],
    summary: Mapping[str, Any],
) -> list[str]:
    """Write all files of the run's folder that describe results; return lines on those that could not be written."""
    by_id = sorted(records.by_id.values(), key=lambda record: Trial.order(record.trial.trial_id))
    folder.write_summary(summary)
    trials_csv.write(folder.trials_csv, by_id)
    if config.metrics:
        front = {record.trial.trial_id for record in records.front()}
        objectives_csv.write(folder.objectives_csv, config.metrics, by_id, front)
    folder.write_failures(by_id)
    if config.population.interval is not None:
        population_file.write(folder.population, {record.trial.trial_id: record.changes for record in by_id})
    best = best_record(records)
    wanted = list(records.by_id) if config.keep == "all" else _winners(records, best) if best else []
    if not records.repetition.is_single:
        sets_csv.write(folder.sets_csv, records.sets())
    ended = {record.trial.trial_id for record in by_id if record.is_complete}
    keep_checkpoints(folder, checkpoints, wanted, ended, complete=not records.is_short)
    if config.command is not None and config.script.folder == "own" and not records.is_short:
        _keep_files(folder, records, wanted)
    lines: list[str] = []
    if best is None:
        drop_best(folder)
    else:
        if not is_best(folder, best):
            drop_description(folder)
        write_best(folder, config, best, score=set_score(records, best), values=_schedule_of(config, records, best))
        if (tested := ScoreOnTest.read(summary.get(TEST))) is not None:
            add_to_best(folder, tested.metrics)
        checkpoint = folder.checkpoint(best.trial.trial_id)
        lines += _unlike(folder, [records.by_id[name] for name in trained_models(records, best)])
        has_model = isinstance(found.code, Experiment) and found.splits is not None
        # More repeats of an ended sweep may make another set the best one.
        if has_model and checkpoint is None:
            lines.append(f"no checkpoint of the best trial, {best.trial.trial_id}, was kept")
        elif has_model and checkpoint is not None:
            try:
                _describe_best(folder, found, best, checkpoint, predictions=not config.data.synthetic)
            except Exception as error:  # noqa: BLE001 - the user's model, on the CPU: no result depends on it
                lines.append(f"no architecture and predictions of the best trial: {one_line(error)}")
    return lines


def _schedule_of(config: SweepConfig, records: Records, best: TrialRecord) -> dict[str, Any]:
    """Return the values that the best trial of a population was trained with, epoch by epoch; empty without one."""
    if config.population.interval is None:
        return {}
    return winners_values(winners_lineage(records, best), records, best)


def _winners(records: Records, best: TrialRecord) -> list[str]:
    """Return the ids of the trials whose checkpoints stay: the best one, and the other repeats of its set."""
    alone = records.repetition.is_single
    same = [best] if alone else records.set_of(best.trial.set_id).trials
    return [record.trial.trial_id for record in same]


def _keep_files(folder: RunDirectory, records: Records, wanted: Sequence[str]) -> None:
    """Keep the files that the wanted trials' scripts have written; no trial will go on with the others'."""
    for trial_id in wanted:
        settle(folder.trials / trial_id)  # if a worker was lost after the trial's end
    drop_files(folder, records.by_id.keys() - set(wanted))


def _unlike(folder: RunDirectory, winners: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each of the winner's models whose kept checkpoint is not of the epoch of its score."""
    lines = []
    for winner in winners:
        checkpoint, rule = folder.checkpoints / winner.trial.trial_id, winner.score_rule
        try:
            saved_epoch = kept_epoch(Storage(str(checkpoint)))
        except RaygpuError as error:
            lines.append(str(error))
            continue
        at_end = saved_epoch is None and rule == "last"
        if not checkpoint.is_dir() or at_end or saved_epoch == winner.score_epoch:
            continue
        epoch = f"epoch {saved_epoch}" if saved_epoch is not None else "the last one that was saved"
        why = "interrupted since the last checkpoint"
        why = why if saved_epoch is not None else "nothing was saved before that report"
        scored = f"its {rule} epoch {winner.score_epoch}"
        lines.append(f"the kept checkpoint of {checkpoint.name} is not of {scored} but {epoch}: {why}")
    return lines


def _describe_best(
    folder: RunDirectory, found: Problem, best: TrialRecord, checkpoint: Path, *, predictions: bool
) -> None:
    """Write `best/architecture.txt` and, if wanted, `best/predictions.csv`, from the best trial's checkpoint."""
    inputs, targets = (take(part, slice(0, NUM_SAMPLES)) for part in found.validation_of(best.trial))
    if found.code.framework == "torch":
        from raygpu.training.torch.models import predict
    else:
        from raygpu.training.keras.solo import predict
    architecture, outputs = predict(found.code, best.trial, checkpoint, inputs)
    drop_description(folder)
    folder.best.mkdir(exist_ok=True)
    (folder.best / "architecture.txt").write_text(architecture.rstrip() + "\n")
    if predictions and outputs and not isinstance(targets, Mapping):
        _write_predictions(folder.best / "predictions.csv", outputs, targets)


def _write_predictions(path: Path, outputs: list[np.ndarray], targets: np.ndarray) -> None:
    """Write a row for each sample: target, index of the largest output if each target is a class, and outputs."""
    are_classes = np.issubdtype(targets.dtype, np.integer) and targets[0].size == 1
    classes = are_classes and outputs[0].ndim == 1 and outputs[0].size > 1
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sample", "target", *(["predicted"] if classes else []), "outputs"])
        for index, output in enumerate(outputs):
            predicted = [int(output.argmax())] if classes else []
            writer.writerow([index, _values_text(targets[index]), *predicted, _values_text(output, ".4g")])


def _values_text(values: Any, number_format: str = "") -> str:
    """Return the first numbers of an array as text, with "..." in place of any others. number_format: of those with a
    decimal point; all digits by default."""
    flat = np.ravel(values)
    is_rounded = number_format and flat.dtype.kind == "f"
    texts = [format(value, number_format) if is_rounded else str(value) for value in flat[:NUM_SHOWN]]
    return " ".join([*texts, *(["..."] if flat.size > NUM_SHOWN else [])])
