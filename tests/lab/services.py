"""The system programs the tests use: which are missing, and the Debian packages that bring them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {  # program: Debian package
    "nginx": "nginx-light",  # TLS in front of the site, as in a deployment
    "redis-server": "redis-server",  # between several processes of one site
    "postgres": "postgresql",  # the database they share
    "ip": "iproute2",  # network namespaces, links, addresses
    "iptables-restore": "iptables",  # routers with NAT
    "conntrack": "conntrack",  # what such a router remembers
    "faketime": "faketime",  # clocks that are off
    "chromium": "chromium",  # the pages, as a browser shows them
    "npm": "npm",  # brings axe-core, which knows what a page makes hard for whom
}
BESIDE_THE_PATH = ("/usr/sbin", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin"))))


def missing() -> dict[str, str]:
    return {program: package for program, package in PACKAGES.items() if find(program) is None}


def find(program: str) -> str | None:
    """Where it is. A user's PATH may lack the administrator's programs."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *BESIDE_THE_PATH]))


def install(packages: list[str]) -> int:
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*sudo, "apt-get", "update", "-qq"], check=True, env=environment)
    return subprocess.run(
        [*sudo, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=environment
    ).returncode


def main(arguments: list[str]) -> int:
    lacking = missing()
    if not lacking:
        return 0
    if "--install" in arguments:
        return install(sorted(lacking.values()))
    print(f"Missing: {', '.join(lacking)}. Install with: make services", file=sys.stderr)
    print(f"(that is: apt-get install {' '.join(sorted(lacking.values()))})", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
