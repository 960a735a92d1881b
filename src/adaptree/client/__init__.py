"""A client of `adaptree serve`.

    client = Client("http://127.0.0.1:8080", key="at_…")
    client.predict("reviews", ["great phone"])                  # [{"label": …, "score": …, "scores": {…}}]
    client.predict_mixed([("reviews", "great phone"), ("tickets", "it does not start")])
    client.complete("replies", "My parcel is late.").text       # a task that writes; chat(…) takes messages
    client.train("reviews.csv", name="reviews").wait()          # a job: .events(), .cancel(), .retry()

    async with AsyncClient("http://127.0.0.1:8080") as client:
        await client.predict("reviews", ["great phone"])

A server that is busy is asked again, when it says so. An error of the server is an AdaptreeError with its message and
hint, and its status and code.
"""

from __future__ import annotations

from adaptree.client.asking import Input as Input
from adaptree.client.asking import ServerError as ServerError
from adaptree.client.clients import AsyncClient as AsyncClient
from adaptree.client.clients import Client as Client
from adaptree.client.jobs import AsyncJob as AsyncJob
from adaptree.client.jobs import Job as Job
from adaptree.client.jobs import JobFailed as JobFailed
from adaptree.client.texts import Completion as Completion
