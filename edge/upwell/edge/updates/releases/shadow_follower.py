"""Fetching and loading the shadow release that the fleet service has chosen, beside the release in service."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal
from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.updates.releases.fleet_choice import KeptFleetChoice
from upwell.edge.updates.releases.release_source import ReleaseSource
from upwell.edge.updates.releases.release_switching import ReleaseSurroundings, RunsBeside, opened
from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.version_store import VersionStore
from upwell.shared.errors import UpwellError

SHADOW_NAME = "shadow"

_log = logging.getLogger(__name__)


class ShadowFollower:
    """Keeps the shadow release at the chosen one. `look` is called by one thread at a time."""

    def __init__(
        self,
        shadow: RunsBeside,
        source: ReleaseSource,
        store: VersionStore,
        parts: ReleaseSurroundings,
        choice: KeptFleetChoice,
    ) -> None:
        self._shadow = shadow
        self._source = source
        self._store = store
        self._parts = parts
        self._choice = choice

    def look(self) -> None:
        """Run the chosen shadow release. A failed fetch is tried again at the next look; a refusal is reported."""
        wanted = self._choice.now.shadow or 0
        if wanted and wanted == self._shadow.release:
            return
        folder = self._store.folder.parent / SHADOW_NAME
        kept = "" if wanted in (0, self._store.state.current) else str(wanted)
        if self._shadow.release or not wanted:  # else it may be the shadow release from before a restart
            self._shadow.end()
        for other in folder.glob("*"):
            if other.name != kept:  # what an interrupted fetch has brought is taken up
                shutil.rmtree(other, ignore_errors=True)
        if not kept:
            return
        try:
            edges = self._loaded(wanted, folder / kept)
        except FetchFailed as error:
            _log.warning("shadow release %d cannot be fetched: %s", wanted, error)
        except UpwellError as error:
            _log.warning("shadow release %d does not run: %s", wanted, error)
            self._shadow.begin(wanted, {}, str(error))
        else:
            _log.info("shadow release %d is running", wanted)
            self._shadow.begin(wanted, edges)

    def _loaded(self, wanted: int, folder: Path) -> dict[str, EdgeModel]:
        stored, _ = opened(Bundle(self._source.bring(wanted, folder)), self._parts)
        edges: dict[str, EdgeModel] = {}
        with self._store.trying(f"beside {stored.digest}"):
            for name, load in self._parts.load.items():
                found = stored.bundles.get(name)
                edge = None if found is None else load(found, is_new=True)
                if edge is not None:
                    edges[name] = edge
        if not edges:
            raise BundleRefused(Refusal.OTHER_MODEL, None, f"release {wanted} has no model that this device serves")
        return edges
