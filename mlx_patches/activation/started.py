"""How this process was started; ``boot`` notes it.

Standard library only, and little of it, as in ``boot``.
"""

from __future__ import annotations

# The host that this environment was enabled for; empty if for all hosts or none.
host = ""
# The profile that this process was started with; None if none was named.
profile: str | None = None
# Whether a line is due that says that patches are on: it is a server that ``run`` did not start.
announces = False
