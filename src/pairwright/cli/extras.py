"""Missing packages: which extra installs one, by the metadata of pairwright."""

import re
from importlib.metadata import PackageNotFoundError, requires

# A line of the metadata such as: httpx>=0.27; extra == "serve"; groups: package, extra
_REQUIREMENT = re.compile(r"""([\w.-]+).*extra == ['"]([\w-]+)['"]""")
_NOT_FOR_USERS = ("all", "dev")


def extras_with(package: str) -> list[str]:
    """The extras that list a package, by its import name; none if no extra lists it.

    >>> extras_with("openpyxl")
    ['excel']
    """
    try:
        lines = requires("pairwright") or []
    except PackageNotFoundError:  # run from a folder, without being installed
        return []
    requirements = [match.groups() for match in map(_REQUIREMENT.match, lines) if match is not None]
    distribution = package.partition(".")[0].replace("-", "_").lower()
    return [
        extra
        for name, extra in requirements
        if name.replace("-", "_").lower() == distribution and extra not in _NOT_FOR_USERS
    ]
