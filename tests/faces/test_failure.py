"""How failures look in Dagster, which keeps what it is told for ever."""

from __future__ import annotations

import dagster as dg
import pytest

from assets.failure import explained
from mailpipe.errors import CampaignError, ServiceError


def test_a_persons_mistake_is_told_in_its_own_words_without_a_traceback() -> None:
    with pytest.raises(dg.Failure) as told, explained():
        raise CampaignError("no campaign 'x'; `mailpipe campaign list` shows them")
    assert told.value.description == "no campaign 'x'; `mailpipe campaign list` shows them"
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__
    assert told.value.allow_retries is False


def test_a_fault_stays_a_fault() -> None:
    with pytest.raises(ServiceError, match="SES GetAccount: gone"), explained():
        raise ServiceError("SES GetAccount: gone")


def test_an_address_in_a_fault_is_masked_wherever_in_its_chain_it_stands() -> None:
    with pytest.raises(dg.Failure) as told, explained():
        raise ValueError('Key (lower(email))=(ana@shop.example.com) exists, see "Ana <ana@shop.example.com>"')
    assert told.value.description is not None
    assert "ana@" not in told.value.description
    assert told.value.description.startswith("ValueError: Key (lower(email))=(<address>) exists")

    with pytest.raises(dg.Failure) as told, explained():
        raise RuntimeError("the chunk cannot be read") from ValueError("ana@shop.example.com")
    assert told.value.description == "RuntimeError: the chunk cannot be read"
    assert told.value.__suppress_context__


def test_an_interrupt_passes() -> None:
    with pytest.raises(dg.DagsterExecutionInterruptedError), explained():
        raise dg.DagsterExecutionInterruptedError
