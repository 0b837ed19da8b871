"""Pipelines: from a camera to an action, around an agent. The deadline counts from capture."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from upwell.pipelines.frame import FoundObject, Frame, Scene
    from upwell.pipelines.frame_outcome import AnsweredFrame, PipelineStatus
    from upwell.pipelines.run.embedded_pipeline import Pipeline

__all__ = ["AnsweredFrame", "FoundObject", "Frame", "Pipeline", "PipelineStatus", "Scene"]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that a device without cameras needs none of the packages for pipelines."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from upwell.pipelines import frame, frame_outcome

    if name == "Pipeline":
        from upwell.pipelines.run.embedded_pipeline import Pipeline

        return Pipeline
    return getattr(frame_outcome, name, None) or getattr(frame, name)
