"""What a lane is, and what it brings when all goes well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millpond.lanes.given import flaw_of
from millpond.lanes.lane import Lane
from millpond.rules.job import Command, Image, Prompt
from millpond.rules.policy import Policy
from millpond.rules.schema import judge_answer
from millpond.store.bodies import dump_reply, load_reply
from millpond.testing.lane_scene import LaneScene

COLOUR = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}

STANDSTILL_S = 0.02
"""A call that takes longer than this must have given the loop a turn."""


def it_is_a_lane_with_a_policy(s: LaneScene) -> None:
    """A drain is refused otherwise."""
    lane: Any = s.lane()
    assert isinstance(lane, Lane), f"{type(lane).__name__} is no Lane: it wants policy, call and close"
    flaw = flaw_of(lane)
    assert not flaw, flaw
    policy = lane.policy
    assert policy.name, "policy.name: found none, wanted the name that stands in the ledger"
    Policy(lanes={policy.name: policy}).check()


def a_mapping_may_give_it_another_name(s: LaneScene) -> None:
    """`drain(lanes={"another": lane})` sets its policy anew."""
    lane = s.lane()
    its_own = lane.policy
    try:
        lane.policy = replace(its_own, name="another")
        assert lane.policy.name == "another", "the policy that was set is not the lane's"
        s.run(lane, s.is_answered)
    finally:
        lane.policy = its_own  # it may be the caller's own lane


def a_prompt_is_answered(s: LaneScene) -> None:
    """With evidence that is read as ok, of a request that left, and a reply with something in it."""
    lane, work = s.lane(), s.prompt()
    evidence = s.run(lane, lambda lane: s.ask(lane, work))
    reply = s.good_reply(lane, work, evidence)
    assert reply.text.strip() or reply.data is not None, "it is read as ok, and its reply is empty"
    assert evidence.sent == "yes", f"sent: found {evidence.sent!r} for a request that was answered"


def a_reply_is_read_back_as_it_was_brought(s: LaneScene) -> None:
    """Replies are stored as JSON: data and raw must be what JSON has."""
    reply = s.run(s.lane(), s.is_answered)
    assert load_reply(dump_reply(reply)) == reply, f"{reply} is stored as {dump_reply(reply)}"


def each_reply_belongs_to_its_call(s: LaneScene) -> None:
    """With as many calls at once as its policy lets through, again and again."""
    lane = s.lane()

    async def many(lane: Lane) -> None:
        for _ in range(3):
            await s.are_answered(lane, min(lane.policy.width, 8))

    s.run(lane, many)


def a_call_gives_the_loop_its_turns(s: LaneScene) -> None:
    """All calls, the beat of the owner and every deadline live on one loop. It may not stand still for a whole call.

    Three times, as the first call may have to load or to connect something, and a machine may be busy.
    """
    lane = s.lane()

    async def thrice(lane: Lane) -> float:
        return min([await s.stood_still_s(lane) for _ in range(3)])

    stood_s = s.run(lane, thrice)
    assert stood_s < STANDSTILL_S, (
        f"the loop stood still for {stood_s:.3f} s at each call: await what takes time, or hand it to a thread "
        "(asyncio.to_thread)"
    )


def a_schema_is_answered_with_data_that_satisfies_it(s: LaneScene) -> None:
    """Or else the call did not end well: as unfit, or as unusable."""
    lane = s.lane()
    evidence = s.run(lane, lambda lane: s.ask(lane, s.prompt(schema=COLOUR)))
    outcome = s.judge(lane, evidence).outcome
    assert outcome in ("ok", "unusable", "unfit"), f"work with a schema ended as {outcome}"
    if outcome == "ok":
        assert evidence.reply is not None
        wrong = judge_answer(evidence.reply.data, COLOUR)
        assert not wrong, f"ok with data {evidence.reply.data!r}: {wrong}; bring data, or say why not in schema_error"


def tokens_that_are_unknown_are_none(s: LaneScene) -> None:
    """Not 0: no text was made of no tokens. What is known is a whole number."""
    lane, work = s.lane(), s.prompt()
    evidence = s.run(lane, lambda lane: s.ask(lane, work))
    usage: Any = evidence.usage or s.good_reply(lane, work, evidence).usage
    for name in ("tokens_in", "tokens_out"):
        tokens: Any = getattr(usage, name)
        is_known = isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0
        assert tokens is None or is_known, f"{name}: found {tokens!r}, wanted a number above 0, or None for unknown"


def no_work_makes_it_raise(s: LaneScene) -> None:
    """Odd characters, chats, pictures, tools, an unknown model, a command: what it cannot do it says in Evidence."""
    lane = s.lane()
    task = s.prompt().task
    works = [
        Prompt(f"{task} \0 \ud83d"),
        Prompt(task, messages=({"role": "user", "content": task},)),
        Prompt(task, images=(Image(b"GIF89a", "image/gif"),)),
        Prompt(task, tools=({"type": "function", "function": {"name": "quack", "parameters": {"type": "object"}}},)),
        Prompt(task, model="a model that nobody has"),
        Prompt(task, params={"temperature": 0.5}, reasoning="low", system="Be brief."),
    ]

    async def each(lane: Lane) -> None:
        for work in works:
            ending = s.judge(lane, await s.ask(lane, work))
            assert ending.outcome in ("ok", "unfit", "permanent", "unusable"), (
                f"{work} ended as {ending.outcome} ({ending.classified.message}), and would end so again and again"
            )
        ending = s.judge(lane, await s.ask(lane, Command("quack", {"times": 2}, "uid-1")))
        # A function that was written for prompts may stumble over a command; that must not shut out the prompts.
        assert ending.closing is None, f"a command closed the lane for all work: {ending.closing}"

    s.run(lane, each)


def the_key_is_handed_on_as_it_is(s: LaneScene) -> None:
    """A far side that honours it must find the same key at each attempt of the work."""
    lane = s.lane()

    async def once(lane: Lane) -> None:
        before = len(s.keys_seen(lane))
        await s.ask(lane, s.prompt(), key="customer-7:invoice-12")
        seen = list(s.keys_seen(lane))[before:]
        assert seen == ["customer-7:invoice-12"], f"asked once under customer-7:invoice-12, the far side saw {seen}"

    s.run(lane, once)


def each_call_is_one_request(s: LaneScene) -> None:
    """Also the second one under one key: whether to ask again is not for the lane to decide."""
    lane, work = s.lane(), s.prompt()

    async def twice(lane: Lane) -> None:
        before = len(s.keys_seen(lane))
        for attempt_no in (1, 2):
            s.good_reply(lane, work, await s.ask(lane, work, key="one", attempt_no=attempt_no))
            seen = len(s.keys_seen(lane)) - before
            assert seen == attempt_no, f"after {attempt_no} calls the far side has seen {seen} requests"

    s.run(lane, twice)
