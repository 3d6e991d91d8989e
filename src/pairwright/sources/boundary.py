"""The guard around a reader: whatever JSON value goes in, what comes out is experiences, Rejected or BadRecord.

Values nested too deep to walk and text with lone surrogates surface anywhere below; here they become BadRecord.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from pairwright.records import Experience
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Read, Rejected


def guarded(read: Read) -> Read:
    def guarded_read(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
        try:
            yield from read(value, origin, options)
        except RecursionError:
            raise BadRecord("nested too deep to read") from None
        except UnicodeError as error:
            raise BadRecord(f"text that is not valid Unicode: {error}") from None
        except (OverflowError, msgspec.MsgspecError) as error:
            raise BadRecord(f"a value that JSON cannot hold: {error}") from None

    return guarded_read
