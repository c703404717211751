"""Unsubscribe links (RFC 2369, RFC 8058): a look changes nothing, a POST acts at once.

Scanners of mail gateways open every link, so GET and HEAD only show a page with a button. Mail programs POST
`List-Unsubscribe=One-Click` to the same address without cookies or a session, and follow no redirect; the button does the same.
The token alone says who and what, so links of campaigns that are long gone work too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from http import HTTPStatus
from urllib.parse import parse_qsl

import psycopg
import sqlalchemy
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mailpipe import campaign, scanner_guard, settings, suppression
from mailpipe.db import Connection, Database
from mailpipe.errors import DatabaseUnavailable
from mailpipe.links import BadToken, Person, Signer
from mailpipe.settings import Settings
from mailpipe.suppression import MARKETING
from mailpipe.web import guard
from mailpipe.web.page import TEXTS, Box, Button, language, page
from mailpipe.web.problem import RETRY_AFTER, Problem

MAX_BODY = 8 * 1024
# Gmail's and Yahoo's one-click requests come for all their people from a few addresses: wide for valid links, narrow for guessing.
VALID = {"rate": 100.0, "burst": 1_000.0}
INVALID = {"rate": 0.2, "burst": 20.0}
ONE_CLICK = ("List-Unsubscribe", "One-Click")

_log = logging.getLogger(__name__)
_AWAY = (DatabaseUnavailable, psycopg.OperationalError, sqlalchemy.exc.OperationalError)


def routes(config: Settings, database: Database) -> list[Route]:
    """Raises SettingsError: the keys cannot be used."""
    pages = Pages(config, database)
    return [Route("/u/{token}", pages.answer, methods=["GET", "POST"], max_body_size=MAX_BODY)]


class Pages:
    """What stands behind the links. One for a process: it knows how often each client has asked."""

    def __init__(self, config: Settings, database: Database) -> None:
        self._signer = Signer(settings.unsubscribe_keys(config), config.public_url, config.unsubscribe_mailto)
        self._mailto = config.unsubscribe_mailto
        self._proxies = config.web_proxies
        self._database = database
        self._valid = guard.Buckets(**VALID)
        self._invalid = guard.Buckets(**INVALID)

    async def answer(self, request: Request) -> Response:
        say = Speech(language(request.headers.get("accept-language", "")), self._mailto)
        client = guard.client(request, proxies=self._proxies)
        try:
            person = self._signer.read(request.path_params["token"])
        except BadToken:
            return say.later(wait) if (wait := self._invalid.take(client)) else say.missing()
        if wait := self._valid.take(client):
            return say.later(wait)
        try:
            if request.method != "POST":
                return await run_in_threadpool(self._show, say, person)
            return await run_in_threadpool(self._act, say, person, await _form(request))
        except _AWAY as error:
            _log.error("%s", type(error).__name__)
            return say.later(float(RETRY_AFTER), status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _show(self, say: Speech, person: Person) -> Response:
        with self._database.connection() as connection:
            choice = Choice.of(connection, person)
        return say.done(choice) if choice.is_out else say.ask(choice)

    def _act(self, say: Speech, person: Person, form: FormData) -> Response:
        """Do what the POST asks for; it is committed when the answer leaves. Raises Problem."""
        one_click = str(form.get(ONE_CLICK[0], "")).strip().lower() == ONE_CLICK[1].lower()
        action = "stop" if one_click else str(form.get("action"))
        act = _ACTIONS.get(action)
        if act is None:
            raise Problem(HTTPStatus.BAD_REQUEST, f"expected the form field {'='.join(ONE_CLICK)}")
        with self._database.transaction() as connection:
            is_news = act(connection, person, form)
        if is_news:
            self._watch(person)
        if "page" not in form:
            return Response(status_code=HTTPStatus.OK)
        with self._database.connection() as connection:
            choice = Choice.of(connection, person)
        if action == "topics":
            return say.saved(choice)
        return say.done(choice) if choice.is_out else say.back(choice)

    def _watch(self, person: Person) -> None:
        """Tell the guard against scanners. The opt-out stands whatever becomes of that."""
        try:
            with self._database.transaction() as connection:
                scanner_guard.note(connection, person.user_id)
        except (*_AWAY, psycopg.Error) as error:
            _log.error("the guard against scanners: %s", type(error).__name__)


async def _form(request: Request) -> FormData:
    """The fields of a form, whichever way they are sent; what says nothing about itself is taken for the usual way."""
    if request.headers.get("content-type", "").startswith(("multipart/form-data", "application/x-www-form-urlencoded")):
        return await request.form(max_files=0, max_fields=100)
    try:
        return FormData([*parse_qsl((await request.body()).decode(errors="replace"), max_num_fields=100)])
    except ValueError:
        raise Problem(HTTPStatus.BAD_REQUEST, "too many form fields") from None


def _stop(connection: Connection, person: Person, form: FormData) -> bool:
    source = "page" if "page" in form else "one-click"
    return suppression.unsubscribe(connection, person.user_id, person.topic, source=source)


def _stop_all(connection: Connection, person: Person, form: FormData) -> bool:  # noqa: ARG001
    return suppression.unsubscribe(connection, person.user_id, MARKETING, source="page")


def _undo(connection: Connection, person: Person, form: FormData) -> bool:  # noqa: ARG001
    """Take back both kinds of unsubscribing that this link offers."""
    for topic in suppression.topics(person.topic):
        suppression.resubscribe(connection, person.user_id, topic)
    return False


def _choose(connection: Connection, person: Person, form: FormData) -> bool:
    """What is checked is wanted. Only topics that the page offered are looked at; who wants one wants some marketing."""
    offered = Choice.of(connection, person).offered
    wanted = {str(topic) for topic in form.getlist("want") if topic in offered}
    news = False
    if wanted:
        suppression.resubscribe(connection, person.user_id, MARKETING)
    for topic in offered:
        if topic in wanted:
            suppression.resubscribe(connection, person.user_id, topic)
        else:
            news |= suppression.unsubscribe(connection, person.user_id, topic, source="page")
    return news


_ACTIONS: dict[str, Callable[[Connection, Person, FormData], bool]] = {
    "stop": _stop,
    "all": _stop_all,
    "undo": _undo,
    "topics": _choose,
}
"""What a POST may ask for -> what does it, and answers whether somebody has newly opted out."""


class Choice:
    """What a person has opted out of, and the topics that they are offered."""

    def __init__(self, topic: str, opted_out: Collection[str], known: Collection[str]) -> None:
        self.topic = topic
        self.opted_out = frozenset(opted_out)
        self.offered = sorted({topic, *known, *opted_out} - {MARKETING})

    @classmethod
    def of(cls, connection: Connection, person: Person) -> Choice:
        opted_out = [one.topic for one in suppression.opt_outs(connection, person.user_id)]
        return cls(person.topic, opted_out, campaign.topics(connection))

    def wants(self, topic: str) -> bool:
        return self.opted_out.isdisjoint(suppression.topics(topic))

    @property
    def is_out(self) -> bool:
        """Whether they get no mail of the link's topic."""
        return not self.wants(self.topic)


