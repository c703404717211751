"""Every setting of mailpipe, read once from the environment (`MAILPIPE_*`) into one frozen object.

This is the only reader of the environment. A setting has a safe default and a sentence about its consequence; what
belongs to one campaign is not a setting but a field of its file (`campaign.py`).
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from mailpipe import lane
from mailpipe.errors import SettingsError
from mailpipe.lane import Lane, LaneName
from mailpipe.provider import FAMILIES

_CAP = re.compile(r"(\d{1,4})\s*/\s*(\d{1,3})\s*d?")
DEFAULT_CONSENT = """\
EXISTS (SELECT FROM users u
        WHERE u.user_id = CAST(person.user_id AS bigint) AND u.marketing_opt_in AND u.is_active)"""


@dataclass(frozen=True)
class Cap:
    """At most `mails` in any `days` days."""

    mails: int
    days: int


@dataclass(frozen=True)
class Settings:
    """What the environment says. Times are in seconds, rates in recipients per second."""

    home: Path
    """The checkout with `assets/` and `workspace.yaml` (MAILPIPE_HOME; else the nearest one above the current folder)."""
    var: Path
    """Where local data lives: the embedded server, journals, Dagster's files (MAILPIPE_VAR, default HOME/var)."""
    database_url: str | None = field(default=None, repr=False)
    """The team's own PostgreSQL 15-18 (MAILPIPE_DATABASE_URL). Empty: the embedded server is started on demand."""
    dagster_database: str = "dagster"
    """The database of Dagster's storage on the same server (MAILPIPE_DAGSTER_DATABASE)."""
    ses_endpoint: str | None = None
    """Where SES answers (MAILPIPE_SES_ENDPOINT). Empty: AWS with an own database, else the local stand-in."""
    ses_region: str = "eu-west-1"
    """The SES region (MAILPIPE_SES_REGION, else AWS_REGION). Quotas are per account and region."""
    configuration_set: str = "mailpipe-marketing"
    """The SES configuration set of campaigns (MAILPIPE_CONFIGURATION_SET): its switch stops marketing alone."""
    transactional_configuration_set: str = "mailpipe-transactional"
    """The SES configuration set of messages (MAILPIPE_TRANSACTIONAL_CONFIGURATION_SET). Never that of campaigns: their bounces and
    complaints must not stop a login code."""
    transactional_sender: str | None = None
    """From of messages that name none (MAILPIPE_TRANSACTIONAL_SENDER), as `Shop <login@notify.example.com>`. Its domain must be no
    campaign's. Must be set when mail leaves for real."""
    lanes: Mapping[LaneName, Lane] = field(default_factory=lambda: lane.DEFAULTS)
    """How messages are worked (MAILPIPE_LANE_CRITICAL, _HIGH, _NORMAL, _LOW), as `unknown=hold validity=300 workers=10-40`. `lane`
    has the fields and their defaults."""
    rate: float | None = None
    """Ceiling for everything together (MAILPIPE_RATE). The account's own limit applies if it is smaller."""
    call_rate: float | None = None
    """Calls per second (MAILPIPE_CALL_RATE). Empty: no limit until SES refuses; then it is found by trial."""
    marketing_share: float = 0.5
    """The part of the account's 24-hour quota that campaigns may use (MAILPIPE_MARKETING_SHARE, above 0 to 1): the rest is kept for
    messages, so that a campaign cannot use up what a login code needs."""
    reserve_share: float = 0.05
    """The part of the account's rate that is kept free for critical and high messages while `mailpipe lanes` serves them
    (MAILPIPE_RESERVE_SHARE, 0 to below 1)."""
    transit: float = 0.015
    """Seconds by which one call's way to SES may be longer than another's (MAILPIPE_TRANSIT, 0 to 0.1). Smaller uses more of the
    rate; too small, and calls that met on the way are refused although they left in time."""
    ses_operation: Literal["bulk", "single"] = "bulk"
    """Whether mail leaves through SendBulkEmail or, one recipient a call, through SendEmail (MAILPIPE_SES_OPERATION): slower here,
    for accounts whose bulk calls SES limits."""
    provider_rates: Mapping[str, float] = field(default_factory=dict)
    """Recipients per second of a mailbox provider (MAILPIPE_PROVIDER_RATES), as `gmail=200,yahoo=50`: gmail, microsoft, yahoo,
    apple, other. A provider that is not named has no limit of its own."""
    threads: int | None = None
    """Calls that one run makes at once (MAILPIPE_THREADS). Empty: enough to keep the pace at half a second a call."""
    one_processor: bool = True
    """Whether the threads that open and make calls stay on one processor that no other run has, where calls are closer than 50 ms
    (MAILPIPE_ONE_PROCESSOR=0: not). A run makes a third more calls there, unless something else must stay on it too."""
    shares: int = 1
    """Runs that share one due time (MAILPIPE_SHARES): more than one where Dagster starts runs on several machines. They share the
    pace too, so more of them are not faster on one machine."""
    lease: float = 30.0
    """How long a chunk stays with a silent worker (MAILPIPE_LEASE). A living process renews its leases, however slow its calls;
    a shorter lease resumes sooner after a crash, and forgives shorter pauses of machine and database."""
    connect_timeout: float = 5.0
    """MAILPIPE_CONNECT_TIMEOUT. A connection not made by then certainly carried no call."""
    read_timeout: float = 60.0
    """MAILPIPE_READ_TIMEOUT. Too short a time turns late answers into `unknown`; a late answer is the better one."""
    consent: str = DEFAULT_CONSENT
    """Who may still get marketing (MAILPIPE_CONSENT): an SQL condition on `person.user_id` (text) and `person.email`. It is
    asked again right before each call, so it must find a person by an index; not true, or no longer there: skipped."""
    segment_timeout: float = 300.0
    """A segment that runs longer than this is stopped by the server (MAILPIPE_SEGMENT_TIMEOUT)."""
    usual_factor: float = 5.0
    """A campaign without warm-up is refused that lets its domain send so many times more on a day than on any of the last 30, and
    more than 5,000 (MAILPIPE_USUAL_FACTOR). 0: never. Not asked where mail can only reach a stand-in."""
    misfire_grace: float = 6 * 3600.0
    """A campaign that was due longer ago than this when it is first started is missed (MAILPIPE_MISFIRE_GRACE): somebody has to
    say that it still makes sense. Only where its file gives a `due_at`."""
    foreign_sent: float = 1_000.0
    """Recipients a day that others may send to from the same SES account (MAILPIPE_FOREIGN_SENT). More than that, unknown to a
    database that this machine has not sent with, looks like a restored copy, and nothing is sent until a person says so."""
    frequency_cap: Cap | None = None
    """Mails of campaigns that one person may get in some days (MAILPIPE_FREQUENCY_CAP, for example `3/7d`). Empty or 0: no cap. Who
    has had as many is left out of further campaigns, and counted; messages of the outbox always go."""
    minimum_interval: float = 3600.0
    """Seconds between two fires of a schedule at least (MAILPIPE_MINIMUM_INTERVAL): a cron expression that fires more often is
    refused, because it is nearly always a mistake."""
    default_timezone: str = "UTC"
    """The zone of people who have none that we know (MAILPIPE_DEFAULT_TIMEZONE)."""
    public_url: str = "http://127.0.0.1:8025"
    """Where unsubscribe links lead (MAILPIPE_PUBLIC_URL). Must be https when mail leaves for real."""
    unsubscribe_mailto: str | None = None
    """An address that takes unsubscribe mails (MAILPIPE_UNSUBSCRIBE_MAILTO); put second into List-Unsubscribe."""
    unsubscribe_keys: str | None = field(default=None, repr=False)
    """`id:secret,id:secret`, newest first (MAILPIPE_UNSUBSCRIBE_KEYS). Old keys verify for ever, the first one signs."""
    api_tokens: str | None = field(default=None, repr=False)
    """`name:token,name:token` (MAILPIPE_API_TOKENS): who may use the API of `mailpipe web`. Locally one is made; else without them
    the API is closed."""
    web_proxies: int = 0
    """Proxies of ours before `mailpipe web` (MAILPIPE_WEB_PROXIES): so many last entries of X-Forwarded-For are believed. Too few,
    and all clients share one rate limit; too many, and a client can invent who it is."""
    smtp_url: str | None = field(default=None, repr=False)
    """The server of `adapter: smtp` (MAILPIPE_SMTP_URL): `smtp+starttls://user@host:587`, `smtps://...`, or `smtp://` for one on
    this machine."""
    smtp_password: str | None = field(default=None, repr=False)
    """Its password (MAILPIPE_SMTP_PASSWORD), if it is not in the URL."""
    webhook_url: str | None = field(default=None, repr=False)
    """Where `adapter: webhook` posts (MAILPIPE_WEBHOOK_URL). Must be https, unless it is on this machine."""
    webhook_secret: str | None = field(default=None, repr=False)
    """What its posts are signed with (MAILPIPE_WEBHOOK_SECRET), at least 32 characters."""
    sns_topics: str | None = None
    """`ARN,ARN` (MAILPIPE_SNS_TOPICS): the SNS topics that `POST /ses/events` believes. Empty: none, events come another way."""
    sns_signatures: str = "1,2"
    """Signature versions that are accepted (MAILPIPE_SNS_SIGNATURES). `2` alone refuses SHA-1; the topics must be told so first."""
    sns_test_certificate: Path | None = None
    """A certificate to believe instead of SNS's own (MAILPIPE_SNS_TEST_CERTIFICATE): for a stand-in's topic, refused elsewhere."""
    event_days: int = 90
    """Days for which the text of an event is kept (MAILPIPE_EVENT_DAYS), and repeats are known. What follows from it stays."""
    orders: str | None = None
    """What people bought (MAILPIPE_ORDERS): a query with `user_id` and `ordered_at` (timestamptz), and where links carry them
    `campaign` and `variant`. Buyers are engaged, and experiments can be decided by orders. Empty: nothing is known of orders."""
    opt_ins: str | None = None
    """Since when people want mail (MAILPIPE_OPT_INS): a query with `user_id` and `opted_in_at` (timestamptz). Empty: since their
    first mail, so that somebody who never reacts is kept for a year after it."""
    history: Path | None = None
    """Where sends and human reactions are kept as Parquet, a folder a day (MAILPIPE_HISTORY, default VAR/engagement). Several
    machines that fold need one that they share."""
    history_days: int = 400
    """Days for which they are kept (MAILPIPE_HISTORY_DAYS). What was learned from them stays."""
    allow_unsafe_durability: bool = False
    """Accept a server with fsync off (MAILPIPE_ALLOW_UNSAFE_DURABILITY=1). Only for throw-away servers of tests."""

    @property
    def history_folder(self) -> Path:
        return self.history or self.var / "engagement"

    @property
    def segments(self) -> Path:
        return self.home / "assets" / "segments"

    @property
    def templates(self) -> Path:
        return self.home / "assets" / "templates"

    @property
    def most_of_usual(self) -> float | None:
        """`usual_factor`, where it is asked for: None where mail can only reach a stand-in."""
        return None if self.is_local or not self.usual_factor else self.usual_factor

    @property
    def is_local(self) -> bool:
        """True when mail can only reach a stand-in: an endpoint override, or the embedded default, and no other way leads away
        from this machine.
        """
        others = [url for url in (self.smtp_url, self.webhook_url) if url is not None]
        return (self.ses_endpoint is not None or self.database_url is None) and all(map(_leads_near, others))


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        SettingsError: a variable has a value that cannot be used; the text names it.
    """
    home = Path(environ.get("MAILPIPE_HOME") or _checkout(Path.cwd())).resolve()
    numbers = {
        name: _positive(environ, f"MAILPIPE_{name.upper()}", default)
        for name, default in (
            ("lease", Settings.lease),
            ("connect_timeout", Settings.connect_timeout),
            ("read_timeout", Settings.read_timeout),
            ("segment_timeout", Settings.segment_timeout),
            ("misfire_grace", Settings.misfire_grace),
            ("foreign_sent", Settings.foreign_sent),
            ("minimum_interval", Settings.minimum_interval),
            ("event_days", Settings.event_days),
            ("history_days", Settings.history_days),
        )
    }
    threads = _positive(environ, "MAILPIPE_THREADS", None)
    if threads is not None and (threads != int(threads) or threads > 256):
        raise SettingsError("MAILPIPE_THREADS: expected a whole number from 1 to 256")
    shares = environ.get("MAILPIPE_SHARES") or "1"
    if not shares.isascii() or not shares.isdigit() or not 1 <= int(shares) <= 100:
        raise SettingsError("MAILPIPE_SHARES: expected a whole number from 1 to 100")
    proxies = environ.get("MAILPIPE_WEB_PROXIES") or "0"
    if not proxies.isascii() or not proxies.isdigit() or int(proxies) > 99:
        raise SettingsError("MAILPIPE_WEB_PROXIES: expected a whole number from 0 to 99")
    settings = Settings(
        home=home,
        var=Path(environ.get("MAILPIPE_VAR") or home / "var").resolve(),
        database_url=environ.get("MAILPIPE_DATABASE_URL") or None,
        dagster_database=environ.get("MAILPIPE_DAGSTER_DATABASE") or Settings.dagster_database,
        ses_endpoint=environ.get("MAILPIPE_SES_ENDPOINT") or None,
        ses_region=environ.get("MAILPIPE_SES_REGION") or environ.get("AWS_REGION") or Settings.ses_region,
        configuration_set=environ.get("MAILPIPE_CONFIGURATION_SET") or Settings.configuration_set,
        transactional_configuration_set=environ.get("MAILPIPE_TRANSACTIONAL_CONFIGURATION_SET")
        or Settings.transactional_configuration_set,
        transactional_sender=environ.get("MAILPIPE_TRANSACTIONAL_SENDER") or None,
        lanes={name: _lane(environ, default) for name, default in lane.DEFAULTS.items()},
        rate=_positive(environ, "MAILPIPE_RATE", None),
        call_rate=_positive(environ, "MAILPIPE_CALL_RATE", None),
        marketing_share=_positive(environ, "MAILPIPE_MARKETING_SHARE", None, most=1.0) or Settings.marketing_share,
        reserve_share=_or_nothing(environ, "MAILPIPE_RESERVE_SHARE", Settings.reserve_share, most=0.9),
        transit=_or_nothing(environ, "MAILPIPE_TRANSIT", Settings.transit, most=0.1),
        ses_operation=_operation(environ),
        provider_rates=_provider_rates(environ),
        threads=None if threads is None else int(threads),
        one_processor=_switch(environ, "MAILPIPE_ONE_PROCESSOR", Settings.one_processor),
        shares=int(shares),
        consent=environ.get("MAILPIPE_CONSENT") or DEFAULT_CONSENT,
        default_timezone=environ.get("MAILPIPE_DEFAULT_TIMEZONE") or Settings.default_timezone,
        public_url=(environ.get("MAILPIPE_PUBLIC_URL") or Settings.public_url).rstrip("/"),
        unsubscribe_mailto=environ.get("MAILPIPE_UNSUBSCRIBE_MAILTO") or None,
        unsubscribe_keys=environ.get("MAILPIPE_UNSUBSCRIBE_KEYS") or None,
        api_tokens=environ.get("MAILPIPE_API_TOKENS") or None,
        smtp_url=environ.get("MAILPIPE_SMTP_URL") or None,
        smtp_password=environ.get("MAILPIPE_SMTP_PASSWORD") or None,
        webhook_url=environ.get("MAILPIPE_WEBHOOK_URL") or None,
        webhook_secret=environ.get("MAILPIPE_WEBHOOK_SECRET") or None,
        web_proxies=int(proxies),
        sns_topics=environ.get("MAILPIPE_SNS_TOPICS") or None,
        sns_signatures=environ.get("MAILPIPE_SNS_SIGNATURES") or Settings.sns_signatures,
        sns_test_certificate=Path(path) if (path := environ.get("MAILPIPE_SNS_TEST_CERTIFICATE")) else None,
        event_days=int(numbers["event_days"] or Settings.event_days),
        orders=(environ.get("MAILPIPE_ORDERS") or "").strip().rstrip(";") or None,
        opt_ins=(environ.get("MAILPIPE_OPT_INS") or "").strip().rstrip(";") or None,
        history=Path(folder).resolve() if (folder := environ.get("MAILPIPE_HISTORY")) else None,
        history_days=int(numbers["history_days"] or Settings.history_days),
        allow_unsafe_durability=environ.get("MAILPIPE_ALLOW_UNSAFE_DURABILITY") == "1",
        lease=numbers["lease"] or Settings.lease,
        connect_timeout=numbers["connect_timeout"] or Settings.connect_timeout,
        read_timeout=numbers["read_timeout"] or Settings.read_timeout,
        segment_timeout=numbers["segment_timeout"] or Settings.segment_timeout,
        misfire_grace=numbers["misfire_grace"] or Settings.misfire_grace,
        usual_factor=_or_nothing(environ, "MAILPIPE_USUAL_FACTOR", Settings.usual_factor, most=1e6),
        foreign_sent=numbers["foreign_sent"] or Settings.foreign_sent,
        minimum_interval=numbers["minimum_interval"] or Settings.minimum_interval,
        frequency_cap=_cap(environ.get("MAILPIPE_FREQUENCY_CAP")),
    )
    if settings.sns_test_certificate is not None and not settings.is_local:
        raise SettingsError(
            "MAILPIPE_SNS_TEST_CERTIFICATE: only for a stand-in; here mail leaves through AWS, and whoever holds that"
            " certificate's key could make up events. Unset it"
        )
    if not settings.is_local and not settings.public_url.startswith("https://"):
        raise SettingsError("MAILPIPE_PUBLIC_URL: must start with https:// when mail leaves for real (RFC 8058)")
    if settings.configuration_set == settings.transactional_configuration_set:
        raise SettingsError(
            "MAILPIPE_TRANSACTIONAL_CONFIGURATION_SET: is that of campaigns too (MAILPIPE_CONFIGURATION_SET); give messages one of"
            " their own, else the complaints about a campaign stop login codes"
        )
    return settings


def transactional_sender(settings: Settings) -> str:
    """From of messages that name none; locally, where no mail can leave, there is one that nobody has to set.

    Raises:
        SettingsError: mail would leave for real and MAILPIPE_TRANSACTIONAL_SENDER is not set.
    """
    if settings.transactional_sender:
        return settings.transactional_sender
    if not settings.is_local:
        raise SettingsError(
            "MAILPIPE_TRANSACTIONAL_SENDER: not set. Give an address at a domain that no campaign uses, such as"
            " `Shop <login@notify.example.com>`"
        )
    return "Shop <login@notify.example.com>"


def unsubscribe_keys(settings: Settings) -> str:
    """The signing keys; locally, where no mail can leave, one is made and kept under `var/`.

    Raises:
        SettingsError: mail would leave for real and MAILPIPE_UNSUBSCRIBE_KEYS is not set.
    """
    if settings.unsubscribe_keys:
        return settings.unsubscribe_keys
    if not settings.is_local:
        raise SettingsError(
            "MAILPIPE_UNSUBSCRIBE_KEYS: not set. Give `1:` and a secret of at least 32 characters; keep it for ever,"
            " links in mails already sent are verified with it"
        )
    return _kept(settings.var / "unsubscribe.key", f"1:{secrets.token_urlsafe(32)}").read_text().strip()


def api_tokens(settings: Settings) -> str | None:
    """The tokens of the API; locally, where no mail can leave, one is made and kept. None: the API is closed."""
    if settings.api_tokens or not settings.is_local:
        return settings.api_tokens
    return f"local:{local_token(settings).read_text().strip()}"


def local_token(settings: Settings) -> Path:
    """The file under `var/` with the API token of this machine; it is made when it is missing."""
    return _kept(settings.var / "api.token", secrets.token_urlsafe(32))


def is_near(host: str) -> bool:
    """Whether a host is this machine, or a name without a dot: a container beside it, which no public name can be."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return "." not in host.rstrip(".") or host.endswith(".localhost")


