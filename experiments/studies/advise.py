"""One GPU, several trainings on it, or several GPUs? The answer of `raygpu.pack --advise`, as a dated record.

    python -m experiments.studies.advise                                   conf/pack/digits.toml
    python -m experiments.studies.advise conf/pack/saturating_cpu.toml --data.synthetic --workers 2

Flags are those of `raygpu.pack`. The record has the advice, the profile, and the verdict; the plots lie beside it.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from dataclasses import asdict

from experiments.benchmarks import record
from raygpu import pack
from raygpu.cli.command import Command, Outcome
from raygpu.cli.flags import Arguments
from raygpu.config import PackConfig


def _main(arguments: Arguments) -> Outcome:
    config, stem, folder = COMMAND.read(arguments)
    advised = pack.advise(config, stem=stem, source_folder=folder)
    results = {
        "ratios": asdict(advised.advice),
        "verdict": advised.verdict,
        "profile": advised.profile.as_dict(),
    }
    file = arguments.file or str(pack.DEFAULT)
    path = record.write("advise", results, {"configuration": file}, stem, "studies")
    with suppress(FileNotFoundError):  # nothing could be measured
        shutil.copy(advised.folder / "advice.png", path.with_suffix(".png"))
    return Outcome(0)


COMMAND = Command("advise", __doc__, PackConfig, pack.DEFAULT, {}, _main)
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
