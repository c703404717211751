"""Puts the web application together: every route, what guards it, and how errors are answered."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount, Route, Router

from mailpipe import settings
from mailpipe.db import Database
from mailpipe.settings import Settings
from mailpipe.web import (
    auth,
    campaigns,
    events,
    guard,
    health,
    messages,
    metrics,
    openapi,
    problem,
    schedule_forms,
    schedules,
    schedules_page,
    unsubscribe,
)

API = "/api/v1"
OPERATIONS = [*messages.OPERATIONS, *campaigns.OPERATIONS, *schedule_forms.OPERATIONS]


def build(config: Settings, database: Database) -> Starlette:
    """The application on a database that has its schema.

    Raises:
        SettingsError: tokens or keys cannot be used.
    """
    given = settings.api_tokens(config)
    tokens = auth.parse(given) if given else {}
    api: Sequence[BaseRoute] = [
        *messages.routes(database, prefix=API),
        *campaigns.routes(database, prefix=API),
        *schedules.routes(config, database, prefix=API),
        *openapi.routes(OPERATIONS, prefix=API),
    ]
    # A redirect would break one-click unsubscribe (RFC 8058), so nothing redirects: no slash is added or taken away.
    gate = Mount(API, app=auth.Gate(Router(api, redirect_slashes=False), tokens=tokens))
    inside = Router(schedules_page.routes(config, database), redirect_slashes=False)
    page = Route("/schedules", schedules_page.Door(auth.Gate(inside, tokens=tokens)), methods=["GET"])
    app = Starlette(
        routes=[
            *health.routes(database),
            *metrics.routes(database),
            *unsubscribe.routes(config, database),
            *events.routes(config, database),
            page,
            gate,
        ],
        middleware=[Middleware(guard.Outside, https=config.public_url.startswith("https://"))],
        exception_handlers=problem.HANDLERS,
    )
    app.router.redirect_slashes = False
    return app
