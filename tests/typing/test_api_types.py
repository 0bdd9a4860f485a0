"""The types of the public face: api.py passes two strict checkers, and names everything that is public."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import millpond
from millpond.queue import Queue

NOT_FOR_CALLERS = {"at", "ending_of", "registry"}
"""Methods that the command line and AsyncQueue use."""

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
API = HERE / "api.py"


def checker(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a type checker of this environment."""
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )


def test_mypy_accepts_the_public_face(tmp_path: Path) -> None:
    # Only what callers see of the package is followed; the package itself is checked by basedpyright (make types).
    how = ["--strict", "--python-version", "3.11", "--follow-imports", "silent", "--cache-dir", str(tmp_path)]
    said = checker("mypy", *how, str(API))
    assert said.returncode == 0, said.stdout + said.stderr


def test_basedpyright_accepts_the_public_face(tmp_path: Path) -> None:
    settings = {
        "include": [str(API)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        "extraPaths": [str(ROOT / "src")],
    }
    file = tmp_path / "pyrightconfig.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    said = checker("basedpyright", "-p", str(file), "--pythonpath", sys.executable)
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_public_name_and_method_is_in_it() -> None:
    tree = ast.parse(API.read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert set(millpond.__all__) - names == set()
    called = set(re.findall(r"\b(?:queue|Queue)\.(\w+)\(", API.read_text(encoding="utf-8")))
    public = {name for name in vars(Queue) if not name.startswith("_")}
    assert public - called == NOT_FOR_CALLERS
    assert called - public == set()
