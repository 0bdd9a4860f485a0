"""Whether a lane can do some work at all, said before anything is called, started or sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from millpond.rules.evidence import Evidence
from millpond.rules.job import Outcome, Prompt
from millpond.rules.policy import LanePolicy
from millpond.rules.schema import refuse_schema


def refusal(policy: LanePolicy, work: Any, *, text_only: bool = False) -> Evidence | None:
    """Say why a lane cannot do some work; None if it can. `text_only`: it takes no full chat, tools or images.

    Only prompts are judged: whether a lane takes commands is the router's rule and the lane's own.
    """
    if not isinstance(work, Prompt):
        return None
    lane = f"lane {policy.name!r}"
    if work.model is not None and not policy.offers(work.model):
        return cannot("unfit", "unfit_model", f"{lane} does not offer the model {work.model!r}")
    if work.tools and (text_only or not policy.supports_tools):
        return cannot("unfit", "unfit_tools", f"{lane} does not support tools")
    if (text_only or not policy.supports_images) and _shows_images(work):
        return cannot("unfit", "unfit_images", f"{lane} does not support images")
    if work.messages is not None and text_only:
        return cannot("unfit", "unfit_messages", f"{lane} takes a text, not a full chat")
    if work.schema is not None and (wrong := refuse_schema(work.schema)):
        return cannot("permanent", "bad_schema", f"schema: {wrong}")
    if work.schema is not None and not policy.supports_schema:
        return cannot("unfit", "unfit_schema", f"{lane} does not support an output schema")
    return None


def cannot(said: Outcome, code: str, message: str) -> Evidence:
    """The evidence of work that was not begun: `unfit` for this lane or, where no lane could do it, `permanent`."""
    return Evidence(sent="no", said=said, code=code, message=message)


def content_parts(content: Any) -> Sequence[Any]:
    """The parts of a message's content; none where it is a plain text."""
    return cast(Sequence[Any], content) if isinstance(content, Sequence) and not isinstance(content, str) else ()


def _shows_images(prompt: Prompt) -> bool:
    """Whether images come with a prompt, or stand in its chat."""
    return bool(prompt.images) or any(
        isinstance(part, Mapping) and cast(Mapping[str, Any], part).get("type") == "image_url"
        for message in prompt.messages or ()
        for part in content_parts(message.get("content"))
    )
