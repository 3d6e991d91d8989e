"""Templates render what transformers renders, with provenance, within limits."""

from datetime import datetime

import jinja2
import pytest

from pairwright.tokens.refusals import Limits, TemplateError, TemplateLimit
from pairwright.tokens.template.render import Piece, Template, plain_chat

USER = [{"role": "user", "content": "Zebra"}]


def pieces(source: str, chat: list | None = None, **options: object) -> list[str]:
    rendered = Template(source, **options).render(plain_chat(chat or USER))  # type: ignore[arg-type]
    return [f"{piece.message}:{rendered.text[piece.start : piece.end]}" for piece in rendered.pieces]


@pytest.mark.parametrize(
    "source",
    [
        "<u>{{ messages[0].content }}</u>",
        "{{ '<u>' + messages[0]['content'] + '</u>' }}",
        "{{ '<u>' ~ messages[0].content ~ '</u>' ~ 3 }}",
        "{{ '%s!' % messages[0].content }}",
        "{{ '%s %s' % ('a', messages[0].content) }}",
        "{{ 'a{}b'.format(messages[0].content) }}",
        "{{ 'a{x}b'.format(x=messages[0].content) }}",
        "{{ '%s'|format(messages[0].content) }}",
        "{{ ['a', messages[0].content]|join(', ') }}",
        "{{ ', '.join(['a', messages[0].content]) }}",
        "{{ 'a@b'.replace('@', messages[0].content) }}",
        "{{ 'a@b'|replace('@', messages[0].content) }}",
        "{{ messages|map(attribute='content')|join('-') }}",
        "{{ messages[0].content|tojson }}",
        "{{ {'k': messages[0].content, 'n': [1, none]}|tojson(indent=2) }}",
        "{{ messages|tojson }}",
        "{% set x %}[{{ messages[0].content }}]{% endset %}{{ x }}",
        "{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0].content) }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{% filter trim %} {{ messages[0].content }} {% endfilter %}",
        "{% for m in messages %}{{ m.content|safe }}{% endfor %}",
        "{% set ns = namespace(t='') %}{% set ns.t = ns.t + messages[0].content %}{{ ns.t }}",
        "{{ messages[0].content|string|trim|default('x') }}",
        "{{ messages[0].content if messages[0].content else 'x' }}",
        "{{ messages[0].content|indent(2) }}",
        "{{ '{:{}}'.format('a', 3) }}{{ messages[0].content }}",
    ],
)
def test_provenance_survives(source: str) -> None:
    assert pieces(source) == ["0:Zebra"]


def test_split_content_gives_two_pieces_of_one_owner() -> None:
    chat = [{"role": "assistant", "content": "<think>a</think>b"}]
    source = "{% set p = messages[0].content.split('</think>') %}{{ p[0].split('<think>')[-1] }}|{{ p[-1] }}"
    assert pieces(source, chat) == ["0:a", "0:b"]


def test_arguments_are_one_piece_as_json_and_several_as_items() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": "x", "c": [2.5, {"d": None}]}}}
    chat = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert pieces("{{ messages[0].tool_calls[0].function.arguments|tojson }}", chat) == [
        '0:{"a": 1, "b": "x", "c": [2.5, {"d": null}]}'
    ]
    items = "{% for k, v in messages[0].tool_calls[0].function.arguments|items %}<{{ k }}>{{ v|string }}{% endfor %}"
    assert pieces(items, chat)[:4] == ["0:a", "0:1", "0:b", "0:x"]


def test_reasoning_is_offered_under_the_names_that_templates_read() -> None:
    chat = [{"role": "assistant", "content": "b", "reasoning": "r"}]
    assert pieces("{{ messages[0].thinking }}{{ messages[0].reasoning_content }}", chat) == ["0:rr"]


def test_empty_content_has_a_position() -> None:
    rendered = Template("<{{ messages[0].content }}>").render(plain_chat([{"role": "user", "content": ""}]))
    assert rendered.pieces == [Piece(1, 1, 0, 0)]


def test_the_clock_can_be_set() -> None:
    template = Template("{{ strftime_now('%Y') }}", clock=lambda: datetime(1999, 1, 1))
    assert template.text([]) == "1999"


def test_an_error_of_the_template_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        Template("{{ raise_exception('roles must alternate') }}").text([])
    with pytest.raises(TemplateError, match="does not compile"):
        Template("{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages[0].content.__class__.__base__.__subclasses__() }}",
        "{{ ''.__class__.mro() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{{ messages.append(1) }}",
    ],
)
def test_the_sandbox_keeps_templates_out_of_python(source: str) -> None:
    with pytest.raises(TemplateError):
        Template(source).render(plain_chat(USER))


def test_format_cannot_read_private_attributes() -> None:
    assert Template("{{ '<{0.__class__.__init__}>'.format(messages) }}").text([]) == "<>"


