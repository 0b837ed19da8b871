"""What is offered of a model over a history of updates: nothing that answers gives way to something broken."""

from unittest.mock import sentinel

from hypothesis import given
from hypothesis import strategies as st

from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.service.model_loader import BrokenModel, CloudModel, ModelVersions, offered

VERSIONS = st.integers(1, 12).map(str)
UPDATES = st.lists(st.dictionaries(VERSIONS, st.booleans(), min_size=1, max_size=4), min_size=1, max_size=6)
"""Of each update the versions that are to be served, and whether each loads."""


def loaded(version: str, good: bool) -> CloudModel | BrokenModel:
    if not good:
        return BrokenModel("m", version, "broken")
    settings = ModelSettings()
    rest = (sentinel.engine, sentinel.processor, sentinel.batcher)
    return CloudModel("m", version, "fake", "sha256:0", settings, *rest)


def answers(offer: ModelVersions | None) -> bool:
    return offer is not None and isinstance(offer.versions[offer.default], CloudModel)


@given(UPDATES)
def test_what_answers_is_the_newest_that_loads_or_what_answered_before(updates: list[dict[str, bool]]) -> None:
    before: ModelVersions | None = None
    for update in updates:
        models = {version: loaded(version, good) for version, good in update.items()}
        offer = offered(list(models.values()), before)
        highest = max(update, key=int)
        was = {} if before is None else {model.version: model for model in before.served}

        # The oracle, version by version.
        for version, model in models.items():
            expected = was[version] if isinstance(model, BrokenModel) and version in was else model
            assert offer.versions[version] is expected
            assert (version in offer.notes) == (expected is not model)
        if update[highest] or highest in was:
            assert offer.default == highest
        elif before is not None and answers(before):
            assert offer.default == before.default
            assert offer.versions[offer.default] is (
                models[offer.default] if update.get(offer.default) else was[offer.default]
            )
        else:
            assert offer.default == highest

        # What must hold whatever the rule is.
        assert answers(offer) or not answers(before)
        assert set(offer.versions) - set(update) <= {offer.default}
        assert list(offer.versions) == sorted(offer.versions, key=int)
        before = offer


@given(UPDATES)
def test_an_unloaded_model_answers_in_no_version_and_holds_nothing(updates: list[dict[str, bool]]) -> None:
    offer: ModelVersions | None = None
    for update in updates:
        offer = offered([loaded(version, good) for version, good in update.items()], offer)
    assert offer is not None
    gone = offer.unloaded()
    assert gone.served == ()
    assert {model.reason for model in gone.versions.values() if isinstance(model, BrokenModel)} == {"unloaded"}
    assert offered([loaded("1", good=True)], gone).default == "1"
