"""A CSV of 1,319 questions becomes a CSV of answers with its columns and two typed ones; again, at no cost."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
from mill import QUESTIONS, Home, questions

from millpond.drill.faultlane import FaultLane

SCHEMA = {
    "type": "object",
    "properties": {"characters": {"type": "integer"}, "is_long": {"type": "boolean"}},
    "required": ["characters", "is_long"],
    "additionalProperties": False,
}
TASK = "How long is this question?\n{question}"
CARRIED = ("question", "gold", "note", "n")
PRICE_USD = 0.001
OF_A_RUN = {"request_id", "disposition", "tokens_in", "tokens_out", "cost"}
"""What of a result differs between two runs of one file: which request it is, and who paid."""


def asked(folder: Path) -> list[dict[str, Any]]:
    """The questions, with three columns more beside them: answers of several lines, awkward notes, numbers."""
    lines = questions(folder).read_text(encoding="utf-8").splitlines()
    return [
        {"id": f"q{n}", "question": row["question"], "gold": str(row["answer"]), "note": f'"{n}", é☂\n,\t\'', "n": n}
        for n, row in enumerate(map(json.loads, lines))
    ]


def measured(body: Mapping[str, Any]) -> str:
    """The answer by the schema, which must have been asked."""
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    question = body["messages"][-1]["content"].partition("\n")[2]
    return json.dumps({"characters": len(question), "is_long": len(question) > 200})


def cells(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def spent(home: Home) -> float:
    """What a drain spent, in USD."""
    summary = json.loads(home.run("--json", "drain", "--until-empty")[0])
    assert (summary["failed"], summary["unpriced"], summary["ready"]) == (0, 0, 0)
    return summary["spent_usd"]


def test_a_csv_of_1319_questions_becomes_a_csv_of_answers_twice_the_second_time_at_no_cost(tmp_path: Path) -> None:
    rows = asked(tmp_path)
    assert len(rows) == QUESTIONS
    with (tmp_path / "asked.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "asked.parquet")
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    enqueue = ["--task", TASK, "--map", "custom_id=id", "--schema", "schema.json"]
    with FaultLane(answer=measured) as server:
        lane = {"kind": "chat", "base_url": server.base_url, "model": "fault-1", "price": PRICE_USD}
        home = Home(tmp_path, lanes={"paid": {**lane, "tier": "paid", "max_in_flight": 32}})

        out, err = home.run("enqueue", "asked.csv", "--name", "first", *enqueue)
        ids = out.split()
        assert "1,319 new · 0 joined · 0 reused · 0 refused" in err
        assert abs(spent(home) - QUESTIONS * PRICE_USD) < 1e-9
        assert server.accepted() == QUESTIONS
        home.run("results", "first", "-o", "first.csv")

        out, err = home.run("enqueue", "asked.csv", "--name", "second", *enqueue)
        assert out.split() == ids
        assert "0 new · 0 joined · 1,319 reused · 0 refused" in err
        assert spent(home) == 0
        home.run("results", "second", "-o", "second.csv")

        out, err = home.run("enqueue", "asked.parquet", "--name", "third", *enqueue)
        assert out.split() == ids
        assert "0 new · 0 joined · 1,319 reused · 0 refused" in err
        assert spent(home) == 0
        home.run("results", "third", "-o", "third.parquet")
        assert server.accepted() == QUESTIONS, "what is known was asked again"

    first, second = list(cells(tmp_path / "first.csv")), list(cells(tmp_path / "second.csv"))
    assert len(first) == QUESTIONS
    for row, one in zip(rows, first, strict=True):
        length = len(row["question"])
        wanted = {name: str(row[name]) for name in CARRIED}
        wanted |= {"characters": str(length), "is_long": json.dumps(length > 200), "custom_id": row["id"]}
        assert {name: one[name] for name in wanted} == wanted
    assert list(first[0])[:6] == [*CARRIED, *SCHEMA["properties"]]  # type: ignore[misc]
    assert [one["position"] for one in first] == [str(n) for n in range(QUESTIONS)]
    assert {one["cost"] for one in first} == {str(PRICE_USD)}
    assert {one["cost"] + one["tokens_in"] + one["tokens_out"] for one in second} == {""}
    assert {one["disposition"] for one in second} == {"reused"}
    for one, again in zip(first, second, strict=True):
        assert {name for name in one if one[name] != again[name]} == OF_A_RUN

    third = pq.read_table(tmp_path / "third.parquet")
    kinds = [third.schema.field(name).type for name in (*CARRIED, "characters", "is_long", "cost")]
    assert kinds == [pa.string(), pa.string(), pa.string(), pa.int64(), pa.int64(), pa.bool_(), pa.float64()]
    assert third.column("cost").null_count == QUESTIONS
    for row, one in zip(rows, third.to_pylist(), strict=True):
        length = len(row["question"])
        wanted = {name: row[name] for name in CARRIED}
        wanted |= {"characters": length, "is_long": length > 200, "custom_id": row["id"]}
        assert {name: one[name] for name in wanted} == wanted
    frame = polars.read_parquet(tmp_path / "third.parquet")
    assert frame["characters"].sum() == sum(len(row["question"]) for row in rows)
