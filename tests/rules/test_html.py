"""Values as tables of HTML."""

from __future__ import annotations

from millpond.rules.html import table


def test_what_a_table_shows_is_text_and_never_html() -> None:
    shown = table("<b>", {"<i>": "<script>alert(1)</script>", "label": 'a "quoted" & name'})
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert "<script>" not in shown
    assert "a &quot;quoted&quot; &amp; name" in shown


def test_unknown_is_a_dash_and_a_moment_can_be_read() -> None:
    shown = table(
        "Job 1", {"cost": None, "created_ms": 1_790_000_000_000, "due_ms": 10**30, "tags": ("a", "b"), "n": 0}
    )
    assert '>cost</th><td style="text-align:left">-</td>' in shown
    assert '>created</th><td style="text-align:left">2026-09-21 14:13:20Z</td>' in shown
    assert ">due</th>" in shown
    assert ">a, b</td>" in shown
    assert ">0</td>" in shown
