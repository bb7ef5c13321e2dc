"""A small internet for tests: a public segment, and private networks behind routers with real NAT.

with Internet() as internet:
    home = internet.home()                   # a router: masquerades what goes out, drops what nobody inside asked for
    machine = home.machine()                 # a namespace behind it: Process(…, namespace=machine)
    reaches(machine, PUBLIC_ADDRESS, 8000)   # True where a server listens
    home.forget()                            # the router loses its table of connections
    home.unplug(); home.plug()               # its line is down, and up again
    home.change_address()                    # the provider gives it another public address

The public segment is `internet.public`, where a site is at home, with the address PUBLIC_ADDRESS.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack

from tests.lab.namespaces import Keeper, Namespace

PUBLIC_ADDRESS = "198.51.100.1"  # of a range that is kept for documentation: no machine has one of these
_ROUTER = """*filter
:INPUT ACCEPT
:FORWARD DROP
-A INPUT -i wan -j DROP
-A FORWARD -i lan -o lan -j ACCEPT
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -i lan -o wan -j ACCEPT
-A FORWARD -i wan -o lan -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
COMMIT
*nat
-A POSTROUTING -o wan -j MASQUERADE
COMMIT
"""


class Internet:
    def __init__(self) -> None:
        self._ends = ExitStack()
        self._homes: list[Home] = []

    def __enter__(self) -> Internet:
        self.keeper = Keeper()
        self._ends.callback(self.keeper.close)
        self.public = self.namespace("public")
        self.public.run("ip link set lo up")
        bridge(self.public, "segment", f"{PUBLIC_ADDRESS}/24")
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.close()

    def home(self) -> Home:
        self._homes.append(Home(self, number=len(self._homes) + 1))
        return self._homes[-1]

    def namespace(self, name: str) -> Namespace:
        made = Namespace(name)
        self._ends.callback(made.close)
        self.keeper.keep(made)
        return made


class Home:
    """A private network of its own behind one public address. Its addresses are 192.168.<number>.0/24."""

    def __init__(self, internet: Internet, number: int) -> None:
        self._internet, self.number = internet, number
        self._machines: list[Namespace] = []
        self._line = f"line{number}"  # the provider's end of the cable
        self.public_address = f"198.51.100.{10 * number}"
        self.router = internet.namespace(f"router {number}")
        self.router.run("ip link set lo up")
        join(internet.public, self._line, self.router, "wan", f"{self.public_address}/24", master="segment")
        bridge(self.router, "lan", f"192.168.{number}.1/24")
        self.router.set("ipv4.ip_forward", "1")
        self.router.run("iptables-restore", _ROUTER)
        self.picks_up(False)

    def machine(self) -> Namespace:
        number = len(self._machines) + 2
        made = self._internet.namespace(f"machine {number} of home {self.number}")
        made.run("ip link set lo up")
        join(self.router, f"port{number}", made, "eth0", f"192.168.{self.number}.{number}/24", master="lan")
        made.run(f"ip route add default via 192.168.{self.number}.1")
        self._machines.append(made)
        return made

    def address(self, machine: Namespace) -> str:
        return f"192.168.{self.number}.{self._machines.index(machine) + 2}"

    def picks_up(self, does: bool) -> None:
        """Whether the router takes packets of a connection it doesn't know, from inside, for the start of one."""
        self.router.set("netfilter.nf_conntrack_tcp_loose", str(int(does)))

    def forget(self) -> None:
        self.router.run("conntrack -F")

    def connections(self) -> list[str]:
        """What the router has in its table, TCP that is open."""
        return self.router.run("conntrack -L -p tcp --state ESTABLISHED").splitlines()

    def unplug(self) -> None:
        self._internet.public.run(f"ip link set {self._line} down")

    def plug(self) -> None:
        self._internet.public.run(f"ip link set {self._line} up")

    def change_address(self) -> None:
        """At once, as at the daily reconnection of a dial-up line."""
        old, last = self.public_address, int(self.public_address.rpartition(".")[2])
        self.public_address = f"198.51.100.{last + 1}"
        self.router.run(f"ip address del {old}/24 dev wan")
        self.router.run(f"ip address add {self.public_address}/24 dev wan")


def bridge(where: Namespace, name: str, address: str) -> None:
    where.run(f"ip link add name {name} type bridge")
    where.run(f"ip address add {address} dev {name}")
    where.run(f"ip link set {name} up")


def join(here: Namespace, port: str, there: Namespace, link: str, address: str, master: str) -> None:
    """A cable from a port of the bridge `master` to a machine."""
    here.run(f"ip link add name {port} type veth peer name {link} netns {there.path}")
    here.run(f"ip link set {port} master {master} up")
    there.run(f"ip address add {address} dev {link}")
    there.run(f"ip link set {link} up")


def reaches(source: Namespace, address: str, port: int, deadline_s: float = 0.5) -> bool:
    """Whether a TCP connection from there comes about. Without a fault it takes less than a millisecond."""
    with source.entered(), socket.socket() as probe:
        probe.settimeout(deadline_s)
        try:
            probe.connect((address, port))
        except OSError:
            return False
        return True
