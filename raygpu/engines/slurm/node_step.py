"""Ray on a further node of a Slurm job, run there by srun; it ends when standard input closes, and deletes what the job
has left on the node.

python -m raygpu.engines.slurm.node_step HEAD:PORT FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from raygpu.devices.slurm_allocation import allocation
from raygpu.engines.cluster import process_guard
from raygpu.engines.slurm import node_folders
from raygpu.engines.slurm.ray_nodes import own_address, start_flags


def main() -> int:
    """Start Ray with what the job has of this node, and return its exit status."""
    head, folder = sys.argv[1:]
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        address = own_address(os.environ["SLURMD_NODENAME"], head.rpartition(":")[0])
        flags = [*start_flags(allocation(), head, folder), "--node-ip-address", address]
        return process_guard.keep([*process_guard.RAY_START, *flags])
    finally:
        node_folders.delete_on_further_node(node_folders.job_folder(os.environ), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
