"""Plans a sweep as soon as it can be: before Ray is up, or with a probe on its cluster.

planner = Planner(config, num_trials, groups, measurer, console.lines)
planner.ahead(Site.local(gpus, nodes))
decision = planner.on(cluster)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from raygpu.config import SweepConfig
from raygpu.measuring import Estimates, Measurer, Site
from raygpu.planning import Decision, Grouped, decide

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster import Cluster


class Planner:
    """Makes one decision, and says it.

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
        self._decision: Decision | None = None
        self._unknown = False

    def ahead(self, site: Site, *, dry: bool = False) -> None:
        """Decide without a cluster, unless something has to be measured there. Raises BadInput.

        dry: nothing will be measured; the plan is said as it would be without.
        """
        estimates, self._unknown = self._measurer.kept(site)
        if not self._unknown or dry:
            self._decide(site, estimates)
        if self._unknown and dry:
            self._say(["plan: the sweep itself would first measure which way is fastest here"])

    def on(self, cluster: Cluster) -> Decision:
        """The decision for this cluster; where nothing else tells, a probe is run there first. Raises BadInput."""
        if self._decision is None:
            site = Site.of(cluster)
            if not self._unknown:  # nobody has looked yet
                estimates, self._unknown = self._measurer.kept(site)
            if self._unknown:
                self._say(["plan: measuring which way is fastest here"])
                estimates = self._measurer.probe(cluster, site)
            return self._decide(site, estimates)
        return self._decision

    def _decide(self, site: Site, estimates: Estimates) -> Decision:
        self._decision = decide(site, self._config, self._num_trials, self._groups, estimates)
        self._say(self._decision.lines)
        return self._decision
