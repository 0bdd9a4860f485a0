"""What a drain leaves is told with its reason, and with a command that exists and helps."""

from __future__ import annotations

from millpond.report.left import why_left
from millpond.rules.admission import Closing
from millpond.rules.effects import Then
from millpond.rules.policy import LanePolicy, Policy
from millpond.testing.store_scene import Scene

POLICY = Policy(lanes={"free": LanePolicy("free"), "paid": LanePolicy("paid")})


def told(scene: Scene, *drained: str, is_cut_short: bool = False) -> list[str]:
    """The lines, after a drain that had these lanes."""
    lanes = drained or ("free", "paid")
    return list(why_left(scene.store, POLICY, lanes, lambda verb: f"mill {verb}", is_cut_short=is_cut_short))


def test_nothing_left_is_nothing_told(scene: Scene) -> None:
    scene.close_lane("free", Closing(scene.now_ms + 3_000, "full", "saturated"))
    assert told(scene) == []


def test_a_lane_without_room_says_for_how_long_and_how_to_wait(scene: Scene) -> None:
    scene.ask("a", lane="free")
    scene.close_lane("free", Closing(scene.now_ms + 3_000, "rate_limited", "saturated"))
    [line] = told(scene)
    assert line.startswith("lane free has no room for 3 s more (rate_limited); `mill drain --until-empty`")
    assert line.endswith("1 job ready for it")


def test_a_lane_that_needs_a_person_names_the_verb_that_opens_it(scene: Scene) -> None:
    scene.ask("a", lane="free")
    scene.close_lane("free", Closing(None, "no_money", "down"))
    [line] = told(scene)
    assert "no_money" in line
    assert "`mill lanes free resume`" in line
    assert "--until-empty" not in line, "waiting would not help"


def test_a_lane_that_the_drain_did_not_have_is_named(scene: Scene) -> None:
    scene.ask("a", lane="paid")
    assert ["paid" in line for line in told(scene, "free")] == [True]
    assert told(scene, "free", is_cut_short=True) == [], "it was not asked to finish"


def test_what_another_machine_holds_is_told_with_the_drain_that_takes_it_back(scene: Scene) -> None:
    scene.ask("a", lane="free")
    scene.lease()
    [line] = told(scene)
    assert line.startswith("1 job leased on another machine (pid 1 on host); if that is gone, a drain takes back")
    assert line.endswith("; `mill drain --until-empty` does")


def test_what_the_next_drain_pays_again_is_told_also_after_a_signal(scene: Scene) -> None:
    scene.ask("a", lane="paid")
    [lease] = scene.lease(room={"paid": 1})
    scene.settle(scene.send(lease, "paid"), "ambiguous", Then("release"), lease=lease, lane="paid")
    for is_cut_short in (True, False):
        assert (
            "1 job has a call of unknown end on lane paid; the next drain pays again, unless you speak first: "
            "`mill decide ID pin|same|fail`" in told(scene, is_cut_short=is_cut_short)
        )


def test_pauses_and_questions_are_told(scene: Scene) -> None:
    for key in ("a", "b"):
        scene.ask(key, lane="free")
    first, second = scene.store.lease(scene.worker, {"free": 2}, 2)
    scene.store.give(first, Then("back_off", delay_ms=4_000))
    scene.settle(scene.send(second), "ambiguous", Then("ask"), lease=second)
    due, asked = told(scene)
    assert "due in 4 s; `mill drain --until-empty`" in due
    assert "`mill jobs state:asked`" in asked
    assert "`mill explain ID`" in asked
