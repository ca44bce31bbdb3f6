"""mlx_vlm.server in a batch: requests get the first one's temperature and seed.

Why: The first request makes the batch generator, with its temperature, top_p, top_k, seed and
    logprobs. Requests that join the running batch are sampled with them: a greedy request becomes
    random, a seeded one greedy, and a request for logprobs gets none. ``top_logprobs`` stays empty
    unless the server was started with ``--top-logprobs-k``.
How: The list of a request's logits processors, which follows its row through the generator, also
    holds its sampler. A batch samples the rows of each sampler in one call, and computes logprobs
    if a row needs them: the top 20 for ``top_logprobs``. Rows with the same settings and no seed
    share a sampler, with a row id for each. With a draft model, only requests with the same
    settings are prefilled in one batch.
Upstream: Reported as mlx-vlm #1647. Not fixed in mlx-vlm 0.7.10.
Retire when: The batch generator of mlx-vlm takes a sampler per row, and the server passes it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ....core.verbs import Function, Patch, after, before, mx, result, wrap
from ..._shared.request_fields import TOP_LOGPROBS
from ..._shared.targets import vlm_generators

# The arguments of a request that its sampler depends on, in any release.
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "top_n_sigma", "p_less", "typical_p"),
    *("xtc_probability", "xtc_threshold", "seed"),
)


class Sampling(NamedTuple):
    """How a request's row is sampled."""

    sampler: Any  # None: greedy
    settings: tuple[Any, ...]
    logprobs: int  # 0: none; how many top tokens, plus 1

    @property
    def seeded(self) -> bool:
        """Whether the request has a seed; its draws then do not depend on its row."""
        return self.settings[-1] is not None


class RowProcessors(list[Any]):
    """A row's logits processors, and how it is sampled."""

    sampling: Sampling


def add_sampling(processors: Any, generator: Any, /, args: Any) -> Any:
    """The logits processors of a request, with its sampling."""
    found = RowProcessors(processors or ())
    found.sampling = read_sampling(generator, args)
    return found


def add_sampling_to_args(args: Any, /, request: Any) -> Any:
    """The arguments of a request, whose processors hold its sampling (mlx-vlm 0.5)."""
    import mlx_vlm.server as server

    args = add_top_logprobs(args, request)
    args.logprobs = getattr(request, "logprobs", False)
    args.logits_processors = add_sampling(args.logits_processors, server.ResponseGenerator, args)
    return args


def add_top_logprobs(args: Any, /, request: Any) -> Any:
    """The arguments of a request, with the number of its top logprobs."""
    args.top_logprobs = getattr(request, "top_logprobs", None)
    return args


def read_sampling(generator: Any, args: Any) -> Sampling:
    make = generator._make_sampler
    sampler = make(None, args) if isinstance(generator, type) else make(args)
    settings = tuple(getattr(args, name, None) for name in _SAMPLING)
    settings = settings if sampler else (0, None)
    if not getattr(args, "logprobs", False):
        return Sampling(sampler, settings, 0)
    # All rows with top logprobs have as many, so that they can be joined.
    most = max(getattr(generator, "top_logprobs_k", 0), TOP_LOGPROBS)
    top = most if getattr(args, "top_logprobs", 0) else 0
    return Sampling(sampler, settings, 1 + top)


class RowSamplers:
    """Samples the rows of a batch, each with its own sampler."""

    def __init__(self, uids: Sequence[int], rows: Sequence[Sampling]):
        self.rows = list(rows)
        self._ids = [0 if row.seeded else uid for uid, row in zip(uids, rows, strict=True)]
        self._groups = group_rows(self.rows)
        self._places: Any = None

    def sample_target(self, logprobs: Any, *, row_ids: Any = None, positions: Any = None) -> Any:
        if len(self._groups) == 1:
            return self._sample(self._groups[0], logprobs, positions)
        if self._places is None:
            order = [index for group in self._groups for index in group]
            back = sorted(range(len(order)), key=order.__getitem__)
            self._places = [mx.array(group) for group in self._groups], mx.array(back)
        places, back = self._places
        tokens = [
            self._sample(group, logprobs[place], positions)
            for group, place in zip(self._groups, places, strict=True)
        ]
        return mx.concatenate(tokens)[back]

    __call__ = sample_target

    def _sample(self, group: Sequence[int], logprobs: Any, positions: Any) -> Any:
        sampler = self.rows[group[0]].sampler
        if sampler is None:
            return mx.argmax(logprobs, axis=-1)
        if positions is None or not hasattr(sampler, "sample_target"):
            return sampler(logprobs)
        ids = [self._ids[index] for index in group]
        return sampler.sample_target(
            logprobs, row_ids=ids, positions=[positions[index] for index in group]
        )


