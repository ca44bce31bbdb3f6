"""The URLs that a request may have fetched: http and https, from public addresses.

A server fetches a request's URLs from inside its own network, whose other machines trust it
(SSRF). Here every host name is resolved, all its addresses are checked, and the connection goes to
a checked address, never to the name again, which might resolve to another address by then. Each
redirect is checked the same way. Proxies from the environment are ignored, because they would
resolve the name themselves.

A refusal is the exception ``Refused``.
"""

import contextlib
import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from ..._shared.refusals import Refused
from .limits import Expiry, Fetched, Limits, check_length, read_limited

REDIRECTS = 5
# Web servers reject longer URLs, and URL parsers take quadratic time.
_LONGEST = 2**13
# The longest wait in seconds between two chunks of a response.
_SILENCE = 15.0

_PORTS = {"http": 80, "https": 443}
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
# Characters that a URL may not contain unescaped: parsers disagree about each of them.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]")
# The part between the slashes: a name or an address, and a port.
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\[\]:@]+)(?::\d*)?")
# Some parsers read a host that ends like this as a number: 127.1, 0x7f000001, 017700000001.
_NUMBER = re.compile(r"(?:^|\.)(?:\d+|0[xX][0-9a-fA-F]*)\.?$")
# IANA's registries of special-purpose addresses, with multicast and what is reserved. Python's
# ``is_global`` has an older list in older versions.
_V4 = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24
    198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
"""
_SPECIAL_V4 = tuple(map(IPv4Network, _V4.split()))
# Public hosts have no addresses outside of this, except behind NAT64.
_UNICAST = IPv6Network("2000::/3")
# Inside of it: Teredo and other protocols (2001::/23), 6to4 (2002::/16), documentation.
_V6 = "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3ffe::/16 3fff::/20"
_SPECIAL_V6 = tuple(map(IPv6Network, _V6.split()))
_NAT64 = IPv6Network("64:ff9b::/96")


class Place(NamedTuple):
    """The parts of a URL: scheme, host, port, and path with query."""

    scheme: str
    host: str
    port: int
    path: str


class Policy(NamedTuple):
    """How names are resolved, and which addresses may be connected to."""

    resolve: Callable[..., Iterable[tuple[Any, ...]]]
    may_connect: Callable[[str], bool]


def is_public(address: str) -> bool:
    """Whether an address belongs to a host of the public internet."""
    try:
        ip = ip_address(address)
    except ValueError:  # not an address
        return False
    if isinstance(ip, IPv4Address):
        return not any(ip in special for special in _SPECIAL_V4)
    if getattr(ip, "scope_id", None):
        return False
    if ip in _NAT64:  # an IPv4 address, as a network without IPv4 reaches it
        return is_public(str(IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip in _UNICAST and not any(ip in special for special in _SPECIAL_V6)


def split_url(url: str) -> Place:
    """Split a URL into its parts, if all parsers split it the same way."""
    if len(url) > _LONGEST:
        raise Refused("the URL is too long")
    if _AMBIGUOUS.search(url):
        raise Refused("the URL has characters that must be escaped")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError:
        raise Refused("the URL is not well-formed") from None
    if parts.scheme not in _PORTS:
        raise Refused("only http and https URLs are fetched")
    if "@" in parts.netloc:
        raise Refused("the URL contains a user name")
    if not host or port == 0 or not _HOST.fullmatch(parts.netloc):
        raise Refused("the URL has no valid host")
    path = parts.path or "/"
    path = f"{path}?{parts.query}" if parts.query else path
    if not path.isascii():
        raise Refused("the URL has characters that must be escaped")
    return Place(parts.scheme, normalize_host(host), port or _PORTS[parts.scheme], path)


def normalize_host(host: str) -> str:
    """The host to resolve: in ASCII, and an address only if it is written in full."""
    if ":" in host:
        try:
            address = IPv6Address(host)
        except ValueError:
            raise Refused("the URL's host is not a valid address") from None
        return str(address)
    try:
        # This also converts digits and dots of other scripts to ASCII.
        host = host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise Refused("the URL's host is not a valid name") from None
    if _NUMBER.search(host):
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise Refused("the URL's host is an ambiguous number") from None
    if not re.fullmatch(r"[a-z0-9_.-]+", host):
        raise Refused("the URL's host is not a valid name")
    return host


def resolve_addresses(place: Place, policy: Policy) -> list[tuple[Any, ...]]:
    """Resolve a host to checked addresses, in the form of ``getaddrinfo``."""
    try:
        found = list(policy.resolve(place.host, place.port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        raise Refused("its host was not found") from None
    if not found:
        raise Refused("its host was not found")
    for *_, address in found:
        if not policy.may_connect(address[0]):
            private = f"{place.host} is {address[0]}"
            raise Refused("its host is not on the public internet", private)
    return found


def fetch(url: str, limits: Limits, expiry: Expiry, policy: Policy | None = None) -> Fetched:
    """Fetch a URL; each redirect is checked like the URL itself, and every failure is a refusal."""
    policy = policy or Policy(socket.getaddrinfo, is_public)
    for _ in range(REDIRECTS + 1):
        expiry.check()
        place = split_url(url)
        answer = send_request(place, resolve_addresses(place, policy), limits, expiry)
        if isinstance(answer, Fetched):
            return answer
        url = urljoin(url, answer)
    raise Refused(f"it was redirected more than {REDIRECTS} times")


def send_request(
    place: Place, addresses: list[tuple[Any, ...]], limits: Limits, expiry: Expiry
) -> Fetched | str:
    """Send one request to the first address that accepts: the file, or a redirect's location."""
    connection = http.client.HTTPConnection(place.host, place.port, timeout=_SILENCE)
    try:
        # A separate reference: the connection drops its socket if the server will close it.
        connected = connection.sock = connect(place, addresses, limits, expiry)
        expiry.on_expiry(lambda: shut_down(connected))
        headers = {"User-Agent": "mlx_patches", "Accept": "*/*", "Accept-Encoding": "identity"}
        connection.request("GET", place.path, headers=headers)
        with connection.getresponse() as response:
            location = response.getheader("Location")
            if response.status in _REDIRECTED and location:
                return location
            if response.status != http.client.OK:
                raise Refused(f"its server answered {response.status}")
            if response.getheader("Content-Encoding", "identity").lower() != "identity":
                raise Refused("its server sent compressed content")
            check_length(response.getheader("Content-Length"), limits)
            content = read_limited(response.read1, limits, expiry)
            if response.length:  # read1 raises no error for a missing end
                raise Refused("its server closed the connection before the end of the file")
            return Fetched(content, response.headers.get_content_type())
    except (OSError, http.client.HTTPException, ValueError) as error:
        expiry.check()
        raise Refused("its server does not answer", f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()


def connect(
    place: Place, addresses: list[tuple[Any, ...]], limits: Limits, expiry: Expiry
) -> socket.socket:
    """Connect to one of the addresses; TLS checks the certificate for the host's name."""
    problem: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        expiry.check()
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(min(_SILENCE, limits.seconds))
            made.connect(address)
            if place.scheme == "https":
                context = ssl.create_default_context()
                return context.wrap_socket(made, server_hostname=place.host)
            return made
        except OSError as error:
            problem = error
            made.close()
    raise problem or OSError("no address")


def shut_down(connected: socket.socket) -> None:
    """Shut a socket down, which ends another thread's wait for it."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
