"""The API of campaigns: read only. Campaigns are created, approved and moved by people, in the UI or on the command line."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import get_args

import pydantic
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mailpipe import campaign, report
from mailpipe.campaign import State
from mailpipe.db import Database
from mailpipe.errors import CampaignError
from mailpipe.web.openapi import Operation, Parameter
from mailpipe.web.problem import Problem
from mailpipe.web.query import choice, only


class CampaignLine(pydantic.BaseModel):
    """A campaign, without its people."""

    campaign: str
    href: str
    state: State
    state_reason: str | None
    segment: str
    template: str
    topic: str
    author: str
    approver: str | None
    created_at: datetime
    due_at: datetime


class CampaignList(pydantic.BaseModel):
    """The newest first."""

    campaigns: list[CampaignLine]


OPERATIONS = [
    Operation(
        "GET",
        "/campaigns",
        "List all campaigns",
        answers={200: CampaignList, 422: None},
        query={"state": Parameter("Only those in this state", State)},
    ),
    Operation(
        "GET",
        "/campaigns/{key}",
        "Say how far a campaign is",
        answers={200: report.Progress, 404: None},
        places=[Parameter("The key of the campaign")],
    ),
]


def routes(database: Database, *, prefix: str) -> list[Route]:
    """`prefix` is the path before these routes, for the addresses in answers."""

    async def index(request: Request) -> JSONResponse:
        only(request.query_params, "state")
        state = choice(request.query_params, "state", get_args(State))
        listed = CampaignList(campaigns=await run_in_threadpool(lines, state))
        return JSONResponse(listed.model_dump(mode="json"))

    def lines(state: str | None) -> list[CampaignLine]:
        with database.connection() as connection:
            return [
                CampaignLine(
                    campaign=one.key,
                    href=f"{prefix}/campaigns/{one.key}",
                    state=one.state,
                    state_reason=one.state_reason,
                    segment=one.spec.people,
                    template=one.template_version or one.spec.template,
                    topic=one.spec.topic,
                    author=one.author,
                    approver=one.approver,
                    created_at=one.created_at,
                    due_at=one.due_at,
                )
                for one in campaign.get_all(connection)
                if state in (None, one.state)
            ]

    async def show(request: Request) -> JSONResponse:
        return JSONResponse((await run_in_threadpool(progress, request.path_params["key"])).to_json())

    def progress(key: str) -> report.Progress:
        with database.connection() as connection:
            try:
                return report.progress(connection, key)
            except CampaignError as error:
                raise Problem(HTTPStatus.NOT_FOUND, "there is no such campaign", field="key") from error

    return [Route("/campaigns", index), Route("/campaigns/{key}", show)]
