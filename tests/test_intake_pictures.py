"""Pictures at the way in: how each is told, read and refused."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from oneitem import NOW, taken

from millpond.intake import MAX_IMAGE_BYTES, take
from millpond.rules.errors import UsageError
from millpond.rules.job import Image, Prompt
from millpond.store.bodies import load_work

PNG = b"\x89PNG\r\n\x1a\n and so on"
JPEG = b"\xff\xd8\xff\xe0 and so on"
GIF = b"GIF89a and so on"
WEBP = b"RIFF\x10\x00\x00\x00WEBPVP8 "


def pictures(images: Any, base: Path | None = None) -> Any:
    asked = take(Prompt("what is this?", images=images), position=0, now_ms=NOW, base=base)
    work = load_work(asked.body)
    assert isinstance(work, Prompt)
    return work.images


@pytest.mark.parametrize(
    ("data", "media_type"), [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")]
)
def test_a_picture_is_told_by_its_content_however_it_comes(data: bytes, media_type: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.tiff").write_bytes(data)
    url = "data:image/tiff;base64," + base64.b64encode(data).decode()
    found = pictures(
        [data, bytearray(data), url, Image(data, "image/tiff"), Image(url=url), "wrong.tiff", Path("wrong.tiff"),
         str(tmp_path / "wrong.tiff")],
        tmp_path,
    )  # fmt: skip
    assert set(found) == {Image(data, media_type)}
    assert len(found) == 8


def test_the_same_picture_from_a_file_and_from_memory_is_the_same_work(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    by_path = take(Prompt("x", images=["a.png"]), position=0, now_ms=NOW, base=tmp_path)
    assert by_path.fingerprint == taken(Prompt("x", images=[PNG])).fingerprint


def test_an_address_is_kept_for_the_lane_to_fetch() -> None:
    assert pictures(["https://host/a.png", Image(url="HTTP://host/b", media_type="image/gif")]) == (
        Image(url="https://host/a.png"),
        Image(url="HTTP://host/b"),
    )


def test_without_a_base_paths_are_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    assert pictures(["a.png"]) == (Image(PNG),)


def test_a_picture_that_cannot_be_read_is_refused_by_path_and_reason(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_bytes(b"no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.png")
    for image, words in {
        "gone.png": "gone.png': No such file or directory; wanted a readable picture",
        ".": "is not a file, wanted a picture",
        "pipe.png": "is not a file, wanted a picture",
        "nul\0": "null byte; wanted a readable picture",
        "text.png": "'text.png' starting with 6e 6f 20 70 69 63 74 75, wanted the content of a PNG, JPEG, GIF or WebP",
        "empty.png": "'empty.png' with no bytes",
        "ftp://host/a.png": "found 'ftp://host/a.png', wanted an http(s) or data URL, a path or bytes",
        "data:image/png;base64,???": "a data URL that does not decode",
        "data:image/png;base64,aGFsbG8=": "found a data URL starting with 68 61 6c 6c 6f",
    }.items():
        with pytest.raises(UsageError) as caught:
            pictures([PNG, image], tmp_path)
        assert str(caught.value).startswith("images[1]: ")
        assert words in str(caught.value)
    others: dict[Any, str] = {
        5: "images[0]: found int 5, wanted an Image, bytes, a path",
        b"": "content with no bytes",
        Image(): "images[0]: found an empty text, wanted an Image",
        Image(PNG, url="https://host/a"): "content both in data and in url",
    }
    for image, words in others.items():
        with pytest.raises(UsageError) as caught:
            pictures([image])
        assert words in str(caught.value)


def test_a_picture_beyond_the_cap_is_refused_and_one_at_the_cap_is_taken(tmp_path: Path) -> None:
    at_cap = PNG + bytes(MAX_IMAGE_BYTES - len(PNG))
    (tmp_path / "cap.png").write_bytes(at_cap)
    (tmp_path / "big.png").write_bytes(at_cap + b"\0")
    assert len(pictures(["cap.png"], tmp_path)[0].data) == MAX_IMAGE_BYTES
    for image in ("big.png", at_cap + b"\0"):
        with pytest.raises(UsageError, match="is larger than 20,971,520 bytes"):
            pictures([image], tmp_path)
