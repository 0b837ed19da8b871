"""The policy file of a running agent: valid changes take effect, wrong or unfinished ones do not.

Before one takes effect, it is checked whether the agent can do what it requires.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from upwell.edge.models.edge_model import ServedModel
from upwell.edge.models.hardness_scorer import hardness_function
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.platform.watched_files import SettledFile
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import Settings

_log = logging.getLogger(__name__)


def check_policy(policy: Policy, models: Iterable[ServedModel], path: Path | None, *, has_state_dir: bool) -> None:
    """Raise `ConfigError` for what this agent cannot do; log models whose hardness cannot be measured."""
    problems: dict[str, None] = {}
    unmeasured: dict[tuple[str, str], None] = {}
    for model in models:
        for settings in _all_settings(policy, model):
            wanted = [name for name, is_on in _kept(settings).items() if is_on]
            if wanted and not has_state_dir:
                problems[f"{', '.join(wanted)} need a folder; expected agent.state_dir in agent.yaml"] = None
            hard = settings.hard
            if hard is None or model.edge is None:
                continue
            if hard.measure == "function":
                try:
                    hardness_function(hard.function)
                except ConfigError as error:
                    problems[error.problems[0].message] = None
            elif problem := model.edge.scorer.problem(hard):
                unmeasured[model.name, problem] = None
    for name, problem in unmeasured:  # once, however many rules there are
        _log.info("model %s: no request counts as hard under this policy: %s", name, problem)
    if problems:
        raise ConfigError([Problem(path, None, None, "", text) for text in problems])


def _all_settings(policy: Policy, model: ServedModel) -> Iterator[Settings]:
    for rule in (None, *policy.rules):
        yield policy.settings(model.name, rule, model.model_pair)


def _kept(settings: Settings) -> dict[str, bool]:
    """The settings that write to disk, and whether each is in use."""
    return {
        "spool": settings.spool or "spool" in settings.on_cloud_failure.values(),
        "audit": settings.audit > 0,
        "explore": settings.explore > 0,
        "record": settings.record_bytes > 0,
        "collect": settings.collect is not None,
    }


class PolicyFile(SettledFile[Policy]):
    """A policy file; `take` gets each new policy. Raises `ConfigError` if it is wrong at construction."""

    def __init__(self, path: Path, take: Callable[[Policy], str], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(path, lambda: load_yaml(path, Policy), take, "policy", clock)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.value
