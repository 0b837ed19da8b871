"""Object storage with S3's interface (moto) on a real socket with TLS, in a process of an environment of its own.

Run as a program it is that process: what carries no signature in its query is refused but for the test's own calls, and
a signature is judged by botocore, which moto does not do.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

PYTHON = Path(__file__).parent.parent / ".venv-s3/bin/python"
KEY_ID, SECRET, REGION = "AKIDUPWELLTEST", "not+a/secret", "eu-test-1"
OURS = "X-Test-Owner"


@dataclass
class ObjectStorage:
    """A running server."""

    address: str
    ca: Path

    def call(self, method: str, path: str) -> bytes:
        """What the owner of the storage may do."""
        from upwell.shared.config.security import ClientSecurity, TlsFiles
        from upwell.shared.oip.http.client.exchange import HttpsCaller

        caller = HttpsCaller(f"https://{self.address}", ClientSecurity(TlsFiles(ca=self.ca)))
        received = caller.call(method, path, headers={OURS: "1", "Authorization": "AWS owner:x"})
        assert received.status == 200, received
        return received.body

    def names(self, bucket: str) -> list[str]:
        """What lies in a bucket."""
        return re.findall(r"<Key>([^<]+)</Key>", self.call("GET", f"/{bucket}?list-type=2").decode())


@contextlib.contextmanager
def object_storage(folder: Path) -> Iterator[ObjectStorage]:
    """A server until the block ends. Skips the test where moto's environment is missing (`make .venv-s3/.done`),
    unless UPWELL_NEEDS_S3 is set."""
    import pytest

    from tests.faults.certificates import Authority

    if not PYTHON.exists():
        if os.environ.get("UPWELL_NEEDS_S3"):
            pytest.fail("there is no .venv-s3, and UPWELL_NEEDS_S3 is set")
        pytest.skip("there is no .venv-s3: make .venv-s3/.done")
    folder.mkdir(exist_ok=True)
    authority = Authority(folder)
    pair = authority.sign("storage")
    with subprocess.Popen(
        [PYTHON, __file__, pair.cert, pair.key], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port.isdigit(), "the storage did not start"
            yield ObjectStorage(f"127.0.0.1:{port}", authority.ca)
        finally:
            process.terminate()


WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def judged(app: WsgiApp) -> WsgiApp:
    """`app` behind S3's checks of an address that was signed."""
    import hmac
    from datetime import datetime, timezone

    from botocore.auth import S3SigV4QueryAuth  # type: ignore[import-not-found]  # of the environment with moto
    from botocore.awsrequest import AWSRequest  # type: ignore[import-not-found]
    from botocore.credentials import Credentials  # type: ignore[import-not-found]

    def problem(environ: dict[str, Any]) -> str:
        query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
        signature, stamp = query.pop("X-Amz-Signature", ""), query.get("X-Amz-Date", "")
        if not signature:
            return "" if environ.get("HTTP_X_TEST_OWNER") else "AccessDenied"
        at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        if time.time() > at.timestamp() + float(query["X-Amz-Expires"]):
            return "AccessDenied"
        sent = {"host": environ["HTTP_HOST"], "content-length": environ.get("CONTENT_LENGTH", "")}
        headers = {name: sent[name] for name in query["X-Amz-SignedHeaders"].split(";")}
        asked = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in query.items())
        url = f"https://{environ['HTTP_HOST']}{quote(environ['PATH_INFO'])}?{asked}"
        request = AWSRequest(environ["REQUEST_METHOD"], url, headers)
        request.context["timestamp"] = stamp
        auth = S3SigV4QueryAuth(Credentials(KEY_ID, SECRET), "s3", REGION)
        expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        if query["X-Amz-Credential"].split("/")[0] != KEY_ID:
            return "InvalidAccessKeyId"
        return "" if hmac.compare_digest(expected, signature) else "SignatureDoesNotMatch"

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        code = problem(environ)
        if not code:
            return app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{code}</Code><StringToSign>secret</StringToSign></Error>".encode()
        start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def main(cert: str, key: str) -> None:
    """Serve until the process is ended; the port is said on standard output."""
    from moto.server import DomainDispatcherApplication, create_backend_app  # type: ignore[import-not-found]
    from werkzeug.serving import make_server  # type: ignore[import-not-found]

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, judged(app), threaded=True, ssl_context=(cert, key))
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.path[:] = [one for one in sys.path if one != str(Path(__file__).parent)]
    main(*sys.argv[1:])
