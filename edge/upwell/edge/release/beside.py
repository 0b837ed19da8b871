"""Which release runs beside the one that is served: fetched, verified, loaded and tested like any other."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from upwell.edge.bundle.base import Bundle, BundleRefused, Refusal
from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.release.choice import KeptChoice
from upwell.edge.release.source import ReleaseSource
from upwell.edge.release.switching import RunsBeside, UnitParts, opened
from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.version_store import VersionStore
from upwell.shared.errors import UpwellError

FOLDER_NAME = "shadow"
_log = logging.getLogger(__name__)


class ShadowFollower:
    """Keeps what runs beside to what was chosen. `look` is called by one thread at a time."""

    def __init__(
        self, shadow: RunsBeside, source: ReleaseSource, store: VersionStore, parts: UnitParts, choice: KeptChoice
    ) -> None:
        self._shadow = shadow
        self._source = source
        self._store = store
        self._parts = parts
        self._choice = choice

    def look(self) -> None:
        """Run beside what was chosen. What cannot be had is tried again with the next look; what is no good is said."""
        wanted = self._choice.now.shadow or 0
        if wanted == self._shadow.release:
            return
        folder = self._store.folder.parent / FOLDER_NAME
        self._shadow.end()
        shutil.rmtree(folder, ignore_errors=True)
        if not wanted or wanted == self._store.state.current:
            return
        try:
            edges = self._loaded(wanted, folder)
        except FetchFailed as error:
            _log.warning("release %d cannot be fetched to run beside: %s", wanted, error)
        except UpwellError as error:
            _log.warning("release %d does not run beside: %s", wanted, error)
            self._shadow.begin(wanted, {}, str(error))
        else:
            _log.info("release %d runs beside what is served", wanted)
            self._shadow.begin(wanted, edges)

    def _loaded(self, wanted: int, folder: Path) -> dict[str, EdgeModel]:
        unit, _ = opened(Bundle(self._source.bring(wanted, folder)), self._parts)
        edges: dict[str, EdgeModel] = {}
        with self._store.trying(f"beside {unit.digest}"):
            for name, load in self._parts.load.items():
                found = unit.bundles.get(name)
                edge = None if found is None else load(found)
                if edge is not None:
                    edges[name] = edge
        if not edges:
            raise BundleRefused(Refusal.OTHER_MODEL, None, f"release {wanted} has no model that this device serves")
        return edges
