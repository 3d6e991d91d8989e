"""Which extra brings a package that is not installed, as the installed pairwright itself says."""

import re
from importlib.metadata import PackageNotFoundError, requires

_REQUIREMENT = re.compile(r"""([\w.-]+).*extra == ['"]([\w-]+)['"]""")
_NOT_FOR_USERS = ("all", "dev")


def extras_with(package: str) -> list[str]:
    """The extras that list a package, by its name in `import`; none if it is not one of ours.

    >>> extras_with("httpx")
    ['collect', 'customizer', 'serve']
    """
    try:
        lines = requires("pairwright") or []
    except PackageNotFoundError:  # run from a folder, without being installed
        return []
    found = [match.groups() for match in map(_REQUIREMENT.match, lines) if match is not None]
    wanted = package.partition(".")[0].replace("-", "_").lower()
    return [extra for name, extra in found if name.replace("-", "_").lower() == wanted and extra not in _NOT_FOR_USERS]