SEARCH = (
    "{% set ns = namespace(found=false) %}"
    "{% for j in range(SIZE) %}{% if not ns.found %}{{ j }}{% if j == 2 %}{% set ns.found = true %}{% endif %}{% endif %}"
    "{% endfor %}"
    "{% for j in range(SIZE) %}{% if ns.found %}{% elif j %}{{ j }}{% endif %}{% endfor %}"
)


def test_a_loop_ends_once_it_can_do_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []
    tick = Limits.tick
    monkeypatch.setattr(Limits, "tick", lambda self: ticks.append(1) or tick(self))
    counts = []
    for size in (9, 9000):
        ticks.clear()
        assert Template(SEARCH.replace("SIZE", str(size))).text([]) == "012"
        counts.append(len(ticks))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for j in range(3) %}{% if not loop.first %}{{ j }}{% endif %}{% endfor %}", "12"),
        ("{% for j in range(3) %}{% if not ns.on %}{{ j }}{% endif %}|{% endfor %}", "|||"),
        ("{% for j in range(3) %}{% if not ns.on %}{{ j }}{% else %}x{% endif %}{% endfor %}", "xxx"),
        ("{% for j in range(3) %}{% if not ns.on %}{{ j }}{% elif j %}x{% endif %}{% endfor %}", "xx"),
        ("{% for j in range(3) %}{% if ns.on %}x{% endif %}{% endfor %}", "xxx"),
        ("{% for j in range(3) %}{% if not ns.on %}{{ j }}{% endif %}{% else %}none{% endfor %}", ""),
        ("{% for m in [ns, other] %}{% if not m.on %}{{ loop.index }}{% endif %}{% endfor %}", "2"),
    ],
)
def test_a_loop_that_can_still_do_something_goes_on(source: str, text: str) -> None:
    start = "{% set ns = namespace(on=true) %}{% set other = namespace(on=false) %}"
    assert Template(start + source).text([]) == text


def test_a_namespace_prints_and_reads_as_in_jinja() -> None:
    source = "{% set ns = namespace({'a': 1}, b='x') %}{% set ns.c = ns.a + 1 %}{{ ns }}{{ ns.c }}{{ ns.d is defined }}"
    assert Template(source).text([]) == "<Namespace {'a': 1, 'b': 'x', 'c': 2}>2False"
    assert jinja2.Environment().from_string(source).render() == "<Namespace {'a': 1, 'b': 'x', 'c': 2}>2False"


ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "output": "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxx{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "bottomless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loop recursion": "{% for x in [1, 1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling with ~": "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling of owned text": "{% set n = namespace(x=messages[0].content) %}"
    "{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "list doubling": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "times": "{{ ('x' * 999999999999)|length }}",
    "list times": "{{ ([1] * 999999999999)|length }}",
    "power": "{{ 10 ** 999999999 }}",
    "product": "{% set n = namespace(x=7) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "centre": "{{ 'x'.center(99999999999)|length }}",
    "centre filter": "{{ 'x'|center(9999999999)|length }}",
    "ljust": "{{ 'x'.ljust(99999999999)|length }}",
    "zfill": "{{ '1'.zfill(99999999999)|length }}",
    "tabs": "{{ ('\t' * 1000).expandtabs(99999999)|length }}",
    "percent": "{{ '%99999999999d' % 1 }}",
    "format": "{{ '{:99999999999}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 99999999999) }}",
    "replace": "{{ ('x' * 1000000).replace('x', 'y' * 1000000)|length }}",
    "replace filter": "{{ ('x' * 1000000)|replace('x', 'y' * 1000000)|length }}",
    "join": "{{ range(99999)|map('string')|join('x' * 1000000)|length }}",
    "join method": "{{ ('x' * 1000000).join(['y'] * 99999)|length }}",
    "kept copies": "{% set n = namespace(l=[]) %}{% set s = 'x' * 9000000 %}"
    "{% for i in range(99999) %}{% set n.l = n.l + [s[1:]] %}{% endfor %}",
    "mapped copies": "{{ (['x' * 9000000] * 99999)|map('upper')|list|length }}",
    "laughs as json": "{% set n = namespace(x=['lol']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{{ n.x|tojson }}",
    "laughs as text": "{% set n = namespace(x=['lol']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{{ n.x }}",
    "laughs joined": "{% set n = namespace(x=['lol']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{{ n.x ~ '' }}",
    "lorem ipsum": "{{ lipsum(n=99999999) }}",
    "range": "{{ range(9999999999)|list }}",
    "sum of lists": "{{ ([range(99999)|list] * 99999)|sum(start=[])|length }}",
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.stress
def test_a_template_without_end_is_stopped(name: str) -> None:
    with pytest.raises(TemplateError):
        Template(ENDLESS[name], seconds=0.5).render(plain_chat(USER))


def test_long_conversations_are_within_the_limits() -> None:
    chat = [{"role": "user", "content": "x" * 1000}] * 3000
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
    assert len(Template(source).text(plain_chat(chat))) == 3000 * 1006


def test_endless_work_while_compiling_is_stopped() -> None:
    with pytest.raises(TemplateLimit):
        Template("{{ 'x'|center(99999999999) }}").text([])
