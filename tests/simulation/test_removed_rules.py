"""A simulation that finds nothing proves nothing: each rule is taken out in turn, and the simulation must notice.

Run as a program, this file draws the tables of docs/simulation.md; with `--named` only that of the named rules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from histories import HISTORIES, world
from named_rules import NAMED
from removals import REMOVALS, Removal

from millpond.testing import simulate

DOCS = Path(__file__).resolve().parents[2] / "docs/simulation.md"
TABLE = r"(<!-- removed rules: .*? -->\n)(.*?)(<!-- end of the removed rules -->)"
NAMED_TABLE = r"(<!-- named rules: .*? -->\n)(.*?)(<!-- end of the named rules -->)"
SEEDS = range(60)
"""Among these a removal without a history of its own is looked for; the table names the first that finds it."""


def caught(removal: Removal, monkeypatch: pytest.MonkeyPatch, seeds: Iterable[int] = SEEDS) -> tuple[str, str]:
    """Who notices that the rule is gone, and what is said of it; nothing if nobody does."""
    removal.take_out(monkeypatch)
    if removal.history:
        play, policy = HISTORIES[removal.history]
        with world(policy) as made:
            try:
                play(made)
            except AssertionError as broken:
                return f"`{removal.history}`", in_general(str(broken))
        return "", ""
    for seed in seeds:
        try:
            simulate(seed)
        except AssertionError as broken:
            return f"seed {seed}", in_general(str(broken))
    return "", ""


def in_general(words: str) -> str:
    """What was said, without the numbers and names of the one case."""
    words = re.sub(r"\[.*\]", "…", words.partition("\n")[0])
    words = re.sub(r"\b[0-9a-f]{64}\b|'[^']*'|\bown\b", "…", words)
    return re.sub(r"\b[a-z]?\d+(#\d)?\b", "…", words)


@pytest.mark.parametrize("rule", REMOVALS)
def test_a_rule_that_is_taken_out_is_missed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS.read_text(encoding="utf-8")
    seed = re.search(rf"^\| {re.escape(rule)} \| seed (\d+) \|", page, re.MULTILINE)
    by, said = caught(REMOVALS[rule], monkeypatch, [int(seed[1])] if seed else SEEDS)
    assert said, "nobody noticed"
    assert f"| {rule} | {by} | {said} |" in page, f"{__file__} draws the table anew"


def test_the_table_names_no_other_rule() -> None:
    found = re.search(TABLE, DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    assert [line.split(" | ")[0].removeprefix("| ") for line in found[2].splitlines()[2:]] == list(REMOVALS)


def named() -> str:
    """Each named rule, and by which rows of the other table it is taken out."""
    rows = ["| rule | what it says | taken out as |", "|---|---|---|"]
    for name, rule in NAMED.items():
        assert bool(rule.removals) != bool(rule.why_none), name
        rows.append(f"| `{name}` | {rule.says} | {'; '.join(rule.removals) or f'({rule.why_none})'} |")
    return "\n".join(rows) + "\n"


def test_each_named_rule_is_taken_out_or_is_said_not_to_be() -> None:
    assert len(NAMED) == 28
    assert not {removal for rule in NAMED.values() for removal in rule.removals} - REMOVALS.keys()
    found = re.search(NAMED_TABLE, DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    assert found[2] == named(), f"{__file__} --named draws it anew"


def drawn(page: str) -> str:
    """The page with its tables as they are now."""
    page = re.sub(NAMED_TABLE, lambda m: m[1] + named() + m[3], page, flags=re.DOTALL)
    if sys.argv[1:] == ["--named"]:
        return page
    rows = ["| rule that is taken out | who notices | what it says |", "|---|---|---|"]
    for rule, removal in REMOVALS.items():
        with pytest.MonkeyPatch.context() as monkeypatch:
            by, said = caught(removal, monkeypatch)
        rows.append(f"| {rule} | {by} | {said} |")
    return re.sub(TABLE, lambda m: m[1] + "\n".join(rows) + "\n" + m[3], page, flags=re.DOTALL)


if __name__ == "__main__":
    DOCS.write_text(drawn(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
