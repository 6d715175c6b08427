"""Plan a sweep as early as possible: before Ray is up, or with a probe on its cluster.

planner = Planner(config, num_trials, groups, measurer, console.lines)
planner.ahead(local_hardware(gpus, nodes))
decision = planner.on(cluster)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from raygpu.cli.plan_view import decision_lines
from raygpu.config import SweepConfig
from raygpu.config.command_names import typed
from raygpu.engines.cluster.hardware import cluster_hardware
from raygpu.engines.profiling.measurer import Measurer
from raygpu.planning.estimates import Estimates, Hardware
from raygpu.planning.sweep_plan import Decision, decide
from raygpu.workflow.trial_groups import Grouped, usable

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.cluster import Cluster

BESIDE_OTHERS = "other commands may use the GPUs meanwhile"
"""Why nothing is measured: Ray does not count a measurement's use of a GPU, and others would slow it down."""


class Planner:
    """Makes the decision for a sweep once, and prints it.

    say: takes the plan's lines.
    """

    def __init__(
        self,
        config: SweepConfig,
        num_trials: int,
        groups: Grouped,
        measurer: Measurer,
        say: Callable[[Sequence[str]], None],
    ) -> None:
        self._config = config
        self._num_trials = num_trials
        self._groups = groups
        self._measurer = measurer
        self._say = say
        self.lines: list[str] = []
        """Lines of the plan, as printed; empty before the decision."""
        self._decision: Decision | None = None
        self._estimates: Estimates | None = None
        self._unknown = False

    def ahead(self, hardware: Hardware, *, dry: bool = False) -> None:
        """Decide without a cluster, unless a measurement is needed there. Raises BadInput.

        dry: nothing will be measured; the plan is printed as it would be without measurements.
        """
        estimates, self._unknown = self._kept(hardware)
        self._estimates = estimates
        if not self._unknown or dry:
            self._decide(hardware, estimates)
        if self._unknown and dry:
            self._say(["plan: the sweep itself would first measure which way is fastest here"])
        elif estimates.is_timed_now and dry:
            self._say(["plan: the sweep itself times a few steps again, and may choose another way"])

    def on(self, cluster: Cluster) -> Decision:
        """Return the decision for this cluster; measure there first if no kept profile or estimate decides. Raises
        BadInput."""
        if self._decision is None:
            hardware = cluster_hardware(cluster)
            estimates = self._estimates
            if estimates is None:  # nobody has looked yet
                estimates, self._unknown = self._kept(hardware)
            if self._unknown and (in_use := cluster.gpus_in_use()):
                estimates, self._unknown = replace(estimates, source=f"{BESIDE_OTHERS}, and use {in_use:g} now"), False
            if self._unknown:
                self._say(["plan: measuring which way is fastest here"])
                estimates = self._measurer.probe(cluster, hardware)
            return self._decide(hardware, estimates)
        return self._decision

    def _kept(self, hardware: Hardware) -> tuple[Estimates, bool]:
        """Return the estimates from kept profiles, and whether to measure, which needs a GPU that nobody else uses."""
        estimates, unknown = self._measurer.kept(hardware)
        most, num_gpus = self._config.cluster.most_gpus, sum(node.num_gpus for node in hardware.nodes)
        if unknown and most is not None and most < num_gpus:
            held = f"{float(most):g} of {num_gpus} GPUs are for this sweep"
            return replace(estimates, source=f"{BESIDE_OTHERS}: {held}; {typed('pack')} measures"), False
        return estimates, unknown

    def _decide(self, hardware: Hardware, estimates: Estimates) -> Decision:
        groups, config = self._groups, self._config
        nodes, left_out = usable(hardware.nodes, groups.architectures)
        hardware = replace(hardware, nodes=nodes)
        decision = decide(hardware, config, self._num_trials, groups.groups, groups.sharing, estimates)
        if groups.grouper is not None and decision.alone:  # where trials are drawn later, too
            groups.grouper.alone = dict(decision.alone)
        self.lines = decision_lines(decision, config, hardware, left_out, drawn=groups.drawn)
        self._say(self.lines)
        self._decision = decision
        return decision
