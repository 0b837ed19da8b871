"""Exit with 0 if the server in this container answers at $UPWELL_HEALTH, otherwise with 1; for HEALTHCHECK.

It asks over loopback only, where no certificate is needed to identify the server.
"""

import os
import ssl
import sys
import urllib.parse
import urllib.request

TIMEOUT_S = 4.0


def main() -> int:
    """The exit status."""
    url = os.environ["UPWELL_HEALTH"]
    if urllib.parse.urlsplit(url).hostname not in ("127.0.0.1", "::1"):
        print(f"{url} is not on loopback", file=sys.stderr)
        return 1
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
    try:
        direct.open(url, timeout=TIMEOUT_S).close()
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
