"""E-mail addresses: the form that is sent, and the one key by which two spellings are the same person.

Nothing here asks the network, and nothing repairs an address beyond trimming it: what SES cannot take is
refused. No error text holds an address. Who may be mailed is decided elsewhere (`suppression`, the consent
query).

SQL that compares addresses uses the same rule: `mailpipe.email_key(btrim(email, E' \\t\\r\\n'))` equals `key(email)`
for every address in ASCII; an address with a Unicode domain has to pass through `send_form` first.
"""

import re
from contextlib import suppress
from email.errors import HeaderParseError
from email.header import Header, decode_header, make_header
from email.utils import formataddr
from functools import lru_cache

from email_validator import EmailNotValidError, validate_email

TRIMMED = " \t\r\n"
"""What is trimmed from both ends; any other stray character makes an address unusable."""

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
# A strict subset of what email-validator accepts, in half a microsecond instead of 29: dot-atom, labels without a double hyphen (so
# no Punycode, which must be proved valid), a top-level domain of letters, no name reserved by RFC 6761, RFC 5321's lengths.
_plain_local = re.compile(rf"{_ATOM}(?:\.{_ATOM})*").fullmatch
_LONGEST_LOCAL = 64
_plain_domain = re.compile(
    r"(?=.{1,253}\Z)(?:(?=[^.]{1,63}\.)[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\.)+"
    r"(?!(?:arpa|invalid|local|localhost|onion|test)\Z)[A-Za-z]{2,63}",
    re.IGNORECASE | re.ASCII,
).fullmatch
_LONGEST = 254
_named = re.compile(r"([^<>]*)<([^<>]*)>").fullmatch
_quoted_pair = re.compile(r"\\(.)")
_control = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]").search


class AddressError(ValueError):
    """The address cannot be used. `reason` is a short slug; neither it nor the text holds the address."""

    def __init__(self, reason: str = "unusable_address", text: str = "the address cannot be used by SES") -> None:
        super().__init__(text)
        self.reason = reason


def send_form(text: str) -> str:
    """The address as SES takes it: trimmed, the local part as given, the domain in lower case as A-labels
    (Punycode).

    SES has no SMTPUTF8 (service model, `Destination`), so the local part must be 7-bit ASCII; lengths are
    those of RFC 5321, section 4.5.3.1. Raises AddressError.
    """
    trimmed = text.strip(TRIMMED)
    local, _, domain = trimmed.rpartition("@")
    if len(local) <= _LONGEST_LOCAL and _plain_local(local):
        form = f"{local}@{_ascii_domain(domain)}"
        if len(form) > _LONGEST:
            raise AddressError()
        return form
    # Taken from the text, because email-validator writes role names such as `Info` in lower case.
    return f"{local}@{_validated(trimmed)}"


# Addresses have few domains: most are known already, and each international one takes 150 µs.
@lru_cache(maxsize=4096)
def _ascii_domain(domain: str) -> str:
    return domain.lower() if _plain_domain(domain) else _validated(f"somebody@{domain}")


def _validated(address: str) -> str:
    """The domain, as A-labels, of an address that email-validator accepts."""
    try:
        valid = validate_email(address, check_deliverability=False, allow_smtputf8=False, strict=True)
    except EmailNotValidError:
        # Not chained: the text of that error quotes parts of the address.
        raise AddressError() from None
    return str(valid.ascii_domain)


def key(text: str) -> str:
    """The one normal form for suppression and de-duplication: `send_form` in lower case. Raises AddressError.

    RFC 5321 lets a host tell local parts apart by case; in practice none does, and a suppression that is
    missed by a capital letter mails somebody who said no.
    """
    return send_form(text).lower()


@lru_cache(maxsize=256)
def mailbox(text: str) -> str:
    """A sender or reply-to field, `address` or `Name <address>`, as SES takes it: a name beyond ASCII becomes
    encoded words of at most 75 characters (RFC 2047). Raises AddressError.
    """
    name, form = parts(text)
    if _control(name):
        raise AddressError("unusable_name", "the name before the address holds control characters")
    if name.isascii():
        return formataddr((name, form)) if name else form
    return f"{Header(name, 'utf-8', maxlinelen=75).encode(linesep='')} <{form}>"


def parts(text: str) -> tuple[str, str]:
    """Name and `send_form` of `address` or `Name <address>`, the name as it reads, with encoded words decoded, and unchecked.
    Raises AddressError.
    """
    named = _named(text.strip(TRIMMED))
    if named is None:
        return "", send_form(text)
    name = named[1].strip(TRIMMED)
    if len(name) > 1 and name.startswith('"') and name.endswith('"'):
        name = _quoted_pair.sub(r"\1", name[1:-1])
    if "=?" in name:
        # What is not encoded as it seems to be stays as it is.
        with suppress(LookupError, ValueError, HeaderParseError):
            name = str(make_header(decode_header(name)))
    return name, send_form(named[2])


def domain(text: str) -> str:
    """The domain of `address` or `Name <address>`, in lower case. Raises AddressError."""
    return parts(text)[1].rpartition("@")[2]