class Speech:
    """The pages in one language."""

    def __init__(self, lang: str, mailto: str | None) -> None:
        self._lang = lang
        self._texts = TEXTS[lang]
        self._mailto = mailto

    def ask(self, choice: Choice) -> Response:
        buttons = [Button(self._texts["stop"], *ONE_CLICK)]
        if choice.topic != MARKETING:
            buttons.append(Button(self._texts["stop_all"], "action", "all", quiet=True))
        return page(
            self._lang,
            self._texts["ask_title"],
            [self._about("ask", choice.topic), self._texts["still"]],
            buttons=buttons,
            boxes=self._boxes(choice),
        )

    def done(self, choice: Choice) -> Response:
        topic = MARKETING if MARKETING in choice.opted_out else choice.topic
        return page(
            self._lang,
            self._texts["done_title"],
            [self._about("done", topic), self._texts["still"]],
            buttons=[Button(self._texts["undo"], "action", "undo", quiet=True)],
            boxes=self._boxes(choice),
        )

    def back(self, choice: Choice) -> Response:
        buttons = [Button(self._texts["stop"], *ONE_CLICK, quiet=True)]
        text = self._about("back", choice.topic)
        return page(self._lang, self._texts["back_title"], [text], buttons=buttons, boxes=self._boxes(choice))

    def saved(self, choice: Choice) -> Response:
        text = self._about(
            "done" if choice.is_out else "back", MARKETING if MARKETING in choice.opted_out else choice.topic
        )
        return page(self._lang, self._texts["saved_title"], [text], boxes=self._boxes(choice))

    def missing(self) -> Response:
        lines = [self._texts["missing"], self._texts["missing_help"]]
        if self._mailto is not None:
            lines.append(self._texts["write"].replace("{address}", self._mailto))
        return page(self._lang, self._texts["missing_title"], lines, status=HTTPStatus.NOT_FOUND)

    def later(self, wait: float, *, status: int = HTTPStatus.TOO_MANY_REQUESTS) -> Response:
        headers = {"Retry-After": str(int(wait) + 1)}
        return page(self._lang, self._texts["later_title"], [self._texts["later"]], status=status, headers=headers)

    def _about(self, key: str, topic: str) -> str:
        if topic == MARKETING:
            return self._texts[f"{key}_all"]
        # Isolated (UAX 9), or the quotation marks around a Latin name go astray in a line from right to left.
        name = f"\u2068{_name(topic)}\u2069" if self._texts["dir"] == "rtl" else _name(topic)
        return self._texts[key].replace("{topic}", name)

    def _boxes(self, choice: Choice) -> list[Box]:
        """Topics to choose from; of one alone the buttons say enough."""
        if len(choice.offered) < 2:
            return []
        return [Box(topic, _name(topic), choice.wants(topic)) for topic in choice.offered]


def _name(topic: str) -> str:
    """A topic as people read it."""
    return topic.replace("_", " ").replace("-", " ")
