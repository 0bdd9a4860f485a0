"""Every format goes in with the same options and comes out with typed columns; a file of results is whole or not."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folder import Mill, chat

from millpond import Policy, Prompt, Queue, Reply
from millpond.drill.faultlane import FaultLane
from millpond.faces.cli import enqueue
from millpond.faces.cli.output import whole
from millpond.rows import formats
from millpond.rules.job import Usage
from millpond.store import looking

SCHEMA = {
    "type": "object",
    "properties": {"legs": {"type": "integer"}, "swims": {"type": "boolean"}},
    "required": ["legs", "swims"],
    "additionalProperties": False,
}
ROWS = [("a", "duck", 'it said "quack",\nand ☂ left'), ("b", "newt", ""), ("c", "duck", " ")]


def write(mill: Mill, name: str) -> str:
    """A file of three rows, in the format of its suffix."""
    path = mill.folder / name
    rows = [dict(zip(("id", "animal", "note"), row, strict=True)) for row in ROWS]
    match path.suffix:
        case ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, rows[0])
                table.writeheader()
                table.writerows(rows)
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case _:
            path.write_text("".join(f"{row['animal']}\n" for row in rows))
    return name


def legs(body: dict[str, Any]) -> str:
    """An answer by the schema: how many legs, and whether it swims."""
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert (body["temperature"], body["stop"], body["seed"]) == (0.5, ["x"], 7)
    system, task = (message["content"] for message in body["messages"])
    animal = task.removeprefix("How many legs has a ").removesuffix("?")
    assert system == f"You know every {animal}."
    return json.dumps({"legs": {"duck": 2, "newt": 4}[animal], "swims": animal == "newt"})


def test_every_format_of_rows_may_be_said() -> None:
    assert enqueue.FORMATS == formats.FORMATS


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.txt", "x.parquet"])
def test_every_format_takes_every_option(mill: Mill, name: str) -> None:
    mill.file("schema.json", json.dumps(SCHEMA))
    column = "text" if name == "x.txt" else "animal"
    options = ["--task", f"How many legs has a {{{column}}}?", "--system", f"You know every {{{column}}}."]
    options += ["--schema", "schema.json"]
    options += ["--param", "temperature=0.5", "--param", 'stop=["x"]', "--param", "seed=7"]
    options += [] if name == "x.txt" else ["--map", "custom_id=id"]
    with FaultLane(answer=legs) as server:
        mill.settings(lanes={"free": chat(server)})
        assert mill.run("enqueue", write(mill, name), *options).stdout.split() == ["1", "2", "1"]
        mill.run("drain")
        assert server.accepted() == 2
    mill.run("results", name, "-o", "out.parquet")
    mill.run("results", name, "-o", "out.csv")
    mill.run("results", name, "-o", "out.jsonl")
    table = pq.read_table(mill.folder / "out.parquet")
    assert table.schema.field("legs").type == pa.int64()
    assert table.schema.field("swims").type == pa.bool_()
    found = table.to_pylist()
    assert [(row["legs"], row["swims"]) for row in found] == [(2, False), (4, True), (2, False)]
    with (mill.folder / "out.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    assert [(row["legs"], row["swims"]) for row in cells] == [("2", "false"), ("4", "true"), ("2", "false")]
    values = [json.loads(line) for line in (mill.folder / "out.jsonl").read_text().splitlines()]
    assert [value["data"]["legs"] for value in values] == [2, 4, 2]
    if name != "x.txt":
        notes = [row[2] for row in ROWS]
        assert [row["note"] for row in found] == [row["note"] for row in cells] == notes
        assert [value["carried"]["note"] for value in values] == notes
        assert [row["custom_id"] for row in found] == [row["custom_id"] for row in cells] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "schema: cannot read 'schema.json': No such file or directory; wanted a JSON file"),
        ("{", "schema: cannot read 'schema.json': Expecting property name"),
        ("[]", "schema: 'schema.json': found list, wanted an object"),
        ('{"type": "objekt"}', "schema: 'schema.json': found no JSON Schema that can be asked: at $.type: 'objekt'"),
    ],
)
def test_a_schema_is_refused_once_at_the_door(mill: Mill, text: str | None, words: str) -> None:
    if text is not None:
        mill.file("schema.json", text)
    refused = mill.run("enqueue", "-", "--schema", "schema.json", code=2, stdin="a\nb\n")
    assert (refused.stdout, len(refused.stderr.splitlines())) == ("", 1)
    assert words in refused.stderr
    assert not mill.home.exists()


def test_params_are_json_where_they_can_be(mill: Mill) -> None:
    words = ["a=1", "b=0.5", "c=true", 'd=["x"]', "e=null", "f=x y", 'g="1"', "h=a=b"]
    mill.run("enqueue", "-", *[word for one in words for word in ("--param", one)], stdin="a\n")
    shown = mill.run("show", "1").stdout
    wanted = {"a": 1, "b": 0.5, "c": True, "d": ["x"], "e": None, "f": "x y", "g": "1", "h": "a=b"}
    assert json.dumps(wanted, separators=(",", ":")) in shown


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("NaN", "--param a: found NaN, wanted a finite number"),
        ("9" * 5_000, "--param a: found a number that cannot be read"),
        ("[" * 100_000, "--param a: found deeper nesting than can be read"),
        ('{"b": 1, "b": 2}', "--param a: found the key 'b' twice in one object"),
    ],
    ids=["NaN", "digits", "nesting", "twice"],
)
def test_a_param_that_python_reads_otherwise_is_refused(mill: Mill, value: str, words: str) -> None:
    assert words in mill.run("enqueue", "-", "--param", f"a={value}", code=2, stdin="a\n").stderr


def test_a_parquet_file_that_cannot_be_read_makes_nothing(mill: Mill) -> None:
    mill.file("x.parquet", "no parquet")
    refused = mill.run("enqueue", "x.parquet", "--task", "{q}", code=2)
    assert refused.stderr.startswith("millpond: x.parquet: found no Parquet file that can be read")
    assert not mill.home.exists()


def test_results_of_no_rows_are_a_table_with_no_rows(mill: Mill) -> None:
    mill.run("enqueue", "-", stdin="a\n")
    mill.run("results", "-o", "out.parquet")
    table = pq.read_table(mill.folder / "out.parquet")
    assert (table.num_rows, table.column_names[:3]) == (0, ["request_id", "job_id", "custom_id"])


@pytest.mark.parametrize("output", [[], ["-o", "-"]])
def test_parquet_is_not_printed(drained: Mill, output: list[str]) -> None:
    refused = drained.run("results", "--format", "parquet", *output, code=2)
    assert "--format parquet: found no -o FILE, wanted one" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
@pytest.mark.parametrize(
    ("problem", "code"), [(OSError(28, "No space left on device"), 74), (KeyboardInterrupt(), 130)]
)
def test_a_file_of_results_is_whole_or_not_there(
    drained: Mill, monkeypatch: pytest.MonkeyPatch, name: str, problem: BaseException, code: int
) -> None:
    out = drained.file(name, "before")

    def fail(descriptor: int) -> None:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        drained.run("results", "-o", name, code=code)
    assert out.read_text() == "before"
    assert [path.name for path in drained.folder.iterdir() if path.name.endswith(".part")] == []
    before = out.stat().st_ino
    drained.run("results", "-o", name)
    assert out.stat().st_ino != before, "it was not renamed over the old one"


def parts_of(mill: Mill) -> list[str]:
    return [path.name for path in mill.folder.iterdir() if path.name.endswith(".part")]


def test_two_that_write_one_file_with_the_same_process_id_do_not_meet(
    drained: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two containers do that share a volume, or one that comes after another that was killed."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    out = drained.folder / "out.txt"
    drained.file(".out.txt.7.part", "of one that was killed")
    with whole(out) as one:
        one.write("one")
        with whole(out) as other:
            other.write("other")
        assert out.read_text() == "other"
    assert out.read_text() == "one"
    assert parts_of(drained) == [".out.txt.7.part"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_part_of_a_file(drained: Mill, number: signal.Signals, code: int) -> None:
    drained.file("out.csv", "before")
    # The last step before the file is whole: there the program waits for the signal.
    slow = "import os, signal\nos.fsync = lambda _: (print('written', flush=True), signal.pause())\n"
    go = "from millpond.faces.cli import main\nmain()\n"
    with subprocess.Popen(
        [sys.executable, "-c", slow + go, "results", "-o", "out.csv"],
        cwd=drained.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        assert len(parts_of(drained)) == 1
        process.send_signal(number)
        assert process.wait(30) == code
    assert parts_of(drained) == []
    assert (drained.folder / "out.csv").read_text() == "before"


def test_a_file_that_is_replaced_leaves_its_permissions(drained: Mill) -> None:
    out = drained.file("out.csv", "before")
    for mode in (0o600, 0o666, 0o400):
        out.chmod(mode)
        drained.run("results", "-o", "out.csv")
        assert stat.S_IMODE(out.stat().st_mode) == mode
    before = os.umask(0o027)
    try:
        drained.run("results", "-o", "new.csv")
    finally:
        os.umask(before)
    assert stat.S_IMODE((drained.folder / "new.csv").stat().st_mode) == 0o640


def test_nobody_else_can_read_a_file_while_it_is_written_over_a_private_one(drained: Mill) -> None:
    out = drained.file("out.csv", "before")
    out.chmod(0o600)
    with whole(out) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600


@pytest.mark.parametrize("format_", ["csv", "jsonl", "openai-batch"])
@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_a_number_that_json_lacks_is_a_word_in_results(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, number: str, format_: str
) -> None:
    with Queue.open(mill.home, policy=Policy()) as queue:
        queue.enqueue_many([Prompt("x")], submission="s")
        odd = float(number)
        made_up = {"choices": [{"message": {"content": "yes", "odd": odd}}]}
        queue.drain(lanes=lambda _: Reply("yes", raw=made_up, usage=Usage(1, 1, {"odd": odd})))
        # As a queue holds it that an earlier version wrote.
        real = looking.load_reply
        monkeypatch.setattr(looking, "load_reply", lambda body: replace(real(body), data={"odd": odd}))
        shown = mill.run("results", "s", "--format", format_).stdout
    if format_ == "csv":
        [row] = csv.DictReader(io.StringIO(shown))
        assert json.loads(row["data"], parse_constant=pytest.fail) == {"odd": json.dumps(odd)}
    else:
        json.loads(shown, parse_constant=pytest.fail)
        assert json.dumps(odd) in shown


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_the_value_of_a_key_with_quotes_in_it_is_not_shown(
    mill: Mill, lane: FaultLane, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    monkeypatch.setenv("POND_KEY", 'SE"CRET"KEY')
    mill.settings(lanes={"free": chat(lane, key_env="POND_KEY")})
    within = json.dumps({"said": 'SE"CRET"KEY'})
    mill.file("a.csv", 'plain,within\n"SE""CRET""KEY","' + within.replace('"', '""') + '"\n')
    mill.run("enqueue", "a.csv", "--task", "{plain}")
    mill.run("drain")
    shown = mill.run("results", "--format", format_).stdout
    assert "CRET" not in shown
    assert shown.count("[redacted]") == 3  # both columns, and the answer, which repeats one of them


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
def test_a_full_disk_is_one_line_and_leaves_what_was_there(mill: Mill, lane: FaultLane, name: str) -> None:
    """The largest file of the process is bounded, so that the system itself refuses to write on."""
    mill.settings(lanes={"free": chat(lane)})
    mill.file("long.txt", "".join(f"{os.urandom(2_000).hex()}\n" for _ in range(50)))
    mill.run("enqueue", "long.txt")
    mill.run("drain")
    out = mill.file(name, "before")

    def bound() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    refused = mill.process("results", "-o", name, preexec_fn=bound)
    assert refused.returncode == 74, refused
    assert refused.stderr == f"millpond: {name}: cannot be written (File too large); name another file with -o\n"
    assert out.read_text() == "before"
    assert [path.name for path in mill.folder.iterdir() if path.name.endswith(".part")] == []


def test_a_full_temporary_folder_is_one_line_that_names_it(mill: Mill, lane: FaultLane, tmp_path: Path) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.file("long.txt", "".join(f"{os.urandom(2_000).hex()}\n" for _ in range(300)))
    mill.run("enqueue", "long.txt")
    mill.run("drain")

    def bound() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_200_000, 1_200_000))

    aside = tmp_path / "aside"
    aside.mkdir()
    for words in (
        "results --format csv",
        "results -o out.parquet",
        "enqueue long.txt --strict",
        "enqueue long.txt --strict --dry-run",
    ):
        refused = mill.process(*words.split(), preexec_fn=bound, TMPDIR=str(aside))
        assert refused.returncode == 74, refused
        assert "Traceback" not in refused.stderr
        assert refused.stderr.splitlines()[-1] == (
            f"millpond: the temporary folder {aside} refused what does not fit into memory (File too large). "
            f"Free space there (`df -h {aside}`) or name another folder in TMPDIR, then do it again"
        )
    assert list(aside.iterdir()) == []
    assert not (mill.folder / "out.parquet").exists()


@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl"])
def test_a_device_that_refuses_is_one_line(drained: Mill, format_: str) -> None:
    refused = drained.run("results", "-o", "/dev/full", "--format", format_, code=74)
    assert refused.stderr == (
        "millpond: /dev/full: cannot be written (No space left on device); name another file with -o\n"
    )


def test_csv_on_stdout_and_in_a_file_are_the_same(drained: Mill) -> None:
    drained.run("results", "-o", "out.csv")
    told = drained.run("results", "--format", "csv").stdout
    with (drained.folder / "out.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(io.StringIO(told))) == list(csv.reader(file))


def test_without_pyarrow_the_extra_is_named_and_nothing_is_made(drained: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    refused = drained.run("results", "-o", "out.parquet", code=2)
    assert "pip install 'millpond[dataframe]'" in refused.stderr
    assert not Path(drained.folder / "out.parquet").exists()
    assert [path.name for path in drained.folder.iterdir() if path.name.endswith(".part")] == []
