"""All SES operations that send nothing: account, templates, configuration sets, suppression list. One table
of routes."""

import base64
import binascii
import math
import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, TypeVar

from mailpipe.simulator.account import Account, ConfigurationSets
from mailpipe.simulator.rules import InvalidFieldError, configuration_set_name, template_data
from mailpipe.simulator.suppression import REASONS, SuppressionList
from mailpipe.simulator.templates import Templates, mime_text, missing_variable_text
from mailpipe.simulator.wire import ApiError, JsonObject, bad_request, flag_member, text_member

_Item = TypeVar("_Item")


class Call(NamedTuple):
    """One request: the variable part of its path ('' if it has none), its query, its members."""

    name: str
    query: dict[str, list[str]]
    request: JsonObject


class Administration:
    """The operations, by the names of the service model."""

    def __init__(
        self, account: Account, templates: Templates, sets: ConfigurationSets, suppression: SuppressionList
    ) -> None:
        self._account = account
        self._templates = templates
        self._sets = sets
        self._suppression = suppression
        self.operations: dict[str, Callable[[Call], JsonObject]] = {
            "GetAccount": self.get_account,
            "PutAccountSendingAttributes": self.put_account_sending_attributes,
            "CreateEmailTemplate": self.create_email_template,
            "UpdateEmailTemplate": self.update_email_template,
            "GetEmailTemplate": self.get_email_template,
            "DeleteEmailTemplate": self.delete_email_template,
            "ListEmailTemplates": self.list_email_templates,
            "TestRenderEmailTemplate": self.test_render_email_template,
            "CreateConfigurationSet": self.create_configuration_set,
            "GetConfigurationSet": self.get_configuration_set,
            "DeleteConfigurationSet": self.delete_configuration_set,
            "ListConfigurationSets": self.list_configuration_sets,
            "PutConfigurationSetSendingOptions": self.put_configuration_set_sending_options,
            "PutSuppressedDestination": self.put_suppressed_destination,
            "GetSuppressedDestination": self.get_suppressed_destination,
            "DeleteSuppressedDestination": self.delete_suppressed_destination,
            "ListSuppressedDestinations": self.list_suppressed_destinations,
        }

    def get_account(self, _call: Call) -> JsonObject:
        return self._account.describe(time.monotonic())

    def put_account_sending_attributes(self, call: Call) -> JsonObject:
        self._account.sending_enabled = flag_member(call.request, "SendingEnabled")
        return {}

    def create_email_template(self, call: Call) -> JsonObject:
        self._templates.create(text_member(call.request, "TemplateName"), call.request.get("TemplateContent"))
        return {}

    def update_email_template(self, call: Call) -> JsonObject:
        self._templates.update(call.name, call.request.get("TemplateContent"))
        return {}

    def get_email_template(self, call: Call) -> JsonObject:
        template = self._templates.get(call.name)
        return {"TemplateName": template.name, "TemplateContent": template.content, "Tags": []}

    def delete_email_template(self, call: Call) -> JsonObject:
        self._templates.delete(call.name)
        return {}

    def list_email_templates(self, call: Call) -> JsonObject:
        templates = self._templates.listed()
        page, rest = _page([(t.name, t.created) for t in templates], call.query, default_size=10)
        return {"TemplatesMetadata": [{"TemplateName": n, "CreatedTimestamp": at} for n, at in page]} | rest

    def test_render_email_template(self, call: Call) -> JsonObject:
        template = self._templates.get(call.name)
        try:
            data = template_data(call.request.get("TemplateData"), "TemplateData")
        except InvalidFieldError as error:
            raise bad_request(f"{error}.") from None
        missing = template.variables - data.keys()
        if missing:
            raise bad_request(missing_variable_text(min(missing)))
        return {"RenderedTemplate": mime_text(template.render(data))}

    def create_configuration_set(self, call: Call) -> JsonObject:
        name = configuration_set_name(text_member(call.request, "ConfigurationSetName"))
        options = call.request.get("SendingOptions")
        self._sets.create(name, flag_member(options, "SendingEnabled") if isinstance(options, dict) else True)
        return {}

    def get_configuration_set(self, call: Call) -> JsonObject:
        enabled = self._sets.enabled(call.name)
        return {"ConfigurationSetName": call.name, "SendingOptions": {"SendingEnabled": enabled}, "Tags": []}

    def delete_configuration_set(self, call: Call) -> JsonObject:
        self._sets.delete(call.name)
        return {}

    def list_configuration_sets(self, call: Call) -> JsonObject:
        query = {name: [str(call.request[name])] for name in ("NextToken", "PageSize") if call.request.get(name)}
        page, rest = _page(self._sets.listed(), query, default_size=1000)
        return {"ConfigurationSets": page} | rest

    def put_configuration_set_sending_options(self, call: Call) -> JsonObject:
        self._sets.switch(configuration_set_name(call.name), flag_member(call.request, "SendingEnabled"))
        return {}

    def put_suppressed_destination(self, call: Call) -> JsonObject:
        self._suppression.put(text_member(call.request, "EmailAddress"), call.request.get("Reason"))
        return {}

    def get_suppressed_destination(self, call: Call) -> JsonObject:
        entry = self._suppression.get(call.name)
        return {
            "SuppressedDestination": {
                "EmailAddress": entry.address,
                "Reason": entry.reason,
                "LastUpdateTime": entry.updated,
            }
        }

    def delete_suppressed_destination(self, call: Call) -> JsonObject:
        self._suppression.delete(call.name)
        return {}

    def list_suppressed_destinations(self, call: Call) -> JsonObject:
        reasons = call.query.get("Reason", [])
        if not set(reasons) <= set(REASONS):
            raise bad_request("Reason must be BOUNCE or COMPLAINT.")
        start, end = _instant(call.query, "StartDate", -math.inf), _instant(call.query, "EndDate", math.inf)
        page, rest = _page(self._suppression.listed(reasons, start, end), call.query, default_size=1000)
        summaries = [
            {"EmailAddress": entry.address, "Reason": entry.reason, "LastUpdateTime": entry.updated} for entry in page
        ]
        return {"SuppressedDestinationSummaries": summaries} | rest


