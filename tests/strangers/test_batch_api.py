"""One OpenAI batch input file, handed to a provider's own Batch API and to us: the files that come back are alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from llmock.pytest_plugin import LLMock
from openai.types.chat import ChatCompletion
from pond import FREE_MODEL, Pond

from millpond import batch_lines, read

ASKED = {"same-1": "How many ducks?", "refused": "How many geese?", "same-2": "How many ducks?", "last": "And newts?"}


def line(custom_id: str, **more: Any) -> dict[str, Any]:
    body = {"model": FREE_MODEL, "messages": [{"role": "user", "content": ASKED[custom_id]}], "temperature": 0}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **more}


def by_its_own_batch_api(file: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The output file and the error file of the provider, by the official client."""
    with openai.OpenAI() as client:
        sent = client.files.create(file=file, purpose="batch")
        batch = client.batches.create(input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h")
        batch = client.batches.retrieve(batch.id)
        assert batch.status in ("completed", "failed")  # failed: no line of it could be answered
        texts = [client.files.content(id_).text if id_ else "" for id_ in (batch.output_file_id, batch.error_file_id)]
    output, errors = ([json.loads(text) for text in whole.splitlines()] for whole in texts)
    return output, errors


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "plain"])
def test_what_comes_out_is_what_the_batch_api_gives(
    make_pond: Callable[..., Pond], llmock: LLMock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, streams: bool
) -> None:
    monkeypatch.setattr("llmock.routers.batch._BATCH_DELAY", 0.0)
    file = tmp_path / "batch.jsonl"
    file.write_text("".join(json.dumps(line(name)) + "\n" for name in ASKED))
    theirs, _ = by_its_own_batch_api(file)
    file_with_an_error = tmp_path / "wrong.jsonl"
    file_with_an_error.write_text(json.dumps(line("last", url="/v1/nowhere")) + "\n")
    _, [their_error] = by_its_own_batch_api(file_with_an_error)

    pond = make_pond(streams=streams)
    [_, refused, *_] = receipts = pond.queue.enqueue_many(list(read(file)))
    assert [receipt.disposition for receipt in receipts] == ["new", "new", "joined", "new"]
    pond.queue.cancel(refused.job_id)
    assert pond.drain().done == 2
    ours = list(batch_lines(pond.queue, receipts[0].submission_id))

    assert [one["custom_id"] for one in ours] == [one["custom_id"] for one in theirs] == list(ASKED)
    [our_error] = [one for one in ours if one["error"]]
    output = [(one, other) for one, other in zip(ours, theirs, strict=True) if not one["error"]]
    assert our_error["custom_id"] == "refused"
    assert shape_of(our_error) == shape_of(their_error)
    for one, other in output:
        assert list(one) == list(other)
        assert list(one["response"]) == list(other["response"])
        assert one["response"]["status_code"] == other["response"]["status_code"] == 200
        our_answer, their_answer = (ChatCompletion.model_validate(x["response"]["body"]) for x in (one, other))
        assert our_answer.model == their_answer.model == FREE_MODEL
        assert our_answer.choices == their_answer.choices
        assert our_answer.usage == their_answer.usage


def shape_of(value: Any) -> Any:
    """Names and types, in their order."""
    return [(name, shape_of(part)) for name, part in value.items()] if isinstance(value, dict) else type(value).__name__
