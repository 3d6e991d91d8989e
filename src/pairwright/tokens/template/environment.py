"""The Jinja environment that chat templates are written for, with provenance and limits.

Mirrors the one in transformers: immutable sandbox, `trim_blocks`, `lstrip_blocks`, loop controls, the `generation`
tag, `tojson` that keeps non-ASCII, `raise_exception`, `strftime_now`, namespaces without private names. In addition,
strings keep their owners through `+`, `~`, `%`, filters, methods and macros, and every loop, call and allocation counts
against the limits.
"""

import functools
import itertools
import string
import types
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import SandboxedFormatter

from pairwright.generate.template_variables import GenerationTag
from pairwright.tokens.clock import FIXED
from pairwright.tokens.refusals import Limits, TemplateLimit
from pairwright.tokens.template.tracked_json import to_json
from pairwright.tokens.template.tracked_str import Owned, OwnedDict, PlainDict, join, join_with, replace, track

Clock = Callable[[], datetime]

# Filters that rebuild text character by character: text of one owner stays with that owner.
_WHOLE_TEXT_FILTERS = ("title", "indent", "wordwrap", "truncate", "escape", "e", "forceescape", "striptags", "urlize")
# Filters with an option for the size of their result: a width, a number of parts, digits.
_SIZED_FILTERS = ("center", "indent", "wordwrap", "truncate", "batch", "slice", "round")
# Mappings whose keys bypass the sandbox's checks, except names of their attributes.
_MAPPINGS = (dict, OwnedDict, PlainDict)
_MAPPING_ATTRIBUTES = frozenset(dir(dict)) | frozenset(("_owner", "_json"))
_MAPPING_METHODS = frozenset(("get", "items", "keys", "values"))  # read-only
# Methods of text, except `format` and `format_map`.
_TEXT_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_LOOP_ATTRIBUTES = frozenset(("index", "index0", "first", "last", "length", "previtem", "nextitem"))
_TEXTS = frozenset((str, Owned))
# Attributes that the sandbox would allow, by type.
_PLAIN_ATTRIBUTES: dict[type, frozenset[str]] = {
    jinja2.runtime.LoopContext: _LOOP_ATTRIBUTES,
    str: _TEXT_METHODS,
    Owned: _TEXT_METHODS,
}
# Methods of str whose result may be larger than the text, and those that rebuild it.
_PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs")
_FLOW = ("replace", "join", "split", "rsplit", "splitlines", "translate", "upper", "lower", "title", "encode")


