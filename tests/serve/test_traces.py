"""Traces: a span for each request, in the client's own trace, without texts, names or keys."""

from __future__ import annotations

import pytest

from tests.serve.serving import World, served


def test_a_request_is_a_span_of_the_clients_trace(world: World) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="traces: pip install 'adaptree[traces]'")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from adaptree.serve.traces import Traces

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with served(world, traces=Traces(provider.get_tracer("test"))) as (ask, _):
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Request-Id": "me"}
        assert ask.post("/v1/tasks/words/predict", {"inputs": ["SECRET"]}, headers=headers).status == 200
        assert ask.get("/v1/tasks/nothing", headers={"traceparent": "nonsense"}).status == 404
    spans = {span.name: span for span in kept.get_finished_spans()}
    good = spans["/v1/tasks/{task}/predict"]
    assert good.attributes is not None
    assert f"{good.context.trace_id:032x}" == trace
    assert good.attributes["http.response.status_code"] == 200
    assert (good.attributes["adaptree.request_id"], good.attributes["adaptree.texts"]) == ("me", 1)
    assert "SECRET" not in str(good.to_json())
    assert "words" not in str(good.to_json())
    assert spans["/v1/tasks/{task}"].attributes is not None
