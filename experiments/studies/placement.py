"""Placement of a two-tower network, in torch and in Keras: one device, a tower on each of two, and alternating layers.

    python -m experiments.studies.placement                on REVIEWS, or data/reviews.json.gz
    python -m experiments.studies.placement --synthetic    on made-up reviews

Runs `raygpu.place` with conf/place/reviews.toml for both frameworks, and keeps a dated record with the plots in
`experiments/studies/records/`. On one GPU, or on a CPU, the devices are logical ones, and the record says so.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from experiments.benchmarks import record
from raygpu import place
from raygpu.config import PlaceConfig, load

EXPERIMENTS = {"torch": "experiments.reviews:TwoTowers", "keras": "experiments.reviews:KerasTwoTowers"}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic", action="store_true", help="Train on made-up reviews.")
    parser.add_argument("--rounds", type=int, default=7, help="Epochs that are timed of each placement.")
    chosen = parser.parse_args(argv)
    flags = {"rounds": str(chosen.rounds), "data.synthetic": str(chosen.synthetic).lower()}
    results, plots = {}, {}
    for framework, name in EXPERIMENTS.items():
        config = load(Path("conf/place/reviews.toml"), {**flags, "experiment": name}, PlaceConfig)
        done = place.run(config, stem=f"reviews-{framework}")
        results[framework], plots[framework] = done.summary, done.folder / "placements.png"
    path = record.write("placement", results, {**flags, "configuration": "conf/place/reviews.toml"}, kind="studies")
    for framework, plot in plots.items():
        with suppress(FileNotFoundError):  # where nothing could be measured
            shutil.copy(plot, path.with_name(f"{path.stem}-{framework}.png"))


if __name__ == "__main__":
    main()
