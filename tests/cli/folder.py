"""A folder of one's own with the command line in it: in this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from millpond.drill.faultlane import FaultLane
from millpond.faces.cli import cli


class Mill:
    """The program in a folder with a millpond.yaml, if one was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / ".millpond"

    def settings(self, **keys: Any) -> Path:
        """Write millpond.yaml."""
        return self.file("millpond.yaml", yaml.safe_dump(keys, sort_keys=False))

    def file(self, name: str, text: str) -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *words: str, code: int = 0, stdin: str | None = None) -> Result:
        """Run it in this process; it must end with this exit code."""
        result = CliRunner().invoke(cli, [*words], prog_name="millpond", input=stdin)
        assert result.exit_code == code, f"millpond {' '.join(words)}: exit {result.exit_code}\n{result.output}"
        return result

    def start(
        self, *words: str, preexec_fn: Callable[[], None] | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        """Start it as a process of its own; `preexec_fn` is called in it before the program is."""
        return subprocess.Popen(
            [sys.executable, "-m", "millpond", *words],
            cwd=self.folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            preexec_fn=preexec_fn,
        )

    def process(
        self, *words: str, preexec_fn: Callable[[], None] | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it as a process of its own, to its end."""
        started = self.start(*words, preexec_fn=preexec_fn, **environment)
        out, err = started.communicate(timeout=60)
        return subprocess.CompletedProcess(started.args, started.returncode, out, err)


def chat(server: FaultLane, **more: Any) -> dict[str, Any]:
    """The settings of a free lane on this server."""
    return {"kind": "chat", "price": 0, "base_url": server.base_url, "model": "m", **more}
