"""Build step that puts conf/ into the wheel as gbactl/conf; in a checkout conf/ is beside the package.

Named in pyproject.toml; setuptools calls it. An editable installation copies nothing.
"""

from __future__ import annotations

from pathlib import Path

from setuptools.command.build_py import build_py

CONF = Path("conf")


class BuildWithConf(build_py):  # type: ignore[misc]
    """Build command `build_py` that also copies conf/**/*.yaml."""

    def _conf_files(self) -> list[Path]:
        return sorted(CONF.rglob("*.yaml"))

    def run(self) -> None:
        """Build as usual, then copy the conf files."""
        super().run()
        if not self.editable_mode:
            for source in self._conf_files():
                target = Path(self.build_lib) / "gbactl" / source
                target.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(str(source), str(target))

    def get_source_files(self) -> list[str]:
        """List the files that a source distribution must contain, conf/ among them."""
        return [*super().get_source_files(), *map(str, self._conf_files())]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """List the files that the build wrote."""
        made = [] if self.editable_mode else self._conf_files()
        return [*super().get_outputs(include_bytecode), *(f"{self.build_lib}/gbactl/{f}" for f in made)]