def group_rows(rows: Sequence[Sampling]) -> list[list[int]]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.settings, []).append(index)
    return list(groups.values())


def start_rows(released: Function, batch: Any, sampler: Any, *args: Any, **kw: Any) -> Any:
    """End a prefill, with the samplers of its rows."""
    rows = [row.sampling for row in batch.logits_processors if isinstance(row, RowProcessors)]
    if len(rows) != len(batch.uids):
        return released(batch, sampler, *args, **kw)  # not from the server
    batch.greedy_sampling = all(row.sampler is None for row in rows)
    if getattr(batch, "draft_model", None) is not None:  # one sampler: see ``match_samplers``
        return released(batch, rows[0].sampler or sampler, *args, **kw)
    logprobs = max(row.logprobs for row in rows)
    kw |= {"compute_logprobs": logprobs > 0, "top_logprobs_k": max(logprobs - 1, 0)}
    return released(batch, RowSamplers(batch.uids, rows), *args, **kw)


def join_rows(batch: Any, other: Any, /) -> None:
    """Add the samplers of the rows that join, and logprobs of 0 for those that need none."""
    if not has_rows(other) or (batch.uids and not has_rows(batch)):
        return
    rows = batch.sampler.rows if batch.uids else []
    batch.sampler = RowSamplers([*batch.uids, *other.uids], rows + other.sampler.rows)
    for one, other_one in ((batch, other), (other, batch)):
        for name in ("_next_lps", "_next_top_idx", "_next_top_lp"):
            fill_zeros(one, other_one, name)
    set_outputs(batch)


def fill_zeros(batch: Any, other: Any, name: str) -> None:
    """Zeros for a batch whose rows need no logprobs, if the rows of the other one do."""
    like = getattr(other, name)
    if getattr(batch, name) is None and like is not None and batch._next_tokens is not None:
        vars(batch)[name] = mx.zeros((len(batch.uids), *like.shape[1:]), like.dtype)


def keep_rows(batch: Any, keep: Any, /) -> None:
    """Keep the samplers of the rows that stay."""
    if has_rows(batch) and len(batch.sampler.rows) != len(batch.uids):
        batch.sampler = RowSamplers(batch.uids, [batch.sampler.rows[index] for index in keep])
        if batch.uids:
            set_outputs(batch)


def has_rows(batch: Any, /) -> bool:
    """Whether a batch has a sampler for each row."""
    return isinstance(batch.sampler, RowSamplers)


def set_outputs(batch: Any) -> None:
    """Compute what the rows of a batch need."""
    rows = batch.sampler.rows
    logprobs = max(row.logprobs for row in rows)
    batch.compute_logprobs, batch.top_logprobs_k = logprobs > 0, max(logprobs - 1, 0)
    batch.greedy_sampling = all(row.sampler is None for row in rows)


def match_samplers(released: Function, generator: Any, **kwargs: Any) -> Any:
    """Take a step; with a draft model, prefill only requests that are sampled alike."""
    waiting = generator._unprocessed_sequences
    settings = [getattr(getattr(one[4], "sampling", None), "settings", None) for one in waiting]
    if len({*settings}) < 2 or not has_draft(generator):
        return released(generator, **kwargs)
    held = [one for one, found in zip(waiting, settings, strict=True) if found != settings[0]]
    generator._unprocessed_sequences = [one for one in waiting if one not in held]
    try:
        return released(generator, **kwargs)
    finally:
        left = generator._unprocessed_sequences + held
        generator._unprocessed_sequences = sorted(left, key=lambda one: len(one[1]))


def has_draft(generator: Any, /) -> bool:
    return generator.draft_model is not None


PATCH = Patch(
    id="vlm-row-samplers",
    targets=(
        *result(
            "mlx_vlm.server.generation:ResponseGenerator._make_logits_processors",
            add_sampling,
            fingerprint_of=("ResponseGenerator._run", "ResponseGenerator._run_impl"),
        ),
        *result(
            "mlx_vlm.server:_build_gen_args",
            add_sampling_to_args,
            fingerprint_of=("ResponseGenerator._run",),
        ),
        *result("mlx_vlm.server.app:_build_gen_args", add_top_logprobs, supports=True),
        *wrap(vlm_generators("PromptProcessingBatch.generate"), start_rows, supports=True),
        *before(vlm_generators("GenerationBatch.extend"), join_rows, supports=True),
        *after(vlm_generators("GenerationBatch.filter"), keep_rows, supports=True),
        *wrap(
            "mlx_vlm.generate.ar:BatchGenerator._next",
            match_samplers,
            when=has_draft,
            supports=True,
        ),
    ),
)
