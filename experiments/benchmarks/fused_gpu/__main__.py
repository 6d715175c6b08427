"""Training throughput on one GPU: arrays of models beside one training alone, and beside processes packed on the GPU.

    python -m experiments.benchmarks.fused_gpu [--seconds-in-all 450] [--networks mlp,cnn,resnet18] [--widths 1,8,64]

Samples/s: the training samples of a window over the seconds that training them took, evaluation left out; of processes
at once, the sum. While one of them evaluates the others go faster, which counts for the packed processes. A point is
the median of its windows. One process measures all widths of a network, since starting one takes longer than a point:
the ways of one width in turns, the model alone before and after the widths. The packed processes are servers too, that
wait for each other before every window; under MPS they run with a daemon of this benchmark's own.

What does not fit into the time is named in the record under "left out"; a point that failed has its reason.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from experiments.benchmarks import record
from experiments.benchmarks.fused_gpu.cases import AT_ONCE, NETWORKS, ROUNDS, stands_in, tasks
from experiments.benchmarks.fused_gpu.figures import plot, ratios
from experiments.benchmarks.fused_gpu.run import Run
from raygpu.devices.nvml import gpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--widths", default=None, help="of the arrays, as in 1,8,64; by default each network's own")
    parser.add_argument("--at-once", default=",".join(map(str, AT_ONCE)), help="packed processes; 2 on the CPU")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each window")
    parser.add_argument("--seconds-in-all", type=float, default=450.0, help="after which nothing more is begun")
    parser.add_argument("--precision", choices=("float32", "tf32"), default="float32")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the benchmark out")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.networks.split(",") if name not in NETWORKS]:
        parser.error(f"--networks: read {', '.join(unknown)}; there are: {', '.join(NETWORKS)}")
    on_gpu = arguments.device == "cuda"
    if on_gpu and not gpus():
        print("no NVIDIA GPU here; --device cpu tries the benchmark out on the CPU", file=sys.stderr)
        sys.exit(2)
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    widths = [int(width) for width in arguments.widths.split(",")] if arguments.widths else None
    at_once = [int(number) for number in arguments.at_once.split(",")] if on_gpu else [2]
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-", ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        bench = Run(arguments, arguments.networks.split(","), at_once)
        bench.mps = bench.mps if on_gpu else "left out: the device is the CPU"
        try:
            bench.start()
            bench.run(tasks(bench.networks, widths, on_gpu))
        finally:
            bench.close()
    rates = bench.medians()
    results = {
        "device": bench.device,
        "MPS": bench.mps,
        "data": {name: "synthetic stand-in of the digits' shape" for name in bench.networks if stands_in(name)},
        "points": {case.label: point for case, point in bench.points.items()},
        "samples/s, medians": {case.label: round(rate) for case, rate in rates.items()},
        "left out": bench.left_out,
        "seconds in all": round(bench.passed),
        "ratios": ratios(bench.networks, rates),
    }
    configuration = vars(arguments)
    path = record.write("fused_gpu", results, configuration | {"rounds": ROUNDS, "networks": bench.networks})
    plot(path.with_suffix(".png"), bench.networks, rates, str(bench.device.get("name")))


if __name__ == "__main__":
    main()
