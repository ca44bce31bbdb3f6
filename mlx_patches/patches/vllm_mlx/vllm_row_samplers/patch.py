"""vllm-mlx in a batch: requests get the first one's temperature; top_k is ignored.

Why: The scheduler has one batch generator, with the temperature, top_p and min_p of the request for
    which it was made. While that batch runs, requests with other settings join it and are sampled
    with them. ``top_k`` and ``presence_penalty`` are accepted and never used.
How: The generator gets a sampler for each row whose settings differ from its own, and a processor
    for the presence penalty. Rows with the generator's settings use its sampler, so a batch of
    equal requests is sampled in one call as before.
Upstream: Not fixed in vllm-mlx 0.6.0. The multimodal engine has a sampler per row. Not repaired
    with mlx-lm below 0.31.2, which has another batch generator.
Retire when: The scheduler passes a sampler per row.
"""

from typing import Any

from ....core.verbs import Function, Patch, result, wrap


class Insert:
    """A generator's ``insert``, which adds the sampler and the penalty of a request."""

    def __init__(self, insert: Any, sampling_params: Any):
        self._insert = insert
        self._settings = read_settings(sampling_params)
        self.sampling_params = sampling_params  # those of the request that is inserted next
        self.key: Any = None  # the scheduler's, for which it made the generator

    def __call__(self, prompts: Any, **kwargs: Any) -> Any:
        """Insert a request; returns what the release returns."""
        params = self.sampling_params
        sampler = None if read_settings(params) == self._settings else make_sampler(params)
        processors = kwargs.pop("logits_processors", None) or [[]] * len(prompts)
        return self._insert(
            prompts,
            samplers=[sampler] * len(prompts),
            logits_processors=[[*row, *make_penalties(params)] for row in processors],
            **kwargs,
        )


class AnySettings:
    """Settings that equal any others: the scheduler then keeps its running batch generator."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


ANY = AnySettings()


def read_settings(params: Any) -> dict[str, Any]:
    """The arguments of mlx-lm's ``make_sampler`` for a request."""
    return {
        "temp": params.temperature,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "top_k": max(params.top_k or 0, 0),
    }


def make_sampler(params: Any) -> Any:
    from mlx_lm.sample_utils import make_sampler as make

    return make(**read_settings(params))


def make_penalties(params: Any) -> list[Any]:
    """The processor of the penalty that the scheduler leaves out."""
    from mlx_lm.sample_utils import make_logits_processors as make

    return list(make(presence_penalty=params.presence_penalty))


def replace_sampler(generator: Any, /, sampling_params: Any) -> Any:
    """A generator with the whole sampler of the request that it is made for."""
    if not hasattr(generator, "_prompt_batch"):
        return generator  # of an earlier mlx-lm
    sampler = make_sampler(sampling_params)
    generator.sampler = sampler
    for batch in (generator._prompt_batch, generator._generation_batch):
        batch.fallback_sampler = sampler  # the batches are empty
    generator.insert = Insert(generator.insert, sampling_params)
    return generator


def ensure_generator(released: Function, scheduler: Any, sampling_params: Any) -> None:
    """Make a generator if there is none, and note the request that the scheduler inserts next.

    A running generator is kept whatever a request's settings; one that is idle is made anew.
    """
    insert = find_insert(scheduler)
    if insert is not None:
        scheduler._current_sampler_params = ANY if scheduler.running else insert.key
    released(scheduler, sampling_params)
    insert = find_insert(scheduler)
    if insert is not None:
        insert.sampling_params = sampling_params
        if scheduler._current_sampler_params is not ANY:
            insert.key = scheduler._current_sampler_params


def find_insert(scheduler: Any) -> Insert | None:
    """The ``insert`` of the scheduler's generator, if this patch has replaced it."""
    insert = getattr(scheduler.batch_generator, "insert", None)
    return insert if isinstance(insert, Insert) else None


_SCHEDULER = "vllm_mlx.scheduler:Scheduler"

PATCH = Patch(
    id="vllm-row-samplers",
    targets=(
        *wrap(f"{_SCHEDULER}._ensure_batch_generator", ensure_generator),
        *result(f"{_SCHEDULER}._create_batch_generator", replace_sampler, supports=True),
    ),
)
