"""The command line as a person runs it: real processes, a home of their own, lanes that the test serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from millpond import Queue

ROOT = Path(__file__).resolve().parents[2]
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k-test.jsonl"
QUESTIONS = 1_319


def questions(folder: Path) -> Path:
    """The 1,319 questions beside the checkout; where there are none, as many of our own in the same form."""
    if GSM8K.exists():
        return GSM8K
    path = folder / "questions.jsonl"
    lines = (json.dumps({"question": f"What is {n} times {n + 1}?", "answer": n * (n + 1)}) for n in range(QUESTIONS))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Home:
    """A folder with a millpond.yaml in it, and the program run there."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.home = folder / ".millpond"
        (folder / "millpond.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")

    def ask(self, *questions: str) -> None:
        """Put questions in as the submission asked.txt, as `millpond enqueue asked.txt` does with its lines."""
        with Queue.open(self.home) as queue:
            queue.enqueue_many(questions, submission="asked.txt")

    def start(self, *words: str, env: Mapping[str, str] | None = None, **how: Any) -> subprocess.Popen[str]:
        """Start `millpond WORDS…` in the folder."""
        return subprocess.Popen(
            [sys.executable, "-m", "millpond", *words],
            cwd=self.folder,
            env={**_bare_environment(), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **how,
        )

    def run(self, *words: str, code: int = 0, env: Mapping[str, str] | None = None) -> tuple[str, str]:
        """Run it to its end, which must be this exit code; stdout and stderr."""
        process = self.start(*words, env=env)
        out, err = process.communicate(timeout=100)
        assert process.returncode == code, f"millpond {' '.join(words)}: exit {process.returncode}\n{out}\n{err}"
        return out, err


def _bare_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
