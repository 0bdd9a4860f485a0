"""The pytest plugin, in a pytest of its own: what its fixtures give, what they keep apart, and how little it loads."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "millpond.testing.plugin"


def run_pytest(folder: Path, source: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a user's project. Only this plugin is loaded, as it may be installed or not."""
    (folder / "test_theirs.py").write_text(source, encoding="utf-8")
    environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environ}
    words = words or ("-p", PLUGIN)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def passes(folder: Path, source: str, *words: str, **environ: str) -> None:
    said = run_pytest(folder, source, *words, **environ)
    assert said.returncode == 0, said.stdout + said.stderr


DUCKS = """
from millpond import Queue, Reply

def test_a_queue_is_drained_by_the_lane(millpond_queue, millpond_lane):
    millpond_lane.say("retryable", "saturated", Reply("Yes."))
    receipt = millpond_queue.enqueue("Is a duck a bird?")
    summary = millpond_queue.drain(lanes=millpond_lane)
    assert (summary.done, summary.reason) == (1, "empty")
    assert millpond_queue.result(receipt).text == "Yes."
    assert [call.work.task for call in millpond_lane.calls] == ["Is a duck a bird?"] * 3

def test_each_test_has_its_own(millpond_queue, millpond_lane):
    assert (millpond_queue.jobs(), millpond_lane.calls) == ([], [])
    assert list(millpond_queue.policy.lanes) == ["scripted"]
"""


def test_a_test_gets_an_empty_queue_and_a_lane_that_drains_it(tmp_path: Path) -> None:
    passes(tmp_path, DUCKS)


APART = """
from millpond import Queue

def test_what_opens_a_queue_by_itself_finds_this_one(millpond_home, millpond_queue, tmp_path):
    receipt = millpond_queue.enqueue("Is a duck a bird?")
    with Queue.open() as theirs:
        assert theirs.job(receipt.job_id).id == receipt.job_id
        assert theirs.home == millpond_home == tmp_path / "millpond"
    assert (millpond_home / "queue.db").exists()
"""


@pytest.mark.parametrize("real", ["a file", "the environment"])
def test_no_queue_of_the_user_is_touched(real: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "real.db"
    if real == "a file":
        (tmp_path / "millpond.yaml").write_text(f"queue: {{path: {elsewhere}}}\n", encoding="utf-8")
    environ = {"MILLPOND_QUEUE__PATH": str(elsewhere)} if real == "the environment" else {}
    passes(tmp_path, APART, **environ)
    assert not elsewhere.exists()


DRAINS = """
import subprocess, sys
from millpond import Queue, Reply

def app():
    with Queue.open() as queue:
        receipt = queue.enqueue("Is a duck a bird?")
        queue.drain()
        return queue.result(receipt).text

def test_an_app_that_drains_by_itself_asks_the_scripted_lane(millpond_home, millpond_lane):
    millpond_lane.say(Reply("Yes."))
    assert app() == "Yes."

def test_a_program_of_its_own_has_no_other_lane(millpond_home):
    words = [sys.executable, "-m", "millpond", "config", "show"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "scripted" in shown
    assert "paid" not in shown and "mine" not in shown
    assert app().startswith("answer to")
"""


def test_no_lane_of_the_project_or_the_user_is_asked(tmp_path: Path) -> None:
    spent = tmp_path / "spent"
    paid = f"lanes: {{paid: {{kind: command, command: [touch, {spent}], price: {{call_usd: 1}}}}}}\n"
    (tmp_path / "millpond.yaml").write_text(paid, encoding="utf-8")
    user = tmp_path / "user"
    (user / "millpond").mkdir(parents=True)
    (user / "millpond/millpond.yaml").write_text(paid.replace("paid:", "mine:"), encoding="utf-8")
    by_name = {"MILLPOND_LANES__PAID__MAX_ATTEMPTS": "1", "XDG_CONFIG_HOME": str(user)}
    passes(tmp_path, DRAINS, **by_name)
    assert not spent.exists()


@pytest.mark.parametrize(
    "broken",
    ["lanes: [unclosed", "no_such_key: 1", "commands: no_such_module:REGISTRY", "queue: {path: /no/such/queue}"],
)
def test_no_settings_of_the_project_can_break_the_fixtures(broken: str, tmp_path: Path) -> None:
    (tmp_path / "millpond.yaml").write_text(f"{broken}\n", encoding="utf-8")
    (tmp_path / "user" / "millpond").mkdir(parents=True)
    (tmp_path / "user/millpond/millpond.yaml").write_text(f"{broken}\n", encoding="utf-8")
    passes(tmp_path, DUCKS + APART + DRAINS, XDG_CONFIG_HOME=str(tmp_path / "user"))


HELD = """
import threading
from millpond.testing import Held

drains = []

def test_a_call_is_left_open(millpond_queue, millpond_lane):
    millpond_queue.enqueue("Is a duck a bird?")
    millpond_lane.say(Held())
    drains.append(threading.Thread(target=millpond_queue.drain, kwargs={"lanes": millpond_lane}))
    drains[0].start()
    while not millpond_lane.held:
        pass

def test_its_drain_has_ended():
    drains[0].join(30)
    assert not drains[0].is_alive()
"""


def test_a_call_that_a_test_leaves_open_keeps_no_drain_waiting(tmp_path: Path) -> None:
    passes(tmp_path, HELD)


CLOSED = """
import pytest
from millpond import MillpondError

seen = []

def test_one(millpond_queue):
    seen.append(millpond_queue)

def test_two():
    with pytest.raises(MillpondError):
        seen[0].counts()
"""


def test_the_queue_is_closed_after_its_test(tmp_path: Path) -> None:
    passes(tmp_path, CLOSED)


def test_the_entry_point_is_declared_and_loads(tmp_path: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    [(name, value)] = declared["pytest11"].items()
    assert (name, value) == ("millpond", PLUGIN)
    # As an installer would write it, beside the package; where it is installed already, the first one found counts.
    info = tmp_path / "site" / "millpond_declared-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: millpond-declared\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {value}\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    passes(tmp_path, DUCKS, "-p", name, PYTHONPATH=path)


LOADED = """
import sys

def test_nothing_of_millpond_is_loaded_by_its_plugin():
    ours = {name for name in sys.modules if name.partition(".")[0] == "millpond"}
    assert ours == {"millpond", "millpond.lazily", "millpond.testing", "millpond.testing.plugin"}
    assert not sys.modules.keys() & {"apsw", "pydantic", "httpx2", "asyncio", "hypothesis", "click", "yaml", "rich"}
"""


def test_a_project_that_uses_no_fixture_pays_for_nothing(tmp_path: Path) -> None:
    passes(tmp_path, LOADED)


FAILING = """
from millpond.store.store import Store, open_sqlite
from millpond.testing import STORE_CASES, run_store_case

class Wrong(Store):
    def requests(self, *_):
        return ["one of nobody's"]

def test_a_case(tmp_path):
    case = dict(STORE_CASES)["retry_hands_the_requests_to_the_live_job_of_the_key"]
    run_store_case(case, lambda now_ms: Wrong(open_sqlite(tmp_path / "queue.db", durable=False), now_ms))
"""


def test_a_case_of_a_suite_says_what_it_found(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, FAILING).stdout
    assert 'E       assert ["one of nobody\'s"] == []' in said, said


def test_millpond_does_not_need_pytest() -> None:
    unseen = (
        "import sys; sys.modules['pytest'] = None; import millpond.testing as t; [getattr(t, n) for n in t.__all__]"
    )
    subprocess.run([sys.executable, "-c", unseen], check=True)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert not [one for one in wanted if one.startswith("pytest")]
