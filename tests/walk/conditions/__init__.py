"""The conditions, in the order in which a newcomer tries the commands."""

from __future__ import annotations

from . import (
    activation,
    auditing,
    first_steps,
    folders,
    measuring,
    next_release,
    programs,
    releases,
    settings,
    streams,
)

CONDITIONS = [
    *first_steps.CONDITIONS,
    *auditing.CONDITIONS,
    *folders.CONDITIONS,
    *releases.CONDITIONS,
    *next_release.CONDITIONS,
    *settings.CONDITIONS,
    *activation.CONDITIONS,
    *measuring.CONDITIONS,
    *streams.CONDITIONS,
    *programs.CONDITIONS,
]
