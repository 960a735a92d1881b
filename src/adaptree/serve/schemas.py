"""What requests and answers look like; unknown fields are refused, and so is what is of another type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TASK = Field(
    min_length=1,
    max_length=1000,
    description="A task's name, name@version, name@tag, or a composition: stack(a, b).",
    examples=["reviews"],
)
WHOLE = BeforeValidator(lambda value: int(value) if value.__class__ is float and value % 1 == 0 else value)
"""JSON does not tell 3.0 from 3."""
Text = Annotated[str, Field(examples=["great phone"])]
Texts = Annotated[list[str], Field(max_length=10_000)]


class Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Input(Given):
    """One input: which fields it has depends on the task's kind."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})
    text: Text = Field("", description="The text.")
    text_pair: str = Field("", description="The second text, for a task that takes two.")
    tokens: Texts = Field([], description="The words of the text, for a task that tags them.")
    question: str = Field("", description="The question, for a task that answers from a context.")
    context: str = Field("", description="Where the answer is; or what choices are about.")
    choices: Texts = Field([], description="What to choose from.")


class Item(Input):
    """An input and the task that it is for."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 2})
    task: str = TASK


AnyInput = str | Annotated[list[str], Field(max_length=10_000)] | Input
"""A text; two texts or a list of words; or an object."""
TopK = Annotated[int, Field(ge=1, le=10_000, description="Scores of so many labels only, the highest."), WHOLE]
MinScore = Annotated[float, Field(ge=0, le=1, description="Abstain below this probability: the label is null.")]
Timeout = Annotated[float, Field(ge=0.1, le=3600, description="Seconds after which the answer is of no use any more.")]


class Options(Given):
    """How answers are made."""

    top_k: TopK | None = None
    min_score: MinScore | None = None
    timeout: Timeout | None = None


class MixedRequest(Options):
    """Inputs for any tasks."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "items": [
                        {"task": "reviews", "text": "great phone"},
                        {"task": "tickets", "text": "it does not start"},
                    ]
                }
            ]
        }
    )
    items: list[Item]


class TaskRequest(Options):
    """Inputs for one task."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["great phone"], "top_k": 3}]})
    inputs: list[AnyInput]


class Tensor(Given):
    """A tensor of the Open Inference Protocol."""

    name: Literal["text", "text_pair"]
    shape: list[Annotated[int, Field(ge=0), WHOLE]] = Field(max_length=8, description="[n], or [n, 1].")
    datatype: Literal["BYTES"]
    data: list[str | list[str]] = Field([], description="As many texts as the shape says.")
    parameters: dict[str, Any] = {}


class Wanted(Given):
    """An output that is asked for."""

    name: Literal["label", "score", "value", "prediction"]
    parameters: dict[str, Any] = {}


class InferRequest(Given):
    """A request of the Open Inference Protocol: a tensor 'text', for pairs a second one 'text_pair'."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "1",
                    "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["great phone"]}],
                    "outputs": [{"name": "label"}, {"name": "score"}],
                }
            ]
        }
    )
    id: str = Field("", max_length=256)
    inputs: list[Tensor] = Field(min_length=1, max_length=2)
    outputs: list[Wanted] | None = Field(None, max_length=16)
    parameters: dict[str, Any] = {}


# Answers, as the documentation shows them.


class Prediction(BaseModel):
    """What `adaptree predict --format jsonl` prints: of labels, these; other kinds have fields of their own."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [{"label": "positive", "score": 0.98, "scores": {"positive": 0.98, "negative": 0.02}}]
        },
    )


class Predictions(BaseModel):
    predictions: list[Prediction]


class TaskPredictions(Predictions):
    task: str


class Error(BaseModel):
    code: str = Field(examples=["task_not_found"])
    message: str = Field(examples=["no task 'revews'."])
    hint: str = Field(examples=["Did you mean 'reviews'?"])


class ErrorBody(BaseModel):
    error: Error


class MixedPredictions(BaseModel):
    """A prediction for each item, or what was wrong with it."""

    predictions: list[ErrorBody | Prediction]


class TaskSummary(BaseModel):
    """A line of `adaptree list`."""

    model_config = ConfigDict(extra="allow")
    name: str
    version: int


class TaskPage(BaseModel):
    tasks: list[TaskSummary]
    next: str | None = Field(description="What to give as `after` for the next page; null on the last one.")


class TaskDetails(BaseModel):
    """A task's record."""

    model_config = ConfigDict(extra="allow")
    name: str
    version: int
    versions: list[int]
    tags: dict[str, int]


class Added(BaseModel):
    """One version of an uploaded bundle."""

    task: str
    was: str
    here: bool
    part: bool
    signed_by: list[str]
    notes: list[str]


class Upload(BaseModel):
    tasks: list[Added]


class Removed(BaseModel):
    removed: int


class Status(BaseModel):
    status: str


class ServerInfo(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorInfo(BaseModel):
    name: str
    datatype: str
    shape: list[int]


class ModelInfo(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


class OutputTensor(TensorInfo):
    data: list[Any]


class InferAnswer(BaseModel):
    model_name: str
    model_version: str | None = None
    id: str | None = None
    outputs: list[OutputTensor]
