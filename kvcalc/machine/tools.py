"""Tools and files of the system that are asked: run with a time limit, read within bounds."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["System"]

_LONGEST_S = 10.0
_MAX_BYTES = 4 * 2**20
# Folders in which tools stand that are often on no path: WSL's, ROCm's, those of administrators.
_FOLDERS = ("/usr/lib/wsl/lib", "/opt/rocm/bin", "/usr/sbin", "/sbin")


@dataclass(frozen=True, slots=True)
class System:
    """The system that is asked.

    Args:
        root: the folder that stands for ``/``.
        folders: folders of tools beside those of ``PATH``.
        longest_s: how long a tool may take.
        silent: tools that did not answer in time, as they are found.
    """

    root: Path = Path("/")
    folders: tuple[str, ...] = _FOLDERS
    longest_s: float = _LONGEST_S
    silent: list[str] = field(default_factory=list)

    def output(self, tool: str, *arguments: str) -> str:
        """Return the standard output of a tool; nothing where it is missing, fails or takes too long."""
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), *self.folders))
        program = shutil.which(tool, path=path)
        if program is None or tool in self.silent:
            return ""
        try:
            done = subprocess.run(  # noqa: S603  a tool of the system, with arguments of ours
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self.longest_s,
                env=os.environ | {"LC_ALL": "C"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.silent.append(tool)
            return ""
        except OSError:
            return ""
        return "" if done.returncode else done.stdout[:_MAX_BYTES].decode(errors="replace")

    def text(self, path: str) -> str:
        """Return the text of a file, without blanks around it; nothing where it cannot be read."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(_MAX_BYTES).decode(errors="replace").strip("\x00 \n\t")
        except OSError:
            return ""

    def folders_of(self, folder: str, pattern: str) -> list[str]:
        """Return the paths that a pattern matches in a folder, in order."""
        try:
            return sorted(str(path.relative_to(self.root)) for path in (self.root / folder).glob(pattern))
        except OSError:
            return []
