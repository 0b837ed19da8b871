"""The agent that answers on the device and lifts hard and large cases to the cloud."""

from upwell.edge.agent import Agent
from upwell.edge.answer import Answer, Timings

__all__ = ["Agent", "Answer", "Timings"]
