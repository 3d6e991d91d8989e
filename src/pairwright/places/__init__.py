"""Places: where files are. A path on this machine, or an address such as `s3://bucket/runs/first`.

A local path stays a `pathlib.Path`, with everything that the stages promise about it (renames, syncs, locks, memory
mapping). An address is a `Remote`: the few operations that an object store has. `place` tells which a text is.
"""

from pairwright.places.address import Remote
from pairwright.places.place import Place, is_address, local_copy, local_folder, opened, place, size_of, stamp_of
from pairwright.places.scratch import scratch, staged
from pairwright.places.waiting import at_once

__all__ = [
    "Place", "Remote", "at_once", "is_address", "local_copy", "local_folder", "opened", "place", "scratch", "size_of",
    "staged", "stamp_of",
]  # fmt: skip
