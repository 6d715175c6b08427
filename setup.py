"""Build step: the experiments and configurations of `raygpu init` become part of the package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExamples(build_py):
    """Copy conf/ and experiments/ into raygpu/shipped of the build; an editable install reads them in place."""

    def run(self) -> None:
        """Build the package, then copy the files."""
        super().run()
        if self.editable_mode:
            return
        home = Path(__file__).parent
        for pattern in (
            "experiments/*.py",
            "conf/pack/*.toml",
            "conf/place/*.toml",
            "conf/sweep/*.toml",
            "conf/train/*.toml",
        ):
            for file in home.glob(pattern):
                target = Path(self.build_lib, "raygpu", "shipped", file.relative_to(home))
                self.mkpath(str(target.parent))
                self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildWithExamples})
