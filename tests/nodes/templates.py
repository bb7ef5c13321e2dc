"""Chat templates that know functions, each as a family of models has it, and tokenizers with their special tokens."""

from __future__ import annotations

from collections.abc import Sequence

from nodes.text import Tokenizer
from tests.nodes.models import CHAT_TEMPLATE, make_tokenizer

_TURNS = "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
_ASSISTANT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

# Calls in tags, each by itself; functions in the system message; results as the user's words.
TAGS = (
    "{{ bos_token }}{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}{% for message in messages %}"
    "{% if message['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message['content'] }}\n</tool_response>"
    f"{{% else %}}{_TURNS}"
    "{% for call in message.get('tool_calls', []) %}{% if not loop.first or message['content'] %}{{ '\\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}{% endif %}<|im_end|>\n{% endfor %}" + _ASSISTANT
)

# A special token before a list of all calls; ids of nine characters only.
LIST = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{% if tools and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ message['content'] }}[/INST]{% elif message.get('tool_calls') %}[TOOL_CALLS] ["
    "{% for call in message['tool_calls'] %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids have 9') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}{% elif message['role'] == 'tool' %}"
    '[TOOL_RESULTS] {"content": {{ message["content"] | tojson }}, "call_id": "{{ message["tool_call_id"] }}"}'
    "[/TOOL_RESULTS]{% elif message['role'] == 'system' %}{{ raise_exception('no system') }}"
    "{% else %} {{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
LIST_TOKENS = ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]")

# An answer is one call from its first character, or it is none.
BARE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'user' and tools and loop.last %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "{% endif %}{% if message.get('tool_calls') %}{% if message['tool_calls'] | length != 1 %}"
    "{{ raise_exception('one at a time') }}{% endif %}"
    '{"name": "{{ message[\'tool_calls\'][0].function.name }}", '
    "\"parameters\": {{ message['tool_calls'][0].function.arguments | tojson }}}"
    "{% else %}{{ message['content'] }}{% endif %}<|im_end|>\n{% endfor %}" + _ASSISTANT
)

# Takes no system message and wants roles to take turns.
TURNS = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns') }}{% endif %}" + _TURNS + "<|im_end|>\n{% endfor %}" + _ASSISTANT
)
PLAIN = CHAT_TEMPLATE


def tokenizer_with(template: str, special: Sequence[str] = ()) -> Tokenizer:
    fast = make_tokenizer(template)
    fast.add_tokens(list(special), special_tokens=True)
    return Tokenizer(fast, {2})
