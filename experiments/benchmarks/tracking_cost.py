"""What a trial's run costs in MLflow: call by call, SQL statement by statement, in CPU time of the driver.

    python -m experiments.benchmarks.tracking_cost [--runs 200] [--store sqlite:///FILE]
    python -m experiments.benchmarks.tracking_cost --store http://127.0.0.1:5000 --server-pids 4711,4712

Each run has four hyper-parameters and five epochs of three metrics, as a trial of conf/sweep/digits.toml. Three ways to
send it take turns: all at once, as a trial that is over before the writer's next turn; begun first and the rest at its
end, as a trial in an array; and begun with its parameters, as raygpu did until 2026-11-25. CPU times are those of the
thread that writes; beside the median stands the tenth percentile, which a busy machine disturbs less. Statements are
noted in runs of their own. "side by side" are runs that are over, sent by as many threads as the store takes and, where
that pays, by other processes: about 600 runs repay their start. With --server-pids, the CPU time of these processes and
of all below them is measured too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from statistics import median
from threading import Event, RLock
from typing import Any

import psutil

from experiments.benchmarks import record
from raygpu.devices.host import num_cpus
from raygpu.errors import redacted
from raygpu.records.trial_writer import Kind
from raygpu.search.scoring import TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial
from raygpu.tracking.deliverer import Deliverer
from raygpu.tracking.pending_writes import Pending, Write, deliver
from raygpu.tracking.runs import RunTree

METRICS = {"train/loss": 0.5, "validation/loss": 0.25, "validation/accuracy": 0.875}
EPOCHS = 5
WARM = 20
"""Number of runs before the first that is measured."""
CALLS = ("create_run", "log_batch", "set_terminated")
SHAPE = 60
"""Number of characters of a statement in the table."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="for each way")
    parser.add_argument("--store", help="MLflow's URI; by default a new SQLite file")
    parser.add_argument("--server-pids", default="", help="of a server and its database, separated by commas")
    parser.add_argument("--part", help="last part of the record's name")
    arguments = parser.parse_args()
    pids = [int(each) for each in arguments.server_pids.split(",") if each]
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        tree = RunTree.open(arguments.store or f"sqlite:///{folder}/mlflow.db", "benchmark")
        tree.start_run("tracking_cost", {}, {})
        results = measure(tree, arguments.runs, pids)
    print(table(results["all at once"]))
    store = {"store": redacted(arguments.store or "a new SQLite file")}
    record.write("tracking_cost", results, vars(arguments) | store, arguments.part)


def measure(tree: RunTree, num_runs: int, pids: list[int]) -> dict[str, Any]:
    """Send the runs of all ways, in turn; return the costs of each way, and of many runs by as many threads as the
    store takes."""
    ways = {"all at once": (), "begun first": (1,), "begun with parameters first, as before": (1, 1)}
    for number in range(WARM):
        send(tree, Trial.name(number), ())
    costs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(num_runs):
        for name, stops in ways.items():
            began_s, cpu_s = time.perf_counter(), time.thread_time()
            send(tree, f"{number}-{len(stops)}", stops)
            costs[name].append((time.thread_time() - cpu_s, time.perf_counter() - began_s))
    found: dict[str, Any] = {}
    for name, stops in ways.items():
        cpu, wall = ([each[index] for each in costs[name]] for index in (0, 1))
        trace = Trace()
        with trace.noting(tree):
            for number in range(WARM):
                send(tree, f"traced-{number}-{len(stops)}", stops)
        found[name] = {"cpu_ms": _ms(cpu), "wall_ms": _ms(wall), **trace.per_run(WARM)}
    for cpus in sorted({1, num_cpus()}):
        found[f"side by side, CPUs: {cpus}"] = side_by_side(tree, num_runs, pids, cpus)
    return found


def writes(name: str) -> list[tuple[Kind, Any]]:
    """Return what a sweep writes for a trial."""
    trial = Trial(name, 7, {"lr": 0.1, "momentum": 0.9, "hidden": 64, "batch_size": 32})
    results = [EpochResult(epoch, METRICS, num_samples=1437, train_s=0.1) for epoch in range(1, EPOCHS + 1)]
    end = TrialRecord(trial, "finished", rgu_hours=0.1, score_rule="last", scores=TrialScores(last_epoch=EPOCHS))
    place = {"raygpu.gpu_index": 0, "raygpu.gpu_share": 0.1}
    return [("begin", trial), ("place", place), ("epochs", results), ("end", end)]


def send(tree: RunTree, name: str, stops: tuple[int, ...]) -> None:
    """Send a trial's run. stops: after how many writes what there is so far is sent, before the rest."""
    pending, now_ms, given = Pending(), int(time.time() * 1000), writes(name)
    batch_of = lambda: pending.batches[name][0]  # noqa: E731
    for stop in [*stops[:1], len(given)]:
        for kind, value in given[:stop]:
            pending.add(Write(kind, name, value, now_ms))
        if deliver(tree, batch_of(), _refused, sparing=stop < len(given) and len(stops) == 1):
            pending.done(batch_of())
        given = given[stop:]


