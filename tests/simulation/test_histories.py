"""Histories that chance rarely writes, and small ones tried in every way: a crash and a freeze at each effect."""

from __future__ import annotations

import pytest
from histories import HISTORIES, world


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    play, policy = HISTORIES[name]
    with world(policy) as made:
        play(made)