def _page(items: list[_Item], query: dict[str, list[str]], default_size: int) -> tuple[list[_Item], JsonObject]:
    """One page, and NextToken (the offset, made opaque) if there is another. Raises ApiError for a foreign
    token."""
    try:
        size = int(query.get("PageSize", [str(default_size)])[0])
    except ValueError:
        raise bad_request("PageSize must be a number.") from None
    start = 0
    if "NextToken" in query:
        try:
            start = int(base64.urlsafe_b64decode(query["NextToken"][0]))
        except (binascii.Error, ValueError):
            raise ApiError(
                "InvalidNextTokenException", "The specified request includes an invalid or expired token."
            ) from None
    end = start + max(1, size)
    rest = {"NextToken": base64.urlsafe_b64encode(str(end).encode()).decode()} if end < len(items) else {}
    return items[start:end], rest


def _instant(query: dict[str, list[str]], name: str, default: float) -> float:
    if name not in query:
        return default
    try:
        return datetime.fromisoformat(query[name][0]).timestamp()
    except ValueError:
        raise bad_request(f"{name} must be an ISO 8601 instant.") from None


_ROUTES: dict[tuple[str, tuple[str, ...]], str] = {
    ("POST", ("outbound-bulk-emails",)): "SendBulkEmail",
    ("POST", ("outbound-emails",)): "SendEmail",
    ("GET", ("account",)): "GetAccount",
    ("PUT", ("account", "sending")): "PutAccountSendingAttributes",
    ("POST", ("templates",)): "CreateEmailTemplate",
    ("GET", ("templates",)): "ListEmailTemplates",
    ("PUT", ("templates", "*")): "UpdateEmailTemplate",
    ("GET", ("templates", "*")): "GetEmailTemplate",
    ("DELETE", ("templates", "*")): "DeleteEmailTemplate",
    ("POST", ("templates", "*", "render")): "TestRenderEmailTemplate",
    ("POST", ("configuration-sets",)): "CreateConfigurationSet",
    ("GET", ("configuration-sets", "*")): "GetConfigurationSet",
    ("DELETE", ("configuration-sets", "*")): "DeleteConfigurationSet",
    ("POST", ("list-configuration-sets",)): "ListConfigurationSets",
    ("PUT", ("configuration-sets", "*", "sending")): "PutConfigurationSetSendingOptions",
    ("PUT", ("suppression", "addresses")): "PutSuppressedDestination",
    ("GET", ("suppression", "addresses")): "ListSuppressedDestinations",
    ("GET", ("suppression", "addresses", "*")): "GetSuppressedDestination",
    ("DELETE", ("suppression", "addresses", "*")): "DeleteSuppressedDestination",
}


def route(method: str, segments: list[str]) -> tuple[str, str]:
    """Operation and the variable part of the path, given the path's decoded segments. Raises ApiError."""
    if segments[:2] == ["v2", "email"]:
        rest = tuple(segments[2:])
        exact = _ROUTES.get((method, rest))
        if exact:
            return exact, ""
        variable_at = 2 if rest[:1] == ("suppression",) else 1
        if len(rest) > variable_at:
            pattern = (*rest[:variable_at], "*", *rest[variable_at + 1 :])
            operation = _ROUTES.get((method, pattern))
            if operation:
                return operation, rest[variable_at]
    raise ApiError("UnknownOperationException", "The stand-in has no such operation.", 404)
