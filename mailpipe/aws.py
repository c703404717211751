"""How clients of AWS are made: where credentials and proxies are found, and that nothing is tried again behind our back."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config

from mailpipe.settings import Settings


class Clients:
    """Makes clients of one endpoint; None is AWS.

    At a stand-in on this machine no AWS credentials are needed and no proxy is used; in every other case both are found where
    boto3 looks for them.
    """

    def __init__(self, settings: Settings, endpoint: str | None, *, region: str | None = None) -> None:
        core = botocore.session.Session()
        self._options: dict[str, Any] = {}
        if endpoint is not None and is_this_machine(endpoint):
            self._options["proxies"] = {}
            # Asked without the machine's own role, which would be a network call of seconds.
            for provider in ("iam-role", "container-role"):
                core.get_component("credential_provider").remove(provider)
            if core.get_credentials() is None:
                core.set_credentials("stand-in", "stand-in")
        self._settings = settings
        self._endpoint = endpoint
        self._session = boto3.session.Session(botocore_session=core, region_name=region or settings.ses_region)

    def make(
        self, service: str, *, checked: bool = True, connections: int = 1, read_timeout: float | None = None
    ) -> Any:
        """A client of a service, safe to share between threads. Not `checked`: without botocore's check of types."""
        return self._session.client(
            service,
            endpoint_url=self._endpoint,
            config=Config(
                # Explicit: both environment and library defaults would repeat a request.
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=self._settings.connect_timeout,
                read_timeout=read_timeout or self._settings.read_timeout,
                tcp_keepalive=True,
                max_pool_connections=connections,
                parameter_validation=checked,
                **self._options,
            ),
        )


def is_this_machine(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
