"""How much is asked of a service: the kinds of demand, of which a workload states one."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from sizing.specs.base import Spec, Text
from sizing.units import parse_duration_s

# A request in twelve days: with fewer the clock of a simulated run is so far on that steps are lost in its last digits.
LEAST_REQUESTS_PER_S = 1e-6
LEAST_REQUESTS_EACH = 1e-3  # of a user a day, of a session, a call, a document: who asks once in a thousand is none

Rate = Annotated[float, Field(ge=LEAST_REQUESTS_PER_S, le=1e9, strict=True)]
People = Annotated[float, Field(gt=0, le=1e11, strict=True)]
Yearly = Annotated[float, Field(gt=0, le=1e15, strict=True)]
RequestsEach = Annotated[float, Field(ge=LEAST_REQUESTS_EACH, le=1e9, strict=True)]


def _is_duration(text: str) -> str:
    parse_duration_s(text)
    return text


Duration = Annotated[Text, AfterValidator(_is_duration), Field(description="a duration with its unit (10min)")]


class Sessions(Spec):
    """People at work at the same time at the peak, each with so many requests in a session of this length."""

    concurrent_users: People
    requests_per_session: RequestsEach
    session_length: Duration

    @property
    def requests_per_s(self) -> float:
        """Requests/s of them all: users * requests / seconds of a session."""
        return self.concurrent_users * self.requests_per_session / self.session_s

    @property
    def session_s(self) -> float:
        """Length of a session in seconds."""
        return parse_duration_s(self.session_length)


class CallsPerYear(Spec):
    """Calls of a year, each with so many requests: stated, or as minutes of a call and requests a minute."""

    calls: Yearly
    requests_per_call: RequestsEach | None = None
    minutes: Annotated[float, Field(gt=0, le=1e6, strict=True)] | None = None
    requests_per_minute: Annotated[float, Field(gt=0, le=1e6, strict=True)] | None = None

    @model_validator(mode="after")
    def _counts_requests_once(self) -> CallsPerYear:
        by_time = (self.minutes, self.requests_per_minute)
        if (self.requests_per_call is None) == (by_time == (None, None)) or by_time.count(None) == 1:
            raise ValueError("state requests_per_call, or minutes and requests_per_minute")
        return self

    @property
    def requests_each(self) -> float:
        """Requests of one call."""
        if self.requests_per_call is not None:
            return self.requests_per_call
        assert self.minutes is not None and self.requests_per_minute is not None  # validated
        return self.minutes * self.requests_per_minute


class DocumentsPerYear(Spec):
    """Documents of a year, each with so many requests."""

    documents: Yearly
    requests_per_document: RequestsEach = 1.0


class Demand(Spec):
    """One kind of demand, exactly: rates and requests in flight are those of the peak, users of a day, counts of a year.

    A trace is a file of arrivals, whose mean and busiest minute count.
    """

    requests_per_s: Rate | None = None
    concurrency: Annotated[int, Field(gt=0, le=10**9, strict=True)] | None = None
    daily_active_users: People | None = None
    sessions: Sessions | None = None
    calls_per_year: CallsPerYear | None = None
    documents_per_year: DocumentsPerYear | None = None
    mean_requests_per_s: Rate | None = None
    trace: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> Demand:
        kinds = type(self).model_fields
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"state exactly one of {', '.join(kinds)}" + (f" (given: {', '.join(given)})" if given else "")
            )
        return self

    @property
    def kind(self) -> str:
        """The name of the kind that is stated."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)
