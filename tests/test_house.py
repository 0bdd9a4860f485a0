"""The house itself: names of files, what may stand in them, and how little an import loads."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import millpond

ROOT = Path(__file__).resolve().parent.parent

# Written in halves, so that this file may be read by its own tests.
REGISTRY_HOSTS = [
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "npmjs" + ".org",
    "deb.debian" + ".org",
    "proxy.golang" + ".org",
    "crates" + ".io",
]
MACHINE_PATHS = [r"(?<![\w.])/" + name + r"\b" for name in ("work/", "root/", "tmp/v/", r"home/\w+/", "opt/pypi")]


def committed_files() -> list[Path]:
    """Every committed file; in a tree without git (an unpacked archive), every file of the parts that are ours."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    parts = [path for part in ("src", "tests", "docs", ".ci") for path in (ROOT / part).rglob("*")]
    return [path for path in [*parts, *ROOT.glob("*.*")] if path.is_file() and "__pycache__" not in path.parts]


def fresh_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter; its stderr lists every module it loads."""
    return subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )


def third_parties(loaded: str) -> set[str]:
    """The top-level modules of an import listing that come from installed distributions other than millpond."""
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in loaded.splitlines() if "|" in line}
    return names & (packages_distributions().keys() - {"millpond"})


def at_start() -> set[str]:
    """What any interpreter of this environment loads before it runs a line (hooks of installers)."""
    return third_parties(fresh_python("-c", "pass").stderr)


def test_no_module_is_a_place_for_things_without_a_home() -> None:
    homeless = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [path for path in committed_files() if homeless & set(re.split(r"[._]", path.name.lower()))] == []


@pytest.mark.parametrize("pattern", [*map(re.escape, REGISTRY_HOSTS), *MACHINE_PATHS])
def test_no_committed_file_names_a_registry_or_a_path_of_one_machine(pattern: str) -> None:
    wanted = re.compile(pattern.encode())
    assert [str(path.relative_to(ROOT)) for path in committed_files() if wanted.search(path.read_bytes())] == []


def test_the_patterns_catch_what_they_are_for() -> None:
    assert any(re.search(pattern, 'open("/' + 'work/main/x")') for pattern in MACHINE_PATHS)
    assert not any(re.search(pattern, "docs/work/now.md and https://host/home") for pattern in MACHINE_PATHS)


def test_the_public_names_are_sorted_and_complete() -> None:
    assert millpond.__all__ == sorted(millpond.__all__)
    assert set(millpond.__all__) < set(dir(millpond))


@pytest.mark.parametrize("name", millpond.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(millpond, name).__name__ == name


def test_the_version_is_the_installed_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", millpond.__version__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Qeue'"):
        _ = millpond.Qeue  # type: ignore[attr-defined]


def test_import_millpond_loads_no_third_party() -> None:
    assert third_parties(fresh_python("-c", "import millpond").stderr) - at_start() == set()


def test_what_drains_loads_no_jsonschema_before_a_schema_is_met() -> None:
    loaded = third_parties(fresh_python("-c", "import millpond.engine.drain, millpond.lanes.chat").stderr)
    assert "httpx2" in loaded
    assert "jsonschema" not in loaded


def test_help_loads_click_alone() -> None:
    shown = fresh_python("-m", "millpond", "--help")
    assert "Usage" in shown.stdout
    assert third_parties(shown.stderr) - at_start() == {"click"}
