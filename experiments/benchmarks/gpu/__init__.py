"""What raygpu does on one NVIDIA GPU, in stages that each end within nine minutes.

    python -m experiments.benchmarks.gpu [--minutes 9.5] [--only tests,arrays] [--device cpu] [--out FOLDER]

Stages run in their order, and each leaves its records and its output when it ends. A stage that fails leaves its
traceback, and the next one goes on; one for which there is no time any more is left for the next call, which begins
with the first that has not ended. `--device cpu` tries all of them without a GPU, as small as they can be.
"""
