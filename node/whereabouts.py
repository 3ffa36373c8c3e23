"""What a node tells of where it is, before it knows its run and after.

A private address must never get into the directory of a public run. Whether a run is public its manifest tells, and that comes
from peers that answer only whom they find in the directory: until then an invite is judged by its own addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.config import NodeSettings
from node.ports import UnusableError
from node.reach import announced, host_of, is_mine, is_private

BAD_USE, CANNOT_BE_REACHED = 2, 3


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """`address`: HOST:PORT of the gRPC server, given or as this machine sees it. `is_near`: private addresses may be told."""

    settings: NodeSettings
    address: str
    is_near: bool

    @classmethod
    def guess(cls, settings: NodeSettings, bound: str, towards: tuple[str, ...], is_local: bool = False) -> Whereabouts:
        """`bound`: where the server listens; `towards`: peers' addresses, of an invite, say. `is_local`: as in the manifest."""
        address = settings.announce or announced(bound, towards)
        is_here = bool(towards) and all(is_private(host_of(text)) and is_mine(host_of(text)) for text in towards)
        return cls(settings, address, settings.lan or is_local or is_here)

    def in_run(self, is_local: bool) -> Whereabouts:
        """Once the manifest is known. Raises `UnusableError(2)` for a private address that the user wants to be announced."""
        found = Whereabouts(self.settings, self.address, self.settings.lan or is_local)
        for option, given in (("--announce", self.settings.announce), ("--dht-announce", self.settings.dht_announce)):
            if given and not found._may_tell(given):
                raise UnusableError(
                    BAD_USE,
                    f"{option} {given}: {host_of(given)} is a private address and the run is public; name an address that"
                    " everybody reaches, or give --lan if all of its nodes are in one network",
                )
        return found

    @property
    def told(self) -> str:
        """HOST:PORT for the lease; '' where only peers can say what it is."""
        return self.address if self._may_tell(self.address) else ""

    def dht(self, grpc: str) -> str:
        """What the directory announces, a multiaddress or a host; '' = nothing yet. `grpc`: HOST:PORT, '' if not known."""
        given = self.settings.dht_announce
        if given:
            return given if self._may_tell(given) else ""
        return host_of(grpc) if grpc else ""

    def http(self, address: str) -> str:
        """HOST:PORT of the HTTP server for the lease; '' where nobody else could use it."""
        return address if self._may_tell(address) else ""

    def for_founder(self, dht_port: int) -> str:
        """HOST:PORT for the lease of whoever has no peer to ask. Raises `UnusableError(3)` where that is a private one."""
        directory = f"TCP port {dht_port} (directory)" if dht_port else "the directory's port (--dht-port)"
        if not self.told:
            raise UnusableError(
                CANNOT_BE_REACHED,
                f"this machine knows only the private address {self.address} of itself, and the run is public: give --announce"
                f" HOST:PORT that everybody reaches, and let it and {directory} through, on a router too;"
                " or give --lan if all nodes are in one network, or `local: true` in the manifest if all are on this machine",
            )
        return self.told

    def _may_tell(self, address: str) -> bool:
        return self.is_near or not is_private(host_of(address))
