"""All that pyproject.toml cannot say: a build begins with an empty build/lib.

setuptools reuses that folder, and packs whatever an earlier build of an older tree left there. Triggers, clouds and
exporters are found by a scan of their folders: one that was removed would be in force again.
"""

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": FreshBuild})
