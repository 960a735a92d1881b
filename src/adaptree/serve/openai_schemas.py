"""Requests and answers in OpenAI's shape; of its options those that change what is written are taken, or refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from adaptree.data.decoding import Decoding
from adaptree.serve.schemas import TASK, WHOLE, Given, Timeout

Whole = Annotated[int, Field(ge=1, le=1_000_000), WHOLE]
Seed = Annotated[int, Field(ge=0, lt=2**63), WHOLE]
Zero = Annotated[float, Field(ge=0, le=0)]
NO_TRUTH = BeforeValidator(lambda value: str(value) if value.__class__ is bool else value)
"""Python takes true for 1, and JSON does not."""
NO_NUMBER = BeforeValidator(lambda value: str(value) if value.__class__ in (int, float) else value)
One = Annotated[Literal[1], WHOLE, NO_TRUTH]
No = Annotated[Literal[False], NO_NUMBER]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class StreamOptions(Given):
    """What a stream tells beside the text."""

    include_usage: bool | None = Field(None, description="A last piece with the tokens that were used.")


class WritingRequest(Given):
    """What both kinds of request have."""

    model: str = TASK
    max_tokens: Whole | None = Field(None, description="The most tokens of a text. Default: 128, if there is room.")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="0, the default, takes the likeliest token each time; above, tokens are drawn."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Draw from the likeliest tokens that have this probability together."
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = Field(
        None, description="The text ends before the first of these."
    )
    seed: Seed | None = Field(None, description="The same seed draws the same text. Default: another each time.")
    stream: bool | None = Field(None, description="Send the text piece by piece, as server-sent events.")
    stream_options: StreamOptions | None = None
    timeout: Timeout | None = None
    n: One | None = Field(None, description="One text for each prompt is written.")
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    user: Annotated[str, Field(max_length=1000)] | None = Field(None, description="Not used.")

    @property
    def most(self) -> int | None:
        return self.max_tokens

    def decoding(self, seed: int) -> Decoding:
        """Return how the text is chosen: without a temperature as `adaptree predict` does, unless there is a top_p."""
        top_p = 1.0 if self.top_p is None else self.top_p
        temperature = self.temperature if self.temperature is not None else float(top_p < 1)
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Decoding(
            max_new_tokens=self.most,
            temperature=temperature,
            top_p=top_p if temperature else 1.0,
            stop=tuple(stop),
            seed=seed if self.seed is None else self.seed,
        )


class CompletionRequest(WritingRequest):
    """A prompt, or several; each goes into the task's template."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "replies", "prompt": "My parcel is late.", "max_tokens": 40}]}
    )
    prompt: str | Annotated[list[str], Field(min_length=1)]
    logprobs: None = None
    echo: No | None = None
    best_of: One | None = None
    suffix: None = None


class TextPart(Given):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(Given):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: Annotated[str, Field(max_length=1000)] | None = Field(None, description="Not used.")

    def plain(self) -> dict[str, str]:
        """Return the message as templates take it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class TextFormat(Given):
    """The one form of answers that there is."""

    type: Literal["text"]


class ChatRequest(WritingRequest):
    """The messages of a chat so far; the task writes the next one."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "replies", "messages": [{"role": "user", "content": "My parcel is late."}]}]
        }
    )
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Whole | None = Field(None, description="The newer name of max_tokens.")
    logprobs: No | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    response_format: TextFormat | None = None

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


# Answers, as the documentation shows them.


class TokenCounts(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: None
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    id: str = Field(examples=["cmpl-8f14e45fceea167a"])
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TokenCounts


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    id: str = Field(examples=["chatcmpl-8f14e45fceea167a"])
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenCounts


class LanguageModel(BaseModel):
    """A task that writes texts."""

    id: str = Field(examples=["replies"])
    object: Literal["model"]
    created: int
    owned_by: str


class LanguageModels(BaseModel):
    object: Literal["list"]
    data: list[LanguageModel]
