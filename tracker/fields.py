"""Types of the fields of the OpenAI API's requests: what each value may be, and what it is read as."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

MAX_CHOICES = 4
MAX_STOPS = 4
MAX_STOP_CHARS = 1000
MAX_BIASES = 300
MAX_BIAS = 100
MAX_TOP_LOGPROBS = 20  # of a chat; a completion's logprobs are at most 5, as OpenAI has it
MAX_USER_CHARS = 512  # as its column
MAX_METADATA = 16  # entries
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512
MAX_SAFETY_CHARS = 128  # as OpenAI has it
NO_TEXT = "holds half a surrogate pair, which is no text"
INT64 = (-(2**63), 2**63 - 1)


def whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 and 1e8 are whole."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def stop_list(value: Any) -> Any:
    """null, a text or a list of texts, as a list. An empty text would stop before the first character: refused."""
    stops = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"must be a string, or a list of up to {MAX_STOPS} strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"has {len(stops)} entries; up to {MAX_STOPS} are allowed")
    if any(not stop or len(stop) > MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"must be strings of 1 to {MAX_STOP_CHARS} characters")
    return [is_writable(stop) for stop in stops]


def one_prompt(value: Any) -> Any:
    """A list is one of a single prompt."""
    if isinstance(value, list) and len(value) != 1:
        raise ValueError(f"has {len(value)} entries; send one prompt a request")
    return value[0] if isinstance(value, list) else value


def is_name(value: str) -> str:
    """Fit for a database: PostgreSQL refuses NUL."""
    if "\0" in value:
        raise ValueError("holds a NUL character")
    return is_writable(value)


def is_writable(value: str) -> str:
    """Half a surrogate pair has no UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(NO_TEXT) from None
    return value


def bias_table(value: Any) -> Any:
    """{"50256": -100}: token ids of the model, as JSON writes keys, and what is added to their logits."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(re.fullmatch("[0-9]{1,10}", key) for key in value):
        raise ValueError("must be an object whose keys are token ids")
    if len(value) > MAX_BIASES:
        raise ValueError(f"has {len(value)} entries; up to {MAX_BIASES} are allowed")
    if not all(type(bias) in (int, float) and -MAX_BIAS <= bias <= MAX_BIAS for bias in value.values()):
        raise ValueError(f"must hold numbers from -{MAX_BIAS} to {MAX_BIAS}")
    if len({int(key) for key in value}) < len(value):
        raise ValueError("names a token twice")
    return {str(int(key)): float(bias) for key, bias in value.items()}


def metadata_table(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("must be an object whose values are strings")
    if len(value) > MAX_METADATA:
        raise ValueError(f"has {len(value)} entries; up to {MAX_METADATA} are allowed")
    if not all(1 <= len(key) <= MAX_METADATA_KEY_CHARS for key in value):
        raise ValueError(f"must have keys of 1 to {MAX_METADATA_KEY_CHARS} characters")
    if any(len(text) > MAX_METADATA_VALUE_CHARS for text in value.values()):
        raise ValueError(f"must have values of up to {MAX_METADATA_VALUE_CHARS} characters")
    return {is_name(key): is_name(text) for key, text in value.items()}


Choices = Annotated[int, BeforeValidator(whole), Field(ge=1, le=MAX_CHOICES)]
Tokens = Annotated[int, BeforeValidator(whole), Field(ge=1)]
Seed = Annotated[int, BeforeValidator(whole), Field(ge=INT64[0], le=INT64[1])]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[str, Field(pattern="^[0-9]{1,10}$")]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
AsBiases = Annotated[dict[TokenId, Bias], Field(max_length=MAX_BIASES)] | None  # As…: how requests may write it
Biases = Annotated[dict[str, float], BeforeValidator(bias_table, json_schema_input_type=AsBiases)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
AsStops = Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None
Stops = Annotated[list[str], BeforeValidator(stop_list, json_schema_input_type=AsStops)]
Text = Annotated[str, Field(min_length=1), AfterValidator(is_writable)]
AsPrompt = Text | Annotated[list[Text], Field(min_length=1, max_length=1)]
Prompt = Annotated[Text, BeforeValidator(one_prompt, json_schema_input_type=AsPrompt)]
Name = Annotated[str, AfterValidator(is_name)]
Metadata = Annotated[dict[str, str], BeforeValidator(metadata_table)]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)
