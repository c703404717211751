"""What a reader of a queue says when it cannot read."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from mailpipe.feedback import poll


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ClientError({"Error": {"Code": "AccessDenied", "Message": "secret"}}, "ReceiveMessage"), "AccessDenied"),
        (ClientError({}, "ReceiveMessage"), "ClientError"),
        (EndpointConnectionError(endpoint_url="https://sqs.example.com"), "EndpointConnectionError"),
    ],
)
def test_an_error_is_told_in_a_word_that_can_be_looked_up(error: Exception, word: str) -> None:
    assert poll.told(error) == word