def side_by_side(tree: RunTree, num_runs: int, pids: list[int], cpus: int) -> dict[str, Any]:
    """Send many runs that are over, as the writer's thread does with so many CPUs, and return the cost of each."""
    pending, now_ms = Pending(), int(time.time() * 1000)
    for number in range(num_runs):
        name = f"side-{cpus}-{number}"
        for kind, value in writes(name):
            pending.add(Write(kind, name, value, now_ms))
    turns = Deliverer(tree, pending, RLock(), _refused, lambda: None, Event(), lambda: cpus)
    began_s, before_s = time.perf_counter(), _cpu_s(pids)
    turn = turns.turn(closing=True)
    wall_s, served_s = time.perf_counter() - began_s, _cpu_s(pids) - before_s
    processes = len(turns.processes)
    turns.close()
    if turn.delivered != num_runs or turn.failed:
        raise RuntimeError(f"{turn.delivered} of {num_runs} runs were delivered: {turns.delayed}")
    found = {"threads": turns.writers, "other_processes": processes, "runs_per_s": round(num_runs / wall_s, 1)}
    found["cpu_ms"] = round(1000 * turn.cpu_s / num_runs, 2)
    if pids:
        found["server_cpu_ms"] = round(1000 * served_s / num_runs, 2)
        found["runs_per_s_of_8_cores_by_cpu"] = round(8 / ((turn.cpu_s + served_s) / num_runs), 1)
        found["runs_per_s_of_one_driver_by_cpu"] = round(num_runs / turn.cpu_s, 1)
    return found


class Trace:
    """Calls of MLflow's client and the SQL statements below them."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = defaultdict(list)
        self.statements: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self._call = ""
        self._began_s = 0.0

    def noting(self, tree: RunTree) -> _Noting:
        """Return a context that notes calls and statements."""
        return _Noting(self, tree)

    def per_run(self, num_runs: int) -> dict[str, Any]:
        """Return numbers and milliseconds for one run."""
        calls = {
            name: {"number": len(times) / num_runs, "cpu_ms": round(1000 * sum(times) / num_runs, 2)}
            for name, times in self.calls.items()
        }
        statements = [
            {
                "call": call,
                "sql": sql,
                "number": number / num_runs,
                "ms": round(1000 * self.seconds[call, sql] / num_runs, 3),
            }
            for (call, sql), number in self.statements.items()
        ]
        return {"calls": calls, "statements": statements}

    def called(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, noted."""

        def noted(*arguments: Any, **named: Any) -> Any:
            self._call, cpu_s = name, time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.calls[name].append(time.thread_time() - cpu_s)

        return noted

    def before(self, *_: Any) -> None:
        """Note a statement's begin."""
        self._began_s = time.perf_counter()

    def after(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        """Note a statement and its time."""
        key = self._call, " ".join(statement.split())[:SHAPE]
        self.statements[key] += 1
        self.seconds[key] += time.perf_counter() - self._began_s

    def transaction(self, kind: str) -> Callable[[Any], None]:
        """Return a listener that notes the begin or the end of a transaction."""
        return lambda connection: self.statements.update([(self._call, kind)])


class _Noting:
    """Context in which calls and statements are noted."""

    def __init__(self, trace: Trace, tree: RunTree) -> None:
        from sqlalchemy import Engine

        self._mlflow, self._engine, self._trace = tree.mlflow, Engine, trace
        self._listeners: dict[str, Callable[..., Any]] = {
            "before_cursor_execute": trace.before,
            "after_cursor_execute": trace.after,
            **{kind: trace.transaction(kind.upper()) for kind in ("begin", "commit", "rollback")},
        }

    def __enter__(self) -> None:
        from sqlalchemy import event

        for name in CALLS:
            setattr(self._mlflow, name, self._trace.called(name, getattr(self._mlflow, name)))
        for name, listener in self._listeners.items():
            event.listen(self._engine, name, listener)

    def __exit__(self, *_: object) -> None:
        from sqlalchemy import event

        for name in CALLS:
            delattr(self._mlflow, name)  # the class' own is there again
        for name, listener in self._listeners.items():
            event.remove(self._engine, name, listener)


def table(way: dict[str, Any]) -> str:
    """Return the costs of one way in lines: each call, and its statements below it."""
    lines = [f"for a run: ms of CPU {way['cpu_ms']}, of wall time {way['wall_ms']}"]
    for name, call in way["calls"].items():
        lines.append(f"{name}: {call['number']:g} for a run, {call['cpu_ms']:.2f} ms of CPU, the listeners' included")
        of_call = [each for each in way["statements"] if each["call"] == name]
        lines += [f"  {each['number']:5.3g} x {each['ms']:7.3f} ms  {each['sql']}" for each in of_call]
    return "\n".join(lines)


def _ms(seconds: list[float]) -> dict[str, float]:
    """Return the median and the tenth percentile in milliseconds."""
    return {"median": round(1000 * median(seconds), 2), "p10": round(1000 * sorted(seconds)[len(seconds) // 10], 2)}


def _cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds of processes and of all below them, those that have ended included."""
    below = [psutil.Process(pid) for pid in pids]
    below += [child for process in list(below) for child in process.children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in dict.fromkeys(below))


def _refused(*what: Any) -> None:
    raise RuntimeError(f"MLflow refused: {what}")


if __name__ == "__main__":
    main()
