"""The API of schedules: what recurs and what is sent once, in one list. What they are is `schedule.overview`'s duty, what may be
done with them `schedule.recurring`'s and `campaign`'s.

The author of what is created here is the name of the token. Somebody else approves it, in the UI or on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, get_args

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mailpipe import campaign, campaign_file
from mailpipe.db import Connection, Database
from mailpipe.errors import CampaignError, CronError, ScheduleError, SegmentError, TemplateError, UserError, ZoneError
from mailpipe.schedule import fire, overview, recurring, window
from mailpipe.schedule.overview import Place, Status, Type
from mailpipe.schedule.spec import ScheduleSpec
from mailpipe.settings import Settings
from mailpipe.web import schedule_forms as forms
from mailpipe.web.auth import CLIENT
from mailpipe.web.openapi import by_method
from mailpipe.web.problem import Problem
from mailpipe.web.query import choice, number, only


def routes(config: Settings, database: Database, *, prefix: str) -> list[Route]:
    """`prefix` is the path before these routes, for the addresses in answers."""
    api = _Api(config)

    def run(work: Callable[..., Response], *given: Any) -> Response:
        with database.connection() as connection:
            return work(connection, *given)

    async def index(request: Request) -> Response:
        return await run_in_threadpool(run, api.index, dict(request.query_params), f"{prefix}/schedules")

    async def create(request: Request) -> Response:
        asked = forms.Asked.model_validate_json(await forms.read(request))
        return await run_in_threadpool(run, api.create, asked, _client(request), f"{prefix}/schedules")

    async def preview(request: Request) -> Response:
        asked = forms.Asked.model_validate_json(await forms.read(request))
        return await run_in_threadpool(api.preview, asked)

    async def show(request: Request) -> Response:
        return await run_in_threadpool(run, api.show, request.path_params["id"])

    async def change(request: Request) -> Response:
        changed = forms.Changed.model_validate_json(await forms.read(request))
        return await run_in_threadpool(run, api.change, request.path_params["id"], changed, _client(request))

    async def delete(request: Request) -> Response:
        return await run_in_threadpool(run, api.delete, request.path_params["id"], _client(request))

    def move(verb: str) -> Callable[[Request], Any]:
        async def moved(request: Request) -> Response:
            return await run_in_threadpool(run, api.move, request.path_params["id"], verb, _client(request))

        return moved

    return [
        by_method("/schedules", GET=index, POST=create),
        Route("/schedules:preview", preview, methods=["POST"]),
        by_method("/schedules/{id}", GET=show, PATCH=change, DELETE=delete),
        *(Route(f"/schedules/{{id}}/{verb}", move(verb), methods=["POST"]) for verb in ("pause", "resume", "run-now")),
    ]


class _Api:
    """What the routes do, each with a connection."""

    def __init__(self, config: Settings) -> None:
        self._config = config

    def index(self, connection: Connection, query: dict[str, str], path: str) -> Response:
        only(query, "type", "status", "limit", "cursor")
        kind, status = choice(query, "type", get_args(Type)), choice(query, "status", get_args(Status))
        most = number(query, "limit", default=forms.PAGE, most=forms.LONGEST_PAGE)
        after = forms.unpacked(query["cursor"]) if query.get("cursor") else None
        found, following = overview.entries(connection, most=most, after=after, kind=kind, status=status)
        listed = {"schedules": [forms.written(one) for one in found], "queue_snapshot": self.queues(connection)}
        headers = {}
        if following is not None:
            kept = "".join(f"&{name}={query[name]}" for name in ("type", "status", "limit") if query.get(name))
            headers["Link"] = f'<{path}?cursor={forms.packed(following)}{kept}>; rel="next"'
        return JSONResponse(listed, headers=headers)

    def queues(self, connection: Connection) -> dict[str, dict[str, int]]:
        return {lane: vars(queue) for lane, queue in overview.queues(connection).items()}

    def create(self, connection: Connection, asked: forms.Asked, author: str, path: str) -> Response:
        with connection.transaction():
            place = self._recurring(connection, asked, author) if asked.cron else self._once(connection, asked, author)
        line = _line(connection, place)
        return JSONResponse(line, HTTPStatus.CREATED, headers={"Location": f"{path}/{line['id']}"})

    def preview(self, asked: forms.Asked) -> Response:
        if asked.cron is None:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "only what recurs has fires; give a cron", field="cron")
        found = self._series(asked)
        with _named("data.campaign"):
            coming = found.coming(datetime.now(UTC), minimum=self._config.minimum_interval)
            words = found.compiled(minimum=0).words
        return JSONResponse({"words": words, "timezone": found.timezone, "next": coming})

    def _series(self, asked: forms.Asked) -> ScheduleSpec:
        given = {**asked.data, "cron": asked.cron, "timezone": asked.timezone or self._config.default_timezone}
        found: ScheduleSpec = forms.checked(ScheduleSpec, given, own=("cron", "timezone"))
        return found

    def _recurring(self, connection: Connection, asked: forms.Asked, author: str) -> Place:
        spec = self._series(asked)
        with _named("data.campaign"):
            return Place("s", recurring.create(connection, self._config, spec, author=author).schedule_id)

    def _once(self, connection: Connection, asked: forms.Asked, author: str) -> Place:
        spec = forms.checked(
            campaign_file.Spec,
            {**asked.data, **forms.when(asked.time, asked.timezone)},
            own=("due_at", "send_at", "timezone"),
        )
        with _named("data"):
            return Place("c", campaign.create(connection, self._config, spec, author=author).campaign_id)

    def show(self, connection: Connection, name: str) -> Response:
        return JSONResponse(_line(connection, forms.place_of(name)))

    def change(self, connection: Connection, name: str, changed: forms.Changed, actor: str) -> Response:
        place, key = _found(connection, name)
        if place.kind == "c":
            if changed.time is None or changed.cron is not None or changed.data:
                detail = "of a campaign only time and timezone can be changed here"
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, field="time")
            with _conflict():
                campaign.retime(connection, key, forms.when(changed.time, changed.timezone), actor=actor)
        else:
            if changed.time is not None:
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "a schedule has a cron, and no time", field="time")
            own = {
                name: value
                for name, value in (("cron", changed.cron), ("timezone", changed.timezone))
                if value is not None
            }
            if changed.data.get("key", key) != key:
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "a key never changes", field="data.key")
            given = {**recurring.get(connection, key).spec.model_dump(), **changed.data, **own}
            forms.checked(ScheduleSpec, given, own=("cron", "timezone"))
            with _named("data.campaign"):
                recurring.change(connection, self._config, key, {**changed.data, **own}, actor=actor)
        return JSONResponse(_line(connection, place))

    def delete(self, connection: Connection, name: str, actor: str) -> Response:
        place, key = _found(connection, name)
        if place.kind == "s":
            recurring.delete(connection, key, actor=actor)
        else:
            with _conflict():
                campaign.cancel(connection, key, actor=actor, reason=f"deleted by {actor}")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    def move(self, connection: Connection, name: str, verb: str, actor: str) -> Response:
        place, key = _found(connection, name)
        with _conflict():
            if place.kind == "s":
                self._move_schedule(connection, key, verb, actor)
            else:
                _move_campaign(connection, key, verb, actor)
        return JSONResponse(_line(connection, place))

    def _move_schedule(self, connection: Connection, key: str, verb: str, actor: str) -> None:
        if verb == "pause":
            recurring.pause(connection, key, actor=actor)
        elif verb == "resume":
            recurring.resume(connection, key, actor=actor)
        else:
            fire.run_now(connection, self._config, key, actor=actor)


def _move_campaign(connection: Connection, key: str, verb: str, actor: str) -> None:
    if verb == "pause":
        campaign.pause(connection, key, actor=actor, reason=f"by {actor}")
    elif verb == "resume":
        campaign.resume(connection, key, actor=actor)
    else:
        with connection.transaction():
            found = campaign.lock(connection, key)
            if found.state != "approved":
                raise CampaignError(f"campaign {key!r} is {found.state}; only an approved one can be sent at once")
            if not window.open_now(connection, found.campaign_id):
                now = {"due_at": found.now, "send_at": None, "timezone": "recipient"}
                campaign.retime(connection, key, now, actor=actor)


def _line(connection: Connection, place: Place) -> dict[str, Any]:
    found, _ = overview.entries(connection, most=1, only=place)
    if not found:
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such schedule", field="id")
    return forms.written(found[0])


def _found(connection: Connection, name: str) -> tuple[Place, str]:
    """The place and the key of what a path names."""
    place = forms.place_of(name)
    row = connection.execute(overview.QUERIES["key"], {"kind": place.kind, "number": place.number}).fetchone()
    if row is None:
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such schedule", field="id")
    return place, str(row[0])


class _named:  # noqa: N801 - read as a word: `with _named("data")`
    """Names the field of a mistake that only the library finds."""

    def __init__(self, data: str) -> None:
        self._fields: list[tuple[type[UserError], str]] = [
            (CronError, "cron"), (ZoneError, "timezone"), (SegmentError, f"{data}.segment"), (TemplateError, f"{data}.template"),
            (CampaignError, "data.key"), (ScheduleError, "data.key"),
        ]  # fmt: skip

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for one, field in self._fields:
            if isinstance(error, one):
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=field) from error


class _conflict:  # noqa: N801 - read as a word: `with _conflict()`
    """What the present state forbids is a conflict."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CampaignError | ScheduleError):
            raise Problem(HTTPStatus.CONFLICT, str(error)) from error


def _client(request: Request) -> str:
    return str(request.scope[CLIENT])
