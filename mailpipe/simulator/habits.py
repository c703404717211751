"""What people, and the machines before their mailboxes, do with a delivered mail; decided by the address alone, as its fate is.

1. domains that say it: `opener.example.com` and `clicker.example.com` are people, `mpp.example.com` is Apple's Mail Privacy
   Protection, `proxy.example.com` Gmail's image proxy, `scanner.example.com` a security gateway that follows every link;
2. the shares `open_rate` and `click_rate` (people), by a hash of the address and the seed;
3. everybody else does nothing.

Their times are lifelike, minutes after the delivery for people; the events are written with the delivery all the same.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from mailpipe.simulator.options import Options

_BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:133.0) Gecko/20100101 Firefox/133.0"
_LINKS = ("https://shop.example.com/", "https://shop.example.com/sale", "https://shop.example.com/help")


class Visit(NamedTuple):
    """An open (no link) or a click, so many seconds after the delivery."""

    after_s: float
    agent: str
    ip: str
    link: str | None = None


_by_domain: dict[str, tuple[Visit, ...]] = {
    "opener.example.com": (Visit(400, _BROWSER, "203.0.113.9"),),
    "clicker.example.com": (Visit(400, _BROWSER, "203.0.113.9"), Visit(420, _BROWSER, "203.0.113.9", _LINKS[1])),
    "mpp.example.com": (Visit(90, "Mozilla/5.0", "192.0.2.80"),),
    "proxy.example.com": (Visit(300, f"{_BROWSER} (via ggpht.com GoogleImageProxy)", "192.0.2.90"),),
    "scanner.example.com": (
        Visit(1, _BROWSER, "192.0.2.70"),
        *(Visit(2 + number / 4, _BROWSER, "192.0.2.70", link) for number, link in enumerate(_LINKS)),
    ),
}


class Habits:
    """Decides who opens and who clicks."""

    def __init__(self, options: Options) -> None:
        self._key = (options.seed + 1).to_bytes(8, "big", signed=True)
        self._opens = options.open_rate
        self._clicks = options.click_rate

    def of(self, address: str) -> Iterator[Visit]:
        named = _by_domain.get(address.rpartition("@")[2])
        if named is not None:
            yield from named
        elif self._opens:
            digest = hashlib.blake2b(address.encode(), digest_size=8, key=self._key).digest()
            position = int.from_bytes(digest, "big") / 2**64
            if position < self._opens:
                yield Visit(60 + 3_600 * position, _BROWSER, "203.0.113.9")
            if position < self._clicks:
                yield Visit(90 + 3_600 * position, _BROWSER, "203.0.113.9", _LINKS[int(digest[0]) % len(_LINKS)])
