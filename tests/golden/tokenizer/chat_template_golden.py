#!/usr/bin/env python3
"""Writes chat_templates.json: what transformers makes of chat templates, for io::chat_template.

    chat_template_golden.py [FOLDER]   FOLDER: published templates, NAME.jinja: `trl/chat_templates` of the package `trl` (1.16.0)

- `features`: short templates with the text that transformers' environment renders, or null where it refuses.
- `templates`: templates in the style of published ones, written for this file, and the hash (XXH64) of each conversation's rendering.
- `published`: hashes of the published ones' renderings, which the test [published] compares where it is given the FOLDER.

transformers 5.24.0, jinja2 3.1.6 and xxhash wrote what is committed. The clock stands at NOW, in UTC.
"""
import datetime
import json
import os
import pathlib
import sys
import time

os.environ["TZ"] = "UTC"
time.tzset()
import transformers.utils.chat_template_utils as utils  # noqa: E402
import xxhash  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
NOW = 1772701200


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW)


utils.datetime = Clock


def tool(name, description, properties, required):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": required}}}


TOOLS = [
    tool("get_weather", "Weather of a place; \"now\" <or> later & so on",
         {"place": {"type": "string", "description": "Ort, z.B. Köln"},
          "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, ["place"]),
    tool("add", "Adds numbers",
         {"a": {"type": "number"}, "b": {"type": ["number", "null"], "minimum": 0.5},
          "more": {"type": "array", "items": {"type": "integer"}},
          "o": {"type": "object", "properties": {"x": {"type": "boolean"}}}}, ["a", "b"])]


def user(content):
    return {"role": "user", "content": content}


def answer(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(number, name, arguments):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, number, name):
    return {"role": "tool", "content": content, "tool_call_id": number, "name": name}


def chat(messages, prompt=True, **more):
    return {"messages": messages, "add_generation_prompt": prompt, "tools": None, "documents": None, **more}


CHATS = [
    chat([user("Hello")]),
    chat([system("Be brief."), user("Hello")], False),
    chat([user("Hi"), answer("Hello!"), user("Who are you?")]),
    chat([system("  padded \n"), user(" white \n space "), answer("\n answer "), user("ok?"), answer("yes")], False),
    chat([user("Grüße, 世界 🌍 <|im_end|> </s> é\u00a0\u2028x"), answer("Ünïcode 🎉"), user("\u3000tail\u3000")]),
    chat([user("")]),
    chat([system(""), user(""), answer(""), user("again")]),
    chat([user("Weather in Köln?")], tools=TOOLS),
    chat([system("You call tools."), user("Weather in Köln?"),
          answer("", tool_calls=[call("abcdefgh1", "get_weather", {"place": "Köln", "unit": "celsius"})]),
          result("{\"temp\": 21.5}", "abcdefgh1", "get_weather")], tools=TOOLS),
    chat([user("Add"), answer("Let me.", tool_calls=[
        call("abcdefgh1", "add", {"a": 1, "b": 2.0, "more": [1, 2], "o": {"x": True, "n": None}}),
        call("abcdefgh2", "add", {"a": -3, "b": 1e-7})]),
        result("3", "abcdefgh1", "add"), result("-3", "abcdefgh2", "add"), answer("3 and -3"), user("Thanks")], tools=TOOLS),
    chat([user("Think"), answer("<think>\nfirst\n</think>\n\nDone"), user("More"),
          answer("Sure", reasoning_content="because of x"), user("last")], enable_thinking=False),
    chat([user([{"type": "text", "text": "part one"}, {"type": "text", "text": " part two"}]), answer("ok"),
          user("x" * 50 + "\t\"quoted\" 'single' \\ back")],
         documents=[{"title": "A", "text": "first doc"}, {"title": "B", "text": "second\ndoc"}]),
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

# ---- in the style of published templates ----
STYLES = {
    "qwen-tools": r"""{%- macro shown(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- elif content is iterable and content is not mapping -%}
    {%- for part in content if part.type == 'text' -%}{{- part['text'] -}}{%- endfor -%}
  {%- else -%}{{- raise_exception('content of no known kind') -}}{%- endif -%}
{%- endmacro -%}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- shown(messages[0].content) + '\n\n' }}
    {%- endif %}
    {{- "# Functions\n\nSignatures are between <tools> and </tools>:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nAnswer with <tool_call>\n{\"name\": NAME, \"arguments\": OBJECT}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + shown(messages[0].content) + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(asked=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and not (message.content is string and message.content.startswith('<tool_response>')) %}
        {%- set ns.open = false %}
        {%- set ns.asked = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = shown(message.content) %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.asked and (loop.last or thoughts) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}
            {%- set tool_call = tool_call.function if tool_call.function else tool_call %}
            {{- '<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
""",
    "llama3-tools": r"""{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}{{- "Environment: ipython\n" }}{%- endif %}
{{- "Today: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("there is no first message") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
""",
    "mistral-tools": r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("turns should alternate") }}{%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("ids have nine characters") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}
        {%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("roles are user, assistant and tool") }}
    {%- endif %}
{%- endfor %}
""",
    "hermes": r"""{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if json_spec.type is string and basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "list[" + json_to_python_type(json_spec|items|selectattr('0', 'eq', 'items')|map(attribute=1)|first) + "]" }}
{%- elif json_spec.type == "object" %}
    {%- if json_spec.additionalProperties is defined %}{{- "dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']' }}{%- else %}{{- "dict" }}{%- endif %}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}{%- for t in json_spec.type %}{{- json_to_python_type({"type": t}) }}{%- if not loop.last %}{{- "," }}{%- endif %}{%- endfor %}{{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- if tools %}
{{- '<|im_start|>system\nFunctions: <tools> ' }}
{%- for tool in tools %}
    {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
    {{- '{"name": "' + tool.name + '", "description": "' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {{- param_name + ": " + json_to_python_type(param_fields) }}
        {%- if not loop.last %}{{- ", " }}{%- endif %}
    {%- endfor %}
    {{- ")" }}
    {{- ' - ' + tool.description + '\n\n' if tool.description else '' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {%- if loop.first %}{{- "    Args:\n" }}{%- endif %}
        {{- "        " + param_name + "(" + json_to_python_type(param_fields) + "): " + (param_fields.description|default('')|trim) + "\n" }}
    {%- endfor %}
    {{- '", "parameters": ' }}
    {%- if tool.parameters.properties | length == 0 %}{{- "{}" }}{%- else %}{{- tool.parameters|tojson }}{%- endif %}
    {{- "}" }}
    {%- if not loop.last %}{{- "\n" }}{%- endif %}
{%- endfor %}
{{- " </tools><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>' ~ '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
           {{- '\n<tool_call>\n' }}
           {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
           {{- '{"name": "' + tool_call.name + '", "arguments": ' + tool_call.arguments|tojson + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>tool\n' }}{%- endif %}
        {{- '<tool_response>\n' }}{{- message.content }}
        {%- if not loop.last %}{{- '\n</tool_response>\n' }}{%- else %}{{- '\n</tool_response>' }}{%- endif %}
        {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<|im_end|>' }}{%- elif loop.last %}{{- '<|im_end|>' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""",
    "gemma": r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("turns should alternate user/model") }}{%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model
'}}{%- endif -%}
""",
    "phi": r"""{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "phi3": r"""{% for message in messages %}
{% if message['role'] == 'system' and message['content'] %}
{{'<|system|>
' + message['content'] + '<|end|>
'}}
{% elif message['role'] == 'user' %}
{{'<|user|>
' + message['content'] + '<|end|>
'}}
{% elif message['role'] == 'assistant' %}
{% generation %}
{{'<|assistant|>
' + message['content'] + '<|end|>
'}}
{% endgeneration %}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|assistant|>
' }}
{% else %}
{{ eos_token }}
{% endif %}
""",
    "smollm3": r"""{# ───── defaults ───── #}
{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- set reasoning_mode = "/think" if enable_thinking else "/no_think" -%}
{{- "<|im_start|>system\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}{%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "## Metadata\n\nDate: " ~ strftime_now("%d %B %Y") ~ "\nReasoning Mode: " + reasoning_mode + "\n\n" -}}
{%- if custom_instructions -%}{{- custom_instructions + "\n\n" -}}{%- else -%}
  {%- if reasoning_mode == "/think" -%}{{- "Think between <think> and </think>.\n\n" -}}{%- endif -%}
{%- endif -%}
{%- if xml_tools or python_tools or tools -%}
  {{- "### Tools\n\n" -}}
  {%- set ns = namespace(xml_tool_string="<tools>\n") -%}
  {%- for tool in (xml_tools or tools)[:] -%}{%- set ns.xml_tool_string = ns.xml_tool_string ~ (tool | string) ~ "\n" -%}{%- endfor -%}
  {{- ns.xml_tool_string + "</tools>" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\n"  + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}{{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- else -%}{{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}{%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}{{ "<|im_start|>" + "user\n"  + content + "<|im_end|>\n" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if reasoning_mode == "/think" -%}{{ "<|im_start|>assistant\n" }}{%- else -%}{{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n"  }}{%- endif -%}
{%- endif -%}
""",
    "deepseek": r"""{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\n\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']|string}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{{'<|Calls|>' + tool['type'] + '<|sep|>' + tool['function']['name'] + '\n```json\n' + tool['function']['arguments']|tojson + '\n```'}}{%- set ns.is_first = true -%}{%- else %}{{'\n' + tool['function']['name']}}{%- endif %}{%- endfor %}{{'<|end|>'}}{%- elif message['role'] == 'assistant' %}{%- if ns.is_tool %}{{'<|outputs|>' + message['content'] + '<|end|>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + '<|end|>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<|output|>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\n<|output|>' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<|outputs end|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|>'}}{% endif %}""",
    "documents": r"""{%- set joined = [] -%}
{%- for message in messages -%}
{%- if loop.first %}{{ bos_token }}{% endif -%}
  <|{{ message.role | upper }}|>
  {%- if message.content is string %} {{ message.content | indent(2, true) }}{% else %}{{ message.content | map(attribute='text') | join('|') }}{% endif %}

{% endfor %}
{% if documents %}
{% for document in documents %}
  <doc id={{ loop.index }} of={{ loop.length }} left={{ loop.revindex0 }}{% if loop.changed(document.title) %} new{% endif %}>{{ document.title }}: {{ document['text'] | replace('\n', ' ') | title }}</doc>{{ loop.cycle('a', 'b') }}
{% else %}
none
{% endfor %}
{% endif %}
{%- for tool in tools or [] %}{{ tool.function.parameters.properties | dictsort | map('first') | join(',') }};{{ tool.function }}
{% endfor %}
""",
}

# ---- one thing each ----
DATA = {"s": "Hello, Wörld", "e": "", "n": 7, "f": 2.5, "yes": True, "nothing": None, "l": [3, 1, 2], "words": ["b", "A", "c"],
        "d": {"b": 1, "a": [1, {"x": None}], "items": "mine"}, "spaces": "  a b \n", "q": "it's \"so\"",
        "people": [{"n": "x", "a": 2}, {"n": "y", "a": 1}, {"n": "z"}]}
FEATURES = r"""
{{ s }}|{{ e }}|{{ n }}|{{ f }}|{{ yes }}|{{ nothing }}|{{ l }}|{{ d }}|{{ missing }}|{{ q }}|{{ [q, e] }}
{{ 1 + 2 * 3 - 4 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7 % -3 }}|{{ 2 ** 10 }}|{{ 7.5 // 2 }}|{{ 1e3 }}|{{ 1.5e-7 }}|{{ 1e16 }}|{{ 123456789.125 }}
{{ 1 < 2 < 3 }}|{{ 1 < 2 > 3 }}|{{ 'a' < 'b' }}|{{ [1, 2] < [1, 3] }}|{{ 1 == 1.0 }}|{{ 1 == true }}|{{ '1' == 1 }}|{{ none == missing }}
{{ not yes or e and missing }}|{{ e or 'other' }}|{{ s and n }}|{{ 'a' if e }}|{{ 'a' if n else 'b' }}|{{ 'x' if false else 'y' if false else 'z' }}
{{ 'ell' in s }}|{{ 3 in l }}|{{ 'b' in d }}|{{ 'x' not in d }}|{{ not 'x' in s }}|{{ 'a' in missing }}
{{ s[0] }}|{{ s[-1] }}|{{ s[7:9] }}|{{ s[::-1] }}|{{ s[:-5] }}|{{ l[1:] }}|{{ l[::-1] }}|{{ l[-1] }}|{{ l[9] }}|{{ l[::2] }}|{{ s[100:] }}|{{ l[5:1] }}
{{ d.b }}|{{ d['a'] }}|{{ d.items() | list }}|{{ d['items'] }}|{{ d.nope }}|{{ d.get('b') }}|{{ d.get('z', 5) }}|{{ d.get('z') }}|{{ d.keys() | list }}|{{ d.a[1].x }}|{{ l.0 }}
{{ d | tojson }}|{{ q | tojson }}|{{ s | tojson }}|{{ s | tojson(ensure_ascii=true) }}|{{ [] | tojson }}|{{ {} | tojson(indent=2) }}|{{ 1.0 | tojson }}|{{ '\x07\n\t\\' | tojson }}
{{ d | tojson(indent=2) }}|{{ d | tojson(sort_keys=true) }}|{{ l | tojson(separators=(',', ':')) }}|{{ {'a': {'b': []}} | tojson(indent=4) }}|{{ {1: true, none: 2} | tojson }}
{{ spaces | trim }}|{{ spaces.strip() }}|{{ spaces.lstrip() }}|{{ spaces.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'öaö' | trim('ö') }}|{{ 'abc'.lstrip('ba') }}
{{ s | upper }}|{{ s | lower }}|{{ 'éA bC' | capitalize }}|{{ "o'neil is (here)" | title }}|{{ "o'neil is-x".title() }}|{{ s.upper() }}|{{ 'aB'.capitalize() }}
{{ s | length }}|{{ d | length }}|{{ l | count }}|{{ missing | length }}|{{ s | wordcount }}
{{ missing | default('x') }}|{{ e | default('x') }}|{{ e | default('x', true) }}|{{ nothing | d('y') }}|{{ missing | default }}
{{ l | join('-') }}|{{ words | join }}|{{ people | join(',', attribute='n') }}|{{ ', '.join(words) }}|{{ 'abc' | join('.') }}
{{ l | first }}|{{ l | last }}|{{ [] | first }}|{{ s | first }}|{{ s | list }}|{{ d | list }}
{{ l | sort }}|{{ words | sort }}|{{ words | sort(case_sensitive=true) }}|{{ l | sort(reverse=true) }}|{{ people[:2] | sort(attribute='a') | map(attribute='n') | list }}|{{ d | dictsort }}
{{ people | selectattr('a') | map(attribute='n') | list }}|{{ people | rejectattr('a', 'defined') | list }}|{{ people | selectattr('n', 'equalto', 'y') | list }}|{{ l | select('odd') | list }}|{{ l | reject('gt', 1) | list }}
{{ words | map('upper') | list }}|{{ people | map(attribute='a', default=0) | list }}|{{ l | map('string') | join }}|{{ d | items | list }}|{{ ['a.b'] | map('replace', '.', '-') | list }}
{{ [1, '1', 1, 'a', 'A'] | unique | list }}|{{ l | min }}|{{ l | max }}|{{ l | sum }}|{{ people[:2] | sum(attribute='a') }}|{{ s | reverse }}|{{ l | reverse | list }}
{{ '42' | int }}|{{ 'x' | int }}|{{ 'x' | int(5) }}|{{ '3.9' | int }}|{{ '2.5' | float }}|{{ 'y' | float }}|{{ -3 | abs }}|{{ 2.567 | round(2) }}|{{ 2.5 | round }}|{{ 2.1 | round(method='ceil') }}|{{ 7 | float }}
{{ s | replace('l', 'L') }}|{{ s | replace('l', 'L', 1) }}|{{ s.replace('l', '') }}|{{ 'ab' | replace('', '-') }}|{{ 'ab'.replace('', '-', 2) }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(1, blank=true) }}|{{ 'a\nb' | indent('> ') }}
{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ ''.split(',') }}|{{ ''.split() }}|{{ 'a b c'.split(maxsplit=1) }}|{{ 'x</t>y'.split('</t>')[-1] }}
{{ s.startswith('Hell') }}|{{ s.endswith(('x', 'd')) }}|{{ s.find('W') }}|{{ s.find('q') }}|{{ s.rfind('l') }}|{{ s.count('l') }}|{{ s.index('ö') }}|{{ 'a\r\nb\nc'.splitlines() }}|{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}
{{ '12'.isdigit() }}|{{ 'a1'.isalpha() }}|{{ 'AB'.isupper() }}|{{ 'ab'.islower() }}|{{ ' '.isspace() }}|{{ '7'.zfill(3) }}|{{ 'ab1'.isalnum() }}
{{ s is string }}|{{ n is number }}|{{ l is sequence }}|{{ d is mapping }}|{{ s is iterable }}|{{ n is iterable }}|{{ missing is defined }}|{{ missing is undefined }}|{{ nothing is none }}|{{ yes is boolean }}|{{ n is integer }}|{{ f is float }}|{{ yes is true }}|{{ yes is false }}|{{ true is number }}|{{ true is integer }}
{{ n is odd }}|{{ n is even }}|{{ n is divisibleby 7 }}|{{ n is divisibleby(2) }}|{{ n is eq 7 }}|{{ n is ne(7) }}|{{ n is lt 8 }}|{{ 3 is in l }}|{{ n is not none }}|{{ 'A' is upper }}|{{ 'a' is lower }}|{{ none is sameas none }}|{{ range is callable }}
{{ range(3) | list }}|{{ range(1, 7, 2) | list }}|{{ range(3, 0, -1) | list }}|{{ dict(a=1, b='x') }}|{{ {'a': 1, 'a': 2} }}|{{ (1,) }}|{{ () }}|{{ (1, 'a') }}|{{ 1, 2 }}
{{ 'a' ~ 1 ~ none ~ missing ~ 2.0 }}|{{ 'ab' * 3 }}|{{ 2 * [1] }}|{{ [1] + [2] }}|{{ 'a' 'b' }}|{{ "\u00e9\x41\t'" }}|{{ '\q' }}|{{ 'a\
b' }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.cycle('p', 'q') }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for x in [] %}a{% else %}none{% endfor %}{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}{% for c in 'añb' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set ns = namespace(a=1, b=[]) %}{% for i in l %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{% set n2 = namespace({'k': 2}) %}{{ n2.k }}
{% set block %}<{{ s }}>{% endset %}{{ block }}{% set up | upper | replace('L', '1') %}hello{% endset %}{{ up }}{% filter upper | trim %} in {{ n }} {% endfilter %}{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a }}
{% macro m(a, b='d', c=n) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m() }}{{ m('x', 'y', 'z') | length }}{% macro r(k) %}{{ k }}{% if k > 0 %}{{ r(k - 1) }}{% endif %}{% endmacro %}{{ r(3) }}
{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}in {{ n }}{% endcall %}{% macro each() %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) each() %}{{ i * 2 }},{% endcall %}{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, k=3) }}
{% set x = 1 %}{% macro late() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ late() }}{% for x in l %}{{ late() }}{% endfor %}
{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}{% if e %}1{% elif l %}2{% else %}3{% endif %}{% if nothing is none and missing is not defined %}4{% endif %}
  {%- if yes -%}   tight   {%- endif -%}   x{# comment #}y{#- tight -#}   z {{- 'a' -}}  b {%+ if yes +%}
 c {% endif %}
{% if yes %}
kept line
  {% endif %}
  {{ n }}
tail
{% raw %}{{ not }} {% this %}{% endraw %}|{%- raw -%}  {{ x }}  {%- endraw -%}  |{{ '{{' }}{{ "}}" }}{{ '%}' }}
{% generation %}gen {{ n }}{% endgeneration %}{{ strftime_now('%Y-%m-%d %d %B %H') }}{{ strftime_now is defined }}{{ '<&>"' | e }}{{ s | safe }}{{ 5 | string + 'x' }}
{{ (l | sort)[0] }}{{ [1, 2, 3][1] }}{{ {'a': {'b': 'c'}}.a.b }}{{ (d.a | last).x }}{{ 'x'.upper().lower() }}{{ -l[0] }}{{ -2 ** 2 }}{{ +3 }}{{ not false }}{{ 10 - 2 - 3 }}{{ 2 ** 3 ** 2 }}
{{ m(*[1, 2], **{'c': 3}) if m is defined }}{{ '%}' }}{{ dict(**{'a': 1}) }}{{ [1, 2,] }}{{ {'a': 1,} }}{{ yes + 1 }}{{ 1 if yes }}{{ 0x1F }}{{ 0b101 }}{{ 0o17 }}{{ 0x10 if false else 1_000 }}
{{ [none, true, 'a\n', 'ü', '\x01', 1.5, (1,), {}] }}{{ "'" | list }}{{ ['"', "'", "\"'"] }}{{ '\u00a0' | list }}{{ 0.1 + 0.2 }}{{ 1e22 }}{{ 100000.0 * 100000 }}{{ 5 / 2 }}{{ 3.0 }}
{{ missing.x }}
{{ missing + 1 }}
{{ missing() }}
{{ d.nope.x }}
{{ n() }}
{{ 'a' + 1 }}
{{ 1 < 'a' }}
{{ 1 / 0 }}
{{ n | nofilter }}
{{ n is notest }}
{{ missing | tojson }}
{{ raise_exception('no: ' ~ n) }}
{{ d.update({}) }}
{{ l.append(1) }}
{{ ''.__class__ }}x{{ ''.__class__.__mro__ }}
{% for x in n %}{% endfor %}
{% set a, b = [1] %}
{% set s.x = 1 %}
{% for x in l %}
{% endfor
{{ (1 }}
{{ }}
{% if %}{% endif %}
{% if yes %}
{% endif %}{% endif %}
{% unknown %}
{% include 'a' %}
{{ 'open }}
{# open
{{ 1 2 }}
{{ a b }}
{% macro m(a=1, b) %}{% endmacro %}
{{ {'a' 1} }}
{{ range(1000000) }}
{{ namespace(_x=1) }}
{{ {[1]: 2} }}
{{ [1, 2] | join(missing.x) }}
{{ 'abc' | sort(attribute='x') | list if false else 'fine' }}
"""


def render(source, data):
    return utils._compile_jinja_template(source).render(**data)


def attempt(source, data):
    try:
        return render(source, data)
    except Exception:
        return None


def digest(text):
    return None if text is None else xxhash.xxh64(text.encode()).hexdigest()


def main():
    features = FEATURES.strip("\n").split("\n")  # one a line, but for three that go on
    joined = []
    skip = 0
    for i, line in enumerate(features):
        if skip:
            skip -= 1
            continue
        if line.endswith("'a\\"):
            joined.append(line + "\n" + features[i + 1])
            skip = 1
        elif line.startswith("  {%- if yes"):
            joined.append("\n".join(features[i:i + 2]))
            skip = 1
        elif line == "{% if yes %}" and features[i + 1] == "kept line":
            joined.append("\n".join(features[i:i + 5]))
            skip = 4
        else:
            joined.append(line)
    out = {"now": NOW, "data": DATA, "features": [[s, attempt(s, DATA)] for s in joined], "chats": CHATS, "tokens": TOKENS,
           "templates": [], "published": []}
    for name, source in STYLES.items():
        texts = [attempt(source, {**c, **TOKENS}) for c in CHATS]
        out["templates"].append({"name": name, "source": source, "hashes": [digest(t) for t in texts], "text": texts[8]})
    for folder in sys.argv[1:]:
        for path in sorted(pathlib.Path(folder).glob("*.jinja")):
            out["published"].append({"name": path.name, "hashes": [digest(attempt(path.read_text(), {**c, **TOKENS})) for c in CHATS]})
    lines = []
    for key, value in out.items():
        if isinstance(value, list):
            lines.append(f"{json.dumps(key)}: [\n" + ",\n".join(json.dumps(v, ensure_ascii=False) for v in value) + "\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    (HERE / "chat_templates.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(len(out["features"]), sum(t is None for _, t in out["features"]), "refused;", len(out["templates"]), "templates,",
          sum(h is None for t in out["templates"] for h in t["hashes"]), "refused;", len(out["published"]), "published")


if __name__ == "__main__":
    main()