def _leads_near(url: str) -> bool:
    try:
        return is_near(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _kept(path: Path, secret: str) -> Path:
    """A file for our eyes alone; it gets this secret unless it has one."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(secret)
    # The file appears whole: who comes second never reads half a secret.
    with suppress(FileExistsError):
        os.link(name, path)
    Path(name).unlink()
    return path


def _checkout(start: Path) -> Path:
    for folder in (start, *start.parents):
        if (folder / "workspace.yaml").is_file() and (folder / "assets").is_dir():
            return folder
    return start


def _lane(environ: Mapping[str, str], default: Lane) -> Lane:
    name = f"MAILPIPE_LANE_{default.name.upper()}"
    try:
        return lane.changed(default, environ.get(name, ""))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None


def _cap(text: str | None) -> Cap | None:
    if not (text or "").strip(" 0"):
        return None
    match = _CAP.fullmatch((text or "").strip())
    if match is None:
        raise SettingsError("MAILPIPE_FREQUENCY_CAP: expected mails and days such as 3/7d, or nothing for no cap")
    mails, days = int(match[1]), int(match[2])
    return Cap(mails, days) if mails and days else None


def _or_nothing(environ: Mapping[str, str], name: str, default: float, *, most: float) -> float:
    """A number for which 0 is a choice."""
    if (environ.get(name) or "").strip() in ("0", "0.0"):
        return 0.0
    return _positive(environ, name, None, most=most) or default


def _switch(environ: Mapping[str, str], name: str, default: bool) -> bool:
    match environ.get(name) or ("1" if default else "0"):
        case "1":
            return True
        case "0":
            return False
        case text:
            raise SettingsError(f"{name}: expected 1 or 0, got {text!r}")


def _operation(environ: Mapping[str, str]) -> Literal["bulk", "single"]:
    match environ.get("MAILPIPE_SES_OPERATION") or Settings.ses_operation:
        case "bulk":
            return "bulk"
        case "single":
            return "single"
        case text:
            raise SettingsError(f"MAILPIPE_SES_OPERATION: expected bulk or single, got {text!r}")


def _provider_rates(environ: Mapping[str, str]) -> dict[str, float]:
    name = "MAILPIPE_PROVIDER_RATES"
    found: dict[str, float] = {}
    for part in filter(None, (environ.get(name) or "").split(",")):
        provider, _, text = part.strip().partition("=")
        if provider not in FAMILIES:
            raise SettingsError(f"{name}: {provider!r} is none of {', '.join(FAMILIES)}")
        found[provider] = _positive({name: text or "0"}, name, None) or 0.0
    return found


def _positive(environ: Mapping[str, str], name: str, default: float | None, *, most: float = 1e9) -> float | None:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        bounds = "above 0" if most >= 1e9 else f"above 0 and at most {most:g}"
        raise SettingsError(f"{name}: expected a number {bounds}, got {text!r}")
    return value
