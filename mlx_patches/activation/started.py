"""How this process was started, recorded by ``boot``.

Standard library only, and little of it, as in ``boot``.
"""

from __future__ import annotations

# The host that this environment was enabled for; empty for all hosts or none.
host = ""
# The profile that this process was started with; None for the default.
profile: str | None = None
# Whether to log that patches are on: this process is a server that ``run`` did not start.
announces = False
