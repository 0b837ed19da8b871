"""The `upwell` program's first lines: until Ctrl-C can end it quietly, nothing heavy is imported.

An interrupt inside the import of a compiled package surfaces as an ImportError of that package, so until the command
runs the process simply ends.
"""

import os
import signal


def main() -> None:
    """Load the command line and run it."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from upwell.tools import cli

    cli.main()


if __name__ == "__main__":
    main()
