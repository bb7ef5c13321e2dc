#!/usr/bin/env python
"""Commands of the site and of the node; the node's run with settings of their own (no database, no Channels)."""

import os
import sys

NODE_COMMANDS = {"runnode", "fetchmodel"}


def main() -> None:
    settings = "meshweb.node_settings" if set(sys.argv[1:2]) & NODE_COMMANDS else "meshweb.settings"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
