"""Builds the C module of src/pairwright/sources/native where there is a compiler.

Without one, or with PAIRWRIGHT_PURE=1, the package is pure Python: all works, and large NeMo Gym files take longer. The
module uses Python's limited API, so one build serves 3.11 and all that come after it.
"""

import os
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "pairwright.sources.plain_rollout"
NATIVE = Path("src/pairwright/sources/native")


class NativeModule(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build beside the Python files, where an editable install and a wheel both find it."""
        for stale in Path(self.root, NATIVE).parent.glob("plain_rollout.*.so"):
            stale.unlink()
        if self.target_name != "wheel" or os.environ.get("PAIRWRIGHT_PURE") == "1":
            return
        here = Path.cwd()
        os.chdir(self.root)
        try:
            _build()
        except (Exception, SystemExit) as error:  # no compiler, no headers, or a Python without the limited API
            self.app.display_warning(f"pairwright is installed without its C module ({error})")
        else:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
        finally:
            os.chdir(here)


def _build() -> None:
    from setuptools import Distribution, Extension

    module = Extension(
        MODULE,
        [str(NATIVE / "plain_rollout.c")],
        depends=[str(header) for header in sorted(NATIVE.glob("*.h"))],
        extra_compile_args=["-O3", "-std=c11"],
        py_limited_api=True,
    )
    build = Distribution({"ext_modules": [module], "package_dir": {"": "src"}}).get_command_obj("build_ext")
    with TemporaryDirectory() as folder:
        build.inplace, build.build_temp, build.build_lib = True, folder, folder
        build.ensure_finalized()
        build.run()
