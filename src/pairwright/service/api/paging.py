"""Pagination, sorting and filtering, shared by all list routes.

?page=2&page_size=50&sort=-created_at&filter[namespace]=team-a
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query, Request
from starlette.responses import Response

from pairwright.service.api_errors import Refusal

_FILTER = re.compile(r"filter\[([^\[\]]{1,64})\](?:\[(gte|lte)\])?")
_TIMES = ("created_at", "updated_at")
SORTS = ("created_at", "-created_at", "updated_at", "-updated_at", "name", "-name")

Document = dict[str, Any]


@dataclass(frozen=True)
class Paging:
    """Parsed pagination, sort order and filters of a list request."""

    page: int
    page_size: int
    sort: str
    filters: Mapping[str, str]

    @property
    def key(self) -> str:
        return self.sort.lstrip("-")

    @property
    def is_descending(self) -> bool:
        return self.sort.startswith("-")

    def parts(self, known: Iterable[str], *, has_bounds: bool = True) -> Iterator[tuple[str, str, list[str]]]:
        """Yield key, bound (gte or lte, of a time, else "") and values of each filter; refuse unknown filters."""
        known = sorted(known)
        for name, value in self.filters.items():
            key, _, bound = name.partition(".")
            if (bound and not has_bounds) or key not in (_TIMES if bound else known):
                names = ", ".join([*known, *(["created_at][gte", "created_at][lte"] if has_bounds else [])])
                raise Refusal(422, "unknown_filter", f"filter[{name[:64]}]: expected one of {names}")
            # PostgreSQL rejects text with a null character.
            text = value.replace("\0", "")
            yield key, bound, [text] if bound else text.split(",")


async def paging(
    request: Request,
    page: Annotated[int, Query(ge=1, le=10**9)] = 1,
    page_size: Annotated[int, Query(ge=1, le=1000)] = 100,
    sort: str = "-created_at",
) -> Paging:
    if sort not in SORTS:
        raise Refusal(422, "unknown_sort", f"sort: got {sort[:100]!r}, expected one of {', '.join(SORTS)}")
    filters: dict[str, str] = {}
    for key, value in request.query_params.multi_items():
        if not key.startswith("filter"):
            continue
        match = _FILTER.fullmatch(key)
        if match is None:
            raise Refusal(422, "bad_filter", f"{key[:100]!r}: expected filter[NAME]=VALUE")
        filters[match[1] + (f".{match[2]}" if match[2] else "")] = value
    return Paging(page, page_size, sort, filters)


# The filter parameter of lists, for the OpenAPI description.
FILTERED: dict[str, Any] = {
    "parameters": [
        {
            "name": "filter",
            "in": "query",
            "style": "deepObject",
            "explode": True,
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
            "description": "filter[NAME]=VALUE, several values with commas; an unknown name is refused",
        }
    ]
}
PagingIs = Annotated[Paging, Depends(paging)]


def page_of(documents: Sequence[Document], asked: Paging, *names: str, **paths: str) -> Response:
    """Filter and sort documents in memory, and return one page.

    names: fields that can be filtered by.
    paths: further filters, with the dotted path of their field; lists match by any item.
    """
    filters = dict(zip(names, names, strict=True)) | paths
    matching = [document for document in documents if matches(document, asked, filters)]
    # Every sort key is text: names, or ISO 8601 times, which sort as text.
    matching.sort(key=lambda document: str(document.get(asked.key) or ""), reverse=asked.is_descending)
    start = (asked.page - 1) * asked.page_size
    return envelope(matching[start : start + asked.page_size], len(matching), asked)


def matches(document: Document, asked: Paging, filters: Mapping[str, str]) -> bool:
    """Return whether a document matches all filters (name and path). Raises a refusal for unknown filters."""
    for key, bound, values in asked.parts(filters):
        if bound:
            # ISO 8601 times compare as text.
            value = str(document.get(key) or "")
            if (value < values[0]) if bound == "gte" else (value > values[0]):
                return False
            continue
        found: list[Any] = [document]
        for part in filters[key].split("."):
            fields = [item.get(part) for item in found]
            found = [item for field in fields for item in (field if isinstance(field, list) else [field])]
        if {str(item).lower() if isinstance(item, bool) else str(item) for item in found}.isdisjoint(values):
            return False
    return True


def json_answer(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def envelope(data: Sequence[Document], num_results: int, asked: Paging) -> Response:
    """Build the response of a list route: a page with its pagination fields."""
    return json_answer(
        {
            "object": "list",
            "data": list(data),
            "pagination": {
                "page": asked.page,
                "page_size": asked.page_size,
                "current_page_size": len(data),
                "total_pages": -(-num_results // asked.page_size),
                "total_results": num_results,
            },
            "sort": asked.sort,
            "filter": dict(asked.filters) or None,
        }
    )
