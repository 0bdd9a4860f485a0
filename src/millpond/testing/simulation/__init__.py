"""The real rules and the real store in a world of chance: `simulate(seed)`."""

from millpond.testing.simulation.storm import simulate
from millpond.testing.simulation.witness import PromiseBroken
from millpond.testing.simulation.world import Run, World

__all__ = ["PromiseBroken", "Run", "World", "simulate"]
