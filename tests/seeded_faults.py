"""Faults that the quick tests must catch: each a small edit that makes the program wrong, in its own way.

`tests.mutation_check` applies them one by one. `old` must be in its file exactly once; where the code has changed so
that it is not, write the entry anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

UNIT, PROPERTY = "tests/unit", "tests/property"

TESTS: Mapping[str, Sequence[str]] = {
    "flow": (
        f"{UNIT}/routing/flow",
        f"{UNIT}/routing/simulation",
        f"{UNIT}/edge/test_cloud_attempt.py",
        f"{UNIT}/edge/test_request_flow.py",
        f"{UNIT}/edge/test_answer.py",
        f"{PROPERTY}/test_request_flow.py",
        f"{UNIT}/edge/test_agent_dataplane.py",
        "tests/integration/agent/test_agent_and_simulator.py",
    ),
    "router": (
        f"{UNIT}/routing",
        *(f"{PROPERTY}/test_{name}.py" for name in ("routing", "edge_shortcut", "dropped_denies")),
    ),
    "codec": (
        *(f"{UNIT}/oip/test_{name}.py" for name in ("converters", "wire", "tensor_contents", "message_cache")),
        f"{PROPERTY}/test_converters.py",
        f"{PROPERTY}/test_tensors.py",
    ),
    "batching": (
        *(
            f"{UNIT}/cloud/test_{name}.py"
            for name in ("batch_choice", "fair_shares", "run_times", "model_queue", "buckets", "batcher")
        ),
        *(f"{UNIT}/cloud/test_{name}.py" for name in ("batches_filled_up", "batching_simulated", "cloud_service")),
        f"{PROPERTY}/test_buckets.py",
    ),
    "spool": (f"{UNIT}/edge/spool", f"{UNIT}/edge/test_spool_sender.py", "tests/integration/spool"),
    "bundle": (
        f"{UNIT}/edge/bundle",
        f"{UNIT}/edge/fetch",
        f"{UNIT}/edge/test_golden.py",
        f"{UNIT}/edge/test_output_tolerances.py",
    ),
    "updates": (
        *(f"{UNIT}/edge/test_{name}.py" for name in ("store_losses", "store", "updating", "version_comparison")),
        f"{UNIT}/edge/fetch",
    ),
    "release": (f"{UNIT}/edge/test_release_parts.py", "tests/faults/test_release_update.py"),
    "partition": (f"{PROPERTY}/partition", f"{UNIT}/partition/test_cut_codec.py"),
}
"""The tests that are directly concerned, by what a fault is in; what finds most comes first."""


@dataclass(frozen=True)
class Fault:
    """One edit of one file, whose path is relative to the root."""

    area: str
    file: str
    old: str
    new: str


def _of(area: str, folder: str, *edits: tuple[str, str, str]) -> list[Fault]:
    return [Fault(area, f"{folder}/{file}", old, new) for file, old, new in edits]


FAULTS: Sequence[Fault] = (
    *_of(
        "flow",
        "shared/upwell/shared/routing/flow",
        ("request_flow.py", "if ahead != self.signals.edge_ahead:", "if ahead < 0:"),
        (
            "request_flow.py",
            "            self._router.give_back(decision)\n            self.signals",
            "            self.signals",
        ),
        (
            "request_flow.py",
            "if decision.refusal:\n            raise self._away(error)",
            "if not decision.refusal:\n            raise self._away(error)",
        ),
        (
            "request_flow.py",
            'if objective != "accuracy" and self.edge_covers(attempt.rows):',
            "if self.edge_covers(attempt.rows):",
        ),
        ("request_flow.py", 'if any(action != "error" for', 'if all(action != "error" for'),
        ("request_flow.py", "rows = without(without(rest, first.kept_rows), first.up_rows)", "rows = rest"),
        (
            "request_flow.py",
            "Wait(min(wake_s, *(one.hedge_at_s for one in waiting)) if waiting else wake_s)",
            "Wait(wake_s)",
        ),
        ("request_flow.py", "return Refused(text, retry_after_s=miss.retry_after_s)", "return Refused(text)"),
        ("request_flow.py", "rows = self.rows if is_last_run else rest", "rows = rest"),
        ("request_flow.py", "            if exits:  # the tail needs the head's output\n", "            if False:\n"),
        ("request_flow.py", "        finally:\n            yield Release()", "        finally:\n            pass"),
        ("request_flow.py", "                yield from attempt.drop()", "                pass"),
        (
            "cloud_attempt.py",
            "yield Send(self.number, call, known, apart_from)",
            "yield Send(self.number, call, router.state)",
        ),
        ("cloud_attempt.py", "        self.hedge_at_s = math.inf\n        self._may_retry = False\n", "        pass\n"),
        ("cloud_attempt.py", "self._may_retry = not decision.probes", "self._may_retry = True"),
        ("cloud_attempt.py", "wanted and self._may_retry and left_s", "wanted and left_s"),
        ("cloud_attempt.py", " and miss.reason not in HOPELESS", ""),
        (
            "cloud_attempt.py",
            "if self.is_queued or self.elapsed_s < self.decision.predicted_sure_s:",
            "if self.is_queued:",
        ),
        ("cloud_attempt.py", "self._send(str(next(_names)), first)", "self._send(str(next(_names)))"),
        (
            "request_flow.py",
            "self._clock.now_s + decision.predicted_edge_s > decision.fallback_start_s",
            "self._clock.now_s > decision.fallback_start_s",
        ),
        (
            "request_flow.py",
            "if not isinstance(error, ModelFailed | Refused | DeadlineExceeded):",
            "if not isinstance(error, ModelFailed):",
        ),
        (
            "request_flow.py",
            "                self._router.give_back(decision)\n                return (yield from self._send_otherwise",
            "                return (yield from self._send_otherwise",
        ),
        (
            "request_flow.py",
            "BaseException:\n                self._router.give_back(decision)\n                raise",
            "BaseException:\n                raise",
        ),
        ("request_flow.py", "self._router.ran(split_route.key,", "self._router.ran(model,"),
        (
            "request_flow.py",
            "self._router.ran(self.signals.request_facts.model, len(rows),",
            "self._router.ran(self.signals.request_facts.model, len(self.rows),",
        ),
    ),
    *_of(
        "flow",
        "edge/upwell/edge/request",
        ("answer.py", "if self.route is Route.MIXED:", "if self.route is Route.CLOUD:"),
        (
            "answer.py",
            "for name, seconds in times.items() if seconds is not None",
            "for name, seconds in times.items() if seconds",
        ),
        ("answer.py", "facts.update({key: name for key, name in names.items() if name})", "facts.update(names)"),
    ),
    *_of(
        "router",
        "shared/upwell/shared/routing",
        ("decide/decisions.py", "if max(sizes) > above_bytes:", "if max(sizes) >= above_bytes:"),
        ("decide/decisions.py", "return (), verdict.denial or Reason.RULE", "return (), Reason.RULE"),
        ("decide/decisions.py", "for row in rows if sizes[row] > above_bytes", "for row in rows"),
        ("decide/offload.py", "        return verdict.denial\n", "        pass\n"),
        ("decide/offload.py", "return None if case.signals.may_offload else Reason.NO_CLOUD", "return None"),
        ("decide/offload.py", "available_s <= 0.0 or needed_s > available_s", "needed_s > available_s"),
        (
            "decide/offload.py",
            "settings.energy.inference_j * rows * (1.0 - share)",
            "settings.energy.inference_j * (1.0 - share)",
        ),
        ("decide/offload.py", "state.backoff_until[times_key] - case.now_s", "state.backoff_until[times_key]"),
        ("decide/edge_shortcut.py", "            or signals.split_routes\n", ""),
        (
            "decide/state_updates.py",
            "server_s = min(answer.server_s or 0.0, answer.total_s)",
            "server_s = answer.server_s or 0.0",
        ),
        ("decide/state_updates.py", "if failure.reason in CALLERS_FAULTS:", "if failure.reason in ():"),
        (
            "decide/state_updates.py",
            "now_s + min(outcome.retry_after_s, LONGEST_HOLD_S)",
            "now_s + outcome.retry_after_s",
        ),
        ("estimators/circuit_breaker.py", "failures < self.FAILURES - 1e-6", "failures < self.FAILURES + 1e-6"),
        ("estimators/circuit_breaker.py", "return now_s - self.probe_since_s >= self.PROBE_TIMEOUT_S", "return True"),
        (
            "estimators/budget_ledger.py",
            ".spent + draw.amount <= draw.limit.amount",
            ".spent + draw.amount < draw.limit.amount",
        ),
        (
            "estimators/budget_ledger.py",
            "spent = max(0.0, window.spent + draw.amount)",
            "spent = window.spent + draw.amount",
        ),
        ("estimators/budget_ledger.py", "day=min(billing_day, last.day)", "day=min(billing_day, 28)"),
        ("decide/edge_time.py", "queue_s = signals.edge_ahead * (window.lately_s + prepare_s)", "queue_s = 0.0"),
        (
            "decide/offload.py",
            "slower_s = size_bytes * (s_per_byte - link.inverse_bandwidth_s_per_byte)",
            "slower_s = 0.0",
        ),
        (
            "decide/offload.py",
            "state.replies.get(model, 0.0) * rows) * fading",
            "state.replies.get(model, 0.0) * rows)",
        ),
        ("decide/offload.py", "link.error(confidence) ** fading", "link.error(confidence)"),
        ("decide/offload.py", "within_s, link.rtt_s * link.fading(now_s))", "within_s, link.rtt_s)"),
        ("decide/send_turn.py", "left_s, now_s) != ():", "left_s, now_s) is None:"),
        ("decide/send_turn.py", "    state = state.over(message.interface)\n", ""),
        (
            "decide/state_updates.py",
            "        link = link.refuted(now_s)\n",
            "        pass\n",
        ),
        (
            "estimators/uplink_backlog.py",
            "return replace(self.without(call), left_s=now_s)",
            "return self.without(call)",
        ),
        (
            "estimators/circuit_breaker.py",
            "(waited_s, size_bytes) if self.is_open else (patience_s, least_bytes)",
            "(waited_s, size_bytes)",
        ),
        (
            "decide/state_updates.py",
            "weight = failure.chance if failure.waited_s < math.inf else 1.0",
            "weight = 1.0",
        ),
        ("decide/state_updates.py", "if outcome.probes or not is_known:", "if not is_known:"),
        ("decide/offload.py", "more_s += route.tail_s * rows", "more_s += route.tail_s"),
        ("decide/offload.py", "Reason.BREAKER_OPEN if is_poor_probe else obstacle", "obstacle"),
        ("estimators/circuit_breaker.py", "max(self.LEAST_WEIGHT, weight)", "weight"),
        ("estimators/uplink_rate.py", "max(self.HABIT, 1.0 / (self.count + 1))", "self.HABIT"),
        ("estimators/link_estimate.py", "error = max(error, self.error(0.9))", "pass"),
        ("estimators/uplink_bid_price.py", " + 0.5 * (one.score == score)", ""),
        ("estimators/link_estimate.py", "confidence * (count + 1)", "confidence * count"),
        ("estimators/link_estimate.py", "oldest = bounds[0] if len(bounds) >= self.SAMPLES // 2 else 0", "oldest = 0"),
        (
            "estimators/offload_share.py",
            "alpha = min(1.0 + _SLACK, max(-_SLACK, alpha))",
            "alpha = min(1.0 + _SLACK, alpha)",
        ),
        (
            "policy/compiled_policy.py",
            "forbids = rule.forbids and not egress_rule",
            "forbids = rule.forbids and deciding is None",
        ),
        (
            "policy/dropped_denies.py",
            "new.match.hours is not None and not (same_zone and",
            "new.match.hours is not None and not (",
        ),
    ),
    *_of(
        "codec",
        "shared/upwell/shared/oip/codec",
        ("tensor_contents.py", "if min(shape, default=0) < 0:", "if min(shape, default=0) < -1:"),
        ("tensor_contents.py", 'if datatype == "BYTES" and elements > MAX_BYTES_ELEMENTS:', "if elements < 0:"),
        (
            "tensor_contents.py",
            "if extent * numpy_dtype(datatype).itemsize > _LARGEST_BYTES:",
            "if extent > _LARGEST_BYTES:",
        ),
        ("tensor_contents.py", "if len(data) != expected_bytes:", "if len(data) < expected_bytes:"),
        ("tensor_contents.py", "if start + size > len(data):", "if start > len(data):"),
        ("tensor_contents.py", "    if at != len(data):", "    if at > len(data):"),
        ("tensor_contents.py", "if low < limits.min or high > limits.max:", "if high > limits.max:"),
        ("tensor_contents.py", "(array if array.flags.aligned else array.copy())", "array"),
        ("tensor_contents.py", "if length > 0x7F:", "if length > 0xFF:"),
        ("tensor_contents.py", "kept.append(data[kept_from:start])", "kept.append(data[kept_from:at])"),
        ("converters.py", "is_split=split is not None", "is_split=True"),
        ("converters.py", "{FINAL: True, STATUS: status}", "{FINAL: True}"),
        ("converters.py", "if end - start > MAX_ID_CHARACTERS:", "if end - start < 0:"),
        ("converters.py", "if data[start:end] != known:", "if len(data[start:end]) != len(known):"),
        ("tensor_messages.py", "elif -(2**63) <= value < 2**63:", "elif -(2**63) <= value <= 2**63:"),
        ("tensor_contents.py", "        if parameters.get(key):", "        if key in parameters:"),
        (
            "tensor_contents.py",
            "size = _LENGTH.unpack_from(data, at)[0] if start <= len(data) else 0",
            "size = _LENGTH.unpack_from(data, at)[0] if start < len(data) else 0",
        ),
        ("tensor_contents.py", "array.ravel().tolist()", 'array.ravel("K").tolist()'),
        ("converters.py", "    refuse_sequence(parameters)\n    return", "    return"),
        ("converters.py", "        if len(_frames) >= _REMEMBERED:\n            _frames.clear()\n", ""),
        (
            "converters.py",
            'is_plain = datatype != "BYTES" and dtype == DTYPES[datatype]',
            'is_plain = datatype != "BYTES"',
        ),
    ),
    *_of(
        "batching",
        "cloud/upwell/cloud/batching",
        (
            "model_queue.py",
            "return 0 if now_s - queued.since_s >= PATIENCE_S else queued.priority",
            "return queued.priority",
        ),
        (
            "model_queue.py",
            "self._clients[crowd] < self._clients[client] + 2",
            "self._clients[crowd] < self._clients[client] + 1",
        ),
        ("model_queue.py", "min(queued.deadline_s, queued.since_s + PATIENCE_S)", "queued.deadline_s"),
        ("model_queue.py", " and one.rows_left == one.rows)", ")"),
        ("device_scheduler.py", "            queued.since_s = now_s\n", ""),
        ("device_scheduler.py", "one.queue.turn_s(", "one.queue.needed_s("),
        ("model_queue.py", "runs = -(-rows // largest)", "runs = rows // largest"),
        ("model_queue.py", "if left_s < wait_s + needed_s + ", "if left_s < needed_s + "),
        ("batch_choice.py", "if one.rows <= lost and", "if one.rows < lost and"),
        ("batch_choice.py", "if rate > best_rate and batch[:must] == mates[:must]:", "if rate > best_rate:"),
        ("batch_choice.py", "if one.group == group", "if one.rank"),
        ("fair_shares.py", "+ max(slack_s, _EQUAL_S)", "+ _EQUAL_S"),
        ("fair_shares.py", "max(self._account_s(claimant), self._clock_s)", "self._account_s(claimant)"),
        ("batcher.py", "queued.error = self._hopeless(queued, queued.rows)", "queued.error = None"),
        ("batcher.py", "        check_rows(outputs, size)\n", ""),
        ("device_scheduler.py", "hopeless(call, 1, now_s, start_s)", "hopeless(call, 1, now_s, now_s)"),
        ("model_queue.py", "return value or DEFAULT_PRIORITY", "return value"),
        ("model_queue.py", "        if left_s <= 0:\n", "        if left_s < 0:\n"),
        ("model_queue.py", "        wake([queued])\n", ""),
        (
            "model_queue.py",
            "        if not self._clients[client]:\n            self._shares.join(client)\n",
            "        self._shares.join(client)\n",
        ),
        (
            "model_queue.py",
            "batch, self._waiting = self._waiting, []\n            self._forget(batch)",
            "batch, self._waiting = self._waiting, []",
        ),
        ("model_queue.py", "runs * run_s / self.instances", "runs * run_s"),
    ),
    *_of(
        "spool",
        "edge/upwell/edge/spool",
        (
            "spool_store.py",
            "if item.size_bytes > self._limits.max_bytes:",
            "if item.size_bytes >= self._limits.max_bytes:",
        ),
        ("spool_store.py", '"dropped_full", "kind, kept_s, rowid"', '"dropped_full", "kept_s, rowid"'),
        ("spool_store.py", "WHERE id = ? AND state != 'done'", "WHERE id = ?"),
        ("spool_store.py", "if found and total_bytes > max_bytes:", "if total_bytes > max_bytes:"),
        ("spool_store.py", "WHERE sequence > ? ORDER BY", "WHERE sequence >= ? ORDER BY"),
        ("spool.py", "if verdict.denial is not None:", 'if verdict.denial is not None and case.kind == "audit":'),
        (
            "spool_drainer.py",
            "still_allowed(item.model, item.tags, request):",
            "still_allowed(item.model, item.tags, request) and False:",
        ),
        (
            "spool_drainer.py",
            "item.attempts + (self._passed > before.passed)",
            "item.attempts + (self._passed >= before.passed)",
        ),
        ("spool_drainer.py", "if attempts >= self._limits.attempts:", "if attempts > self._limits.attempts:"),
        ("spool_drainer.py", 'if response.id not in ("", request.id):', "if response.id and not request.id:"),
        ("result_delivery.py", "known if known <= store.last_sequence() else 0", "known"),
        (
            "spool_store.py",
            "        self._connection.execute(\"UPDATE bodies SET request = x'' WHERE id = ?\", (id,))\n",
            "",
        ),
        ("spool_store.py", "self._bytes(_WAITING) - row[1], self", "self._bytes(_WAITING), self"),
        (
            "spool_store.py",
            "_make_room(_RESULTS, self._limits.max_result_bytes",
            "_make_room(_RESULTS, self._limits.max_bytes",
        ),
        (
            "spool_store.py",
            "        if gone.rowcount:\n            self._held_bytes = {}\n            self",
            "        if gone.rowcount:\n            self",
        ),
        (
            "spool_store.py",
            "            self._held_bytes, self.counted = {}, Counter()\n            if",
            "            self.counted = Counter()\n            if",
        ),
        (
            "database_keeper.py",
            "if len(group) > 1 and self._store is not None",
            "if len(group) > 99 and self._store is not None",
        ),
    ),
    *_of(
        "bundle",
        "edge/upwell/edge/bundle",
        ("open_bundle.py", "version <= newer_than", "version < newer_than"),
        ("open_bundle.py", "if digests[path] != entry.sha256:", "if len(digests[path]) != len(entry.sha256):"),
        ("open_bundle.py", "        _check_signed(folder, signed, digests)\n", "        pass\n"),
        ("open_bundle.py", "if path not in listed:", "if path not in listed and not sizes[path]:"),
        ("archive.py", "if total_bytes > MAX_BYTES:", "if header.size > MAX_BYTES:"),
        ("archive.py", "if next_header > archive_bytes:", "if archive.tell() > archive_bytes:"),
        ("archive.py", "    _check_end(path, archive)\n", ""),
        ("archive.py", "(tarfile.REGTYPE, tarfile.DIRTYPE)", "(tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)"),
        ("bundle_signature.py", "if len(digests) < len(read.resources):", "if not digests:"),
        ("bundle.py", 'part.partition(".")[0].lower() in _DEVICES', "part.lower() in _DEVICES"),
        ("bundle.py", "before = seen.get(prefix.lower())", "before = seen.get(prefix)"),
        ("bundle.py", "if len(data) > most_bytes:", "if len(data) > most_bytes + 1:"),
        ("output_tolerances.py", "matched_boxes(mine, theirs)", "list(zip(range(len(mine)), range(len(theirs))))"),
        ("bundle_calibrations.py", "if len({one.key() for one in found}) < len(found):", "if not found:"),
        ("source_address.py", "if user is not None:", "if user:"),
        ("open_bundle.py", "for path in {*signed.digests, *digests}", "for path in digests"),
        (
            "open_bundle.py",
            "return open_bundle(folder, trust, newer_than, advance)\n    except",
            "return open_bundle(folder, trust, None, advance)\n    except",
        ),
        ("open_bundle.py", ' or (path.suffix == ".yaml" and models.intersection(files))', ""),
        ("open_bundle.py", "os.path.normpath(base / name)", "os.path.normpath(folder / name)"),
        (
            "archive.py",
            "    while chunk := archive.read(CHUNK_BYTES):\n        if any",
            "    if chunk := archive.read(CHUNK_BYTES):\n        if any",
        ),
        ("archive.py", " or sum(sizes.values()) > MAX_BYTES:", ":"),
        ("bundle_signature.py", ", key=lambda item: PurePosixPath(item[0])", ""),
        ("manifest.py", "if manifest_bytes(manifest) != data:", "if len(manifest_bytes(manifest)) != len(data):"),
        ("bundle.py", "digest.update(chunk)", "digest.update(chunk[:65536])"),
        ("bundle.py", "is_folder = entry.is_dir(follow_symlinks=False)", "is_folder = entry.is_dir()"),
        ("signing_keys.py", '"secp384r1": hashes.SHA384', '"secp384r1": hashes.SHA256'),
        ("golden.py", "if places[-1] != len(data) or", "if places[-1] > len(data) or"),
    ),
    *_of(
        "updates",
        "edge/upwell/edge/updates",
        (
            "version_state.py",
            "self.current > state.current and self.current not in state.blocklist",
            "self.current > state.current",
        ),
        ("version_state.py", "bool(versions[1] or (kept and factory is not None))", "bool(versions[1])"),
        ("version_store.py", "if not state.is_on_trial or state.tries < given_up:", "if not state.is_on_trial:"),
        ("version_store.py", "            sync_tree(draft)\n", ""),
        ("version_store.py", "if renew and signature and signature !=", "if signature and signature !="),
        (
            "sources/partial_archive.py",
            "whole_bytes - self._size_bytes + whole_bytes,",
            "whole_bytes - self._size_bytes,",
        ),
        ("sources/partial_archive.py", "        os.fsync(self._file.fileno())\n", ""),
        ("sources/web_source.py", 'sent.pop("Authorization", None)', "pass"),
        ("sources/folder_source.py", "file.seek(archive.size_bytes)", "file.seek(0)"),
        (
            "model_versions/rollback_by_hand.py",
            "if target.version < store.state.floor and",
            "if target.version <= store.state.floor and",
        ),
        ("model_versions/version_comparison.py", " or self._asked >= MOST_AUDITS", ""),
    ),
    *_of(
        "release",
        "edge/upwell/edge/updates/releases",
        ("tuf_client.py", "            target.verify_length_and_hashes(data)\n", "            pass\n"),
        (
            "tuf_client.py",
            '(signed.hashes.get("sha256"), signed.length) != (payload.sha256, payload.size_bytes)',
            'signed.hashes.get("sha256") != payload.sha256',
        ),
        ("release_source.py", "if sequence < state.floor or sequence < state.current:", "if sequence < state.floor:"),
        ("device_floor.py", "real = path.resolve()", "real = path"),
        (
            "release_document.py",
            "source.startswith(SCHEME) and bool(Reference.parse(source).digest)",
            "source.startswith(SCHEME)",
        ),
        ("repository_transport.py", "skip_bytes = max(0, skip_bytes - len(data))", "skip_bytes = 0"),
    ),
    *_of(
        "partition",
        "shared/upwell/shared/partition",
        ("mincut.py", "_PASS_BITS = 29", "_PASS_BITS = 32"),
        ("mincut.py", "            value += more << shift\n", "            value += more\n"),
        ("branch_and_bound.py", "return there == 1 if saving.saves_s > 0 else there == 2", "return there == 2"),
        ("split/onnx_halves.py", "low, high = min(low, 0.0), max(high, 0.0)", "pass"),
    ),
)