class _Generator(CodeGenerator):
    """Writes `+`, `~` and slices as calls of the environment."""

    def visit_Add(self, node: jinja2.nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        operands = [node.right]
        while isinstance(node.left, jinja2.nodes.Add):  # a + b + c is one call
            node = node.left
            operands.append(node.right)
        self.write("environment.add(")
        for operand in (node.left, *reversed(operands)):
            self.visit(operand, frame)
            self.write(", ")
        self.write(")")

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.join_values((")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: jinja2.nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        is_slice = isinstance(node.arg, jinja2.nodes.Slice)
        self.write("environment.charge_value(" if is_slice else "")
        super().visit_Getitem(node, frame)
        self.write(")" if is_slice else "")


class _Namespace(jinja2.utils.Namespace):
    """Like Jinja's namespace, but without private names and with faster reads."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # No named parameters: a template may pass any keyword, even `self`.
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        object.__setattr__(self, "_values", values)

    def __getattribute__(self, name: str) -> Any:
        if name in ("_values", "__class__"):
            return object.__getattribute__(self, name)
        try:
            return object.__getattribute__(self, "_values")[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        object.__getattribute__(self, "_values")[name] = value

    def __repr__(self) -> str:
        return f"<Namespace {object.__getattribute__(self, '_values')!r}>"


class _TemplateDict:
    """`dict(...)` and `dict.fromkeys(...)`, without other attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the private name {name!r}")


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset({"*", "**", "%"})  # operators that go through `call_binop`

    def __init__(self, *, clock: Clock = lambda: FIXED, limits: Limits | None = None) -> None:
        self.limits = limits = limits or Limits()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            finalize=self.print_value,
        )
        self.clock = clock
        self.tracking = True  # False for plain renders
        # Joins the chunks of renders, macros and blocks.
        self.concat = self._concat  # type: ignore[method-assign]
        for name, function in list(self.filters.items()):
            sized = name in _SIZED_FILTERS
            self.filters[name] = self._counting(function, keeps_owner=name in _WHOLE_TEXT_FILTERS, sized=sized)
        self.filters["tojson"] = self._tojson
        self.filters["join"] = self._filter_join
        self.filters["replace"] = self._filter_replace
        self.filters["format"] = self._filter_format
        self.filters["sum"] = self._filter_sum
        self.filters["safe"] = _safe
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: self.clock().strftime(format)
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _Namespace
        self.globals["lipsum"] = self._lipsum

    def _lipsum(self, n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
        self.limits.charge(n * max * 10)
        return jinja2.utils.generate_lorem_ipsum(n, html, min, max)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            _leave_early(loop)
            loop.body.insert(0, jinja2.nodes.ExprStmt(jinja2.nodes.EnvironmentAttribute("tick")))
        return tree

    @property
    def tick(self) -> None:
        """Read at the start of every loop iteration."""
        self.limits.tick()

    def charge_value(self, value: Any) -> Any:
        if isinstance(value, str | list | tuple):
            self.limits.charge(len(value))
        return value

    def join_values(self, values: Iterable[Any]) -> str:
        """The `~` operator."""
        parts = [value if isinstance(value, str) else self.text_of(value) for value in values]
        self.limits.charge(sum(map(len, parts)))
        return join(parts)

    def print_value(self, value: Any) -> str:
        """What `{{ value }}` prints."""
        return value if isinstance(value, str) else self.text_of(value)

    def _concat(self, parts: Iterable[str]) -> str:
        # Check limits every 1024 chunks: a template may print endlessly.
        collected: list[str] = []
        chunks = iter(parts)
        while chunk := list(itertools.islice(chunks, 1024)):
            self.limits.check_time()
            self.limits.charge(len(chunk) + sum(map(len, chunk)))
            collected += chunk
        return join(collected) if self.tracking else "".join(collected)

    def text_of(self, value: Any) -> str:
        """`str(value)` with provenance, of bounded size."""
        if isinstance(value, dict | list | tuple | set | frozenset):
            self.limits.charge_nested(value)
        return str(value)

    def format_text(
        self, pattern: str, args: tuple[Any, ...], kwargs: Any, numbers: Iterator[int] | None = None
    ) -> str:
        formatter, parts = SandboxedFormatter(self), []
        numbers = itertools.count() if numbers is None else numbers
        # parse yields (literal, field, format spec, conversion); the field is None after the last one.
        for literal, field, spec, conversion in string.Formatter().parse(pattern):
            parts.append(literal)
            if field is None:
                continue
            if field == "" or field[0] in ".[":  # an automatic number, as in "{}"
                field = f"{next(numbers)}{field}"
            value, _ = formatter.get_field(field, args, kwargs)
            spec = self.format_text(spec, args, kwargs, numbers) if spec else ""
            # A bare field is the value itself, with all its owners.
            if isinstance(value, str) and not spec and not conversion:
                parts.append(value)
                continue
            self._check_digits(spec)
            self.limits.charge_nested(value)
            text = formatter.format_field(formatter.convert_field(value, conversion), spec)
            parts.append(_keep_owner(value, text))
        self.limits.charge(sum(map(len, parts)))
        return join(parts)

    def percent(self, pattern: str, values: Any) -> str:
        """`pattern % values`: owners are kept if every field is a bare `%s`."""
        self._check_digits(pattern)
        self.limits.charge_nested(values)
        if isinstance(values, dict):
            self.limits.charge(len(pattern) * 8)
        items = values if isinstance(values, tuple) else (values,)
        literals = str.__str__(pattern).split("%s")
        if len(literals) == len(items) + 1 and not any("%" in literal for literal in literals):
            parts = [literals[0]]
            for item, literal in zip(items, literals[1:], strict=True):
                parts += [self.text_of(item), literal]
            return join(parts)
        plain: str = str.__mod__(pattern, values)
        self.limits.charge(len(plain))
        return plain

    def _check_digits(self, spec: str) -> None:
        """Refuse widths and precisions of more than six digits, and computed ones (`*`)."""
        run = 0  # consecutive digits
        for char in spec:
            run = run + 1 if char.isdigit() else 0
            if run > 6:
                raise TemplateLimit(f"the chat template formats with a width of more than six digits: {spec[:40]!r}")
        if "*" in spec and "%" in spec:
            raise TemplateLimit("the chat template formats with a width that is computed")

    def join_texts(self, separator: str, values: Iterable[Any] = ()) -> str:
        parts = []
        for value in values:
            self.limits.tick()
            parts.append(value)
        self.limits.charge(sum(len(part) + len(separator) for part in parts if isinstance(part, str)))
        return join_with(separator, parts)

    def replace_text(self, text: str, old: str, new: str, count: int = -1) -> str:
        times = text.count(old)
        self.limits.charge(len(text) + times * len(new))
        return replace(text, old, new, count)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Like the sandbox, with a shortcut for keys of plain mappings and for read-only methods."""
        kind = type(obj)
        if kind in _MAPPINGS:
            if attribute not in _MAPPING_ATTRIBUTES:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
            if attribute in _MAPPING_METHODS:
                return getattr(obj, attribute)
        elif attribute in _PLAIN_ATTRIBUTES.get(kind, ()):
            return getattr(obj, attribute)
        elif kind is _Namespace and not attribute.startswith("_"):
            values = object.__getattribute__(obj, "_values")
            return values[attribute] if attribute in values else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def add(self, *operands: Any) -> Any:
        """The `+` operator; one call for `a + b + c`."""
        if _TEXTS.issuperset(map(type, operands)):
            self.limits.charge(sum(map(len, operands)))
            return join(operands)
        result = operands[0]
        for right in operands[1:]:
            result = result + right
            if isinstance(result, str | list | tuple):
                self.limits.charge(len(result))
                # Charge the characters of the texts in an appended list as well as their number.
                if isinstance(right, list):
                    self.limits.charge(sum(len(item) for item in right if isinstance(item, str)))
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            self.limits.product(left, right)
            return left * right
        if operator == "**":
            self.limits.power(left, right)
            return left**right
        if isinstance(left, str):
            return self.percent(left, right)
        return left % right

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # As in Jinja: these parameter names cannot clash with keywords of a template.
        __self.limits.tick()
        # Shortcuts for the most frequent calls, without Jinja's checks.
        if type(__obj) is jinja2.runtime.Macro:
            return __obj(__context.eval_ctx, *args, **_without_scopes(kwargs))
        if __obj is _Namespace:
            return _Namespace(*args, **_without_scopes(kwargs))
        receiver = getattr(__obj, "__self__", None)
        if type(receiver) in _MAPPINGS and __obj.__name__ in _MAPPING_METHODS:
            return __obj(*args, **_without_scopes(kwargs))
        if isinstance(receiver, str):
            name = __obj.__name__
            if name in _PADDING:
                __self.limits.charge(len(receiver) * (_width(name, args, kwargs) if name == "expandtabs" else 1))
                __self.limits.charge(_width(name, args, kwargs))
            elif name in _FLOW:
                if name == "join":
                    return __self.join_texts(receiver, *args)
                if name == "replace" and len(args) in (2, 3) and not kwargs:
                    return __self.replace_text(receiver, *args)
                __self.limits.charge(len(receiver))
            if name in _TEXT_METHODS:
                return __obj(*args, **_without_scopes(kwargs))
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`text.format(...)`, sandboxed, with provenance."""
        if not isinstance(value, types.MethodType | types.BuiltinMethodType):
            return None
        if value.__name__ not in ("format", "format_map") or not isinstance(value.__self__, str):
            return None
        receiver = value.__self__
        if value.__name__ == "format_map":
            return lambda mapping: self.format_text(receiver, (), mapping)
        return lambda *args, **kwargs: self.format_text(receiver, args, kwargs)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        if isinstance(indent, int) and indent > 1000:
            raise TemplateLimit("the chat template indents JSON by more than 1000")
        if type(value) not in _MAPPINGS[1:]:  # input is not charged
            self.limits.charge_nested(value)
        return to_json(value, ensure_ascii, indent, separators, sort_keys, tracking=self.tracking)

    def _filter_join(self, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            value = map(jinja2.filters.make_attrgetter(self, attribute), value)
        return self.join_texts(self.text_of(d), [self.text_of(item) for item in value])

    def _filter_replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        return self.replace_text(
            self.text_of(value), self.text_of(old), self.text_of(new), -1 if count is None else count
        )

    def _filter_sum(self, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
        if attribute is not None:
            iterable = map(jinja2.filters.make_attrgetter(self, attribute), iterable)
        total = start
        for item in iterable:
            self.limits.tick()
            total = self.charge_value(total + item)
        return total

    def _filter_format(self, value: Any, *args: Any, **kwargs: Any) -> str:
        if args and kwargs:
            raise jinja2.exceptions.FilterArgumentError("can't handle positional and keyword arguments together")
        return self.percent(self.text_of(value), kwargs or args)

    def _counting(self, function: Callable[..., Any], *, keeps_owner: bool, sized: bool) -> Callable[..., Any]:
        """Wrap a filter to charge its result, and the numbers of `sized` ones before they allocate."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.limits.tick()
            if sized:
                # Only options are charged. They follow the value, which may itself be a number.
                value = 1 if args and isinstance(args[0], jinja2.Environment | jinja2.nodes.EvalContext) else 0
                for number in (*args[value + 1 :], *kwargs.values()):
                    if isinstance(number, int) and number > 1000:
                        self.limits.charge(number)
            result = function(*args, **kwargs)
            if isinstance(result, str):
                self.limits.charge(len(result))
                if keeps_owner and type(result) in (str, Owned):
                    source = next((value for value in args if isinstance(value, str)), "")
                    owned = _keep_owner(source, str.__str__(result))
                    # Else keep the owners that the filter itself preserved (`indent`: those of the first line).
                    return owned if type(owned) is Owned else result
            elif isinstance(result, list | tuple):
                self.limits.charge(len(result))
            return result

        return wrapper


def _keep_owner(source: Any, text: str) -> str:
    """Give text derived from one value the owner of that value, if it has exactly one."""
    if isinstance(source, Owned) and len(source._runs) == 1:
        return track(text, source._runs[0][1])
    return text


def _without_scopes(kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs.pop("_block_vars", None)
    kwargs.pop("_loop_vars", None)
    return kwargs


def _leave_early(loop: jinja2.nodes.For) -> None:
    """End a loop over `range` early if its body is one `if` that a flag disables. Templates that search for the
    previous or next message of each message then take linear time.

        {% for j in range(n) %}{% if not ns.found %}...{% endif %}{% endfor %}
        {% for k in range(n) %}{% if ns.stopped %}{% elif ... %}...{% endif %}{% endfor %}
    """
    nodes = jinja2.nodes
    # Only `range`: its items have no side effects. No `else`: it would also run after a `break`.
    is_range = isinstance(loop.iter, nodes.Call) and loop.iter.node == nodes.Name("range", "load")
    if not is_range or loop.test or loop.else_ or loop.recursive or len(loop.body) != 1:
        return
    branch = loop.body[0]
    if not isinstance(branch, nodes.If):
        return
    names = {
        "loop",
        *(name.name for name in (loop.target, *loop.target.find_all(nodes.Name)) if isinstance(name, nodes.Name)),
    }
    if isinstance(branch.test, nodes.Not) and _is_flag(branch.test.node, names) and not branch.elif_ + branch.else_:
        branch.else_ = [nodes.Break()]
    elif _is_flag(branch.test, names) and not branch.body:
        branch.body = [nodes.Break()]


def _is_flag(node: jinja2.nodes.Node, changing: set[str]) -> bool:
    """Return whether a test is an attribute (of a namespace, say) of a name that no iteration rebinds."""
    if not isinstance(node, jinja2.nodes.Getattr) or not isinstance(node.node, jinja2.nodes.Name):
        return False
    return node.node.name not in changing


def _width(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    value = args[0] if args else kwargs.get("tabsize", 8)
    return abs(value) if isinstance(value, int) else 0


def _safe(value: Any) -> Any:
    return value if isinstance(value, Owned) else jinja2.filters.do_mark_safe(value)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)
