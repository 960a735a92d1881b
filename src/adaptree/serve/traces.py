"""OpenTelemetry: a span for each request, joined to the trace that the client says it belongs to.

Where spans go is told by OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptree.errors import AdaptreeError


class Span:
    """A request under way."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def end(self, route: str, status: int, state: Mapping[str, Any]) -> None:
        """Say how it ended: never with texts, keys or tasks' names."""
        self._span.update_name(route)
        self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        for name in ("tasks", "texts"):
            self._span.set_attribute(f"adaptree.{name}", state.get(name, 0))
        self._span.end()


class Traces:
    """Begins spans with a tracer of OpenTelemetry."""

    def __init__(self, tracer: Any) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        self._tracer, self._extract, self._kind = tracer, extract, SpanKind.SERVER

    def begin(self, headers: Mapping[bytes, bytes], method: str, id: str) -> Span:
        carried = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        about = {"http.request.method": method, "adaptree.request_id": id}
        context = self._extract({name: carried[name] for name in ("traceparent", "tracestate") if name in carried})
        return Span(self._tracer.start_span(method, context=context, kind=self._kind, attributes=about))


def start_traces() -> Traces:
    """Return what traces requests and sends the spans on; raise an error if the packages are not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise AdaptreeError(f"traces need {error.name}.", hint='pip install "adaptree[traces]"') from error
    provider = TracerProvider(resource=Resource.create({"service.name": "adaptree"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider.get_tracer("adaptree"))
