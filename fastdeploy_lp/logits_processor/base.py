"""The native contract of a logits processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.actions import OUTSIDE, Actions, give_actions
from fastdeploy_lp.logits_processor.late_values import FAIL, PrepareRequest
from fastdeploy_lp.logits_processor.stages import DRAW, LOGITS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.request.sampling_params import SamplingParams


class LogitsProcessor(ABC):
    """A native processor: changes the logits of the whole batch between the model and the sampler.

    One instance serves all requests of a worker. In every step that samples, the chain calls `update_state` once, but
    not for a processor at rest (`steps_at_rest`), and then `apply` once. `update_state` always runs before the first
    `apply`. When another processor of the chain fails, `apply` runs once more in the same step, on the same logits.
    """

    Params: ClassVar[type[BaseModel] | None] = None
    """Pydantic model of the arguments that a request may pass, checked when the request arrives. With None, arguments
    whose names the class's code mentions reach it unchecked."""

    Output: ClassVar[type[BaseModel] | None] = None
    """Pydantic model of the values that the processor emits, checked when it emits one."""

    accepts_any_args: ClassVar[bool] = False
    """True if a processor without `Params` reads arguments whose names its code does not mention. Otherwise a request
    with an argument that no processor knows is refused."""

    only_with_args: ClassVar[bool] = False
    """True if the processor leaves requests alone that pass none of its `Params`. The chain then calls it only in steps
    with requests that use it, and shows it only their rows: it cannot change other rows."""

    keeps_rows_valid: ClassVar[bool] = False
    """True if a row with a finite logit and no NaN always still has a finite logit and no NaN afterwards. The guard
    checks the rows that other processors worked on."""

    stage: ClassVar[str] = LOGITS
    """When it runs. "logits": `apply` edits the model's logits, before penalties and temperature. "filtered": `apply`
    edits the distribution that the token is drawn from. "draw": `draw` chooses the token, and there is no `apply`.

    In the stages "filtered" and "draw" the rows are those of its own requests with a temperature above 0: other slots
    appear stopped. A row holds logits divided by the temperature, float32, and -inf for each token that guided
    decoding, a ban or a filter rules out; its softmax is the distribution. What `apply` writes in place of such a -inf
    is dropped.
    """

    steps_at_rest: int = 0
    """After each `update_state`, the number of further steps for which the state holds while the same requests have
    rows: the chain leaves out the calls of `update_state` in these steps. `sys.maxsize` if it never follows the tokens.
    It is read in the stage "logits" only."""

    max_rewind: ClassVar[int] = 0
    """The most output tokens that it takes back at once (`actions.rewind`), up to 1,024; 0 if it takes none back. The
    server sends the last tokens of the requests that it works on, as many as this, only when others follow."""
    prepare_timeout: ClassVar[float] = 1.0
    """Seconds that `prepare` may take, unless `prepare_late` is "hold"."""

    prepare_late: ClassVar[str] = FAIL
    """What happens without a value in time: "fail", the request ends with an error; "skip", it runs without the
    processor, unless that is mandatory or forced; "hold", it waits for the value as long as it lives."""

    actions: Actions = OUTSIDE
    """Its verbs, valid in `update_state`, `apply` and `draw`; the chain sets them after the constructor."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Lets a class of the stage "draw" do without `apply`; a class that overrides `update_state` is not at rest."""
        super().__init_subclass__(**kwargs)
        if "update_state" in vars(cls) and "steps_at_rest" not in vars(cls):
            cls.steps_at_rest = 0
        if cls.stage == DRAW and getattr(cls.apply, "__isabstractmethod__", False):
            cls.apply = _no_edit  # type: ignore[method-assign]

    @abstractmethod
    def __init__(self, fd_config: FDConfig) -> None:
        """Sets up state from the server's configuration."""

    @abstractmethod
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Reads this step's data from the slot arrays.

        Row r of the logits belongs to the r-th slot whose stop flag is False. Every output token is seen exactly once.
        `share_inputs` is read-only: a write raises, or changes a copy.
        """

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """Returns the changed logits [rows, vocab_size]; changing them in place is cheapest."""

    def draw(self, logits: Tensor, uniforms: NDArray[np.float32]) -> Tensor | NDArray[np.int64]:
        """Returns a token for each row, int64 [rows], on the device or on the host; only for the stage "draw".

        logits: float32 [rows, vocab_size] as in the stage "filtered", not to be changed. uniforms: [rows] in (0, 1],
        from each request's seed and the token's position, so that a draw that uses them does not depend on the batch.
        A token out of the vocabulary, or whose logit is -inf, is a fault of the processor for that request. Like
        `apply`, it must not depend on other rows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method draw")

    def is_argmax_invariant(self) -> bool:
        """Returns True if no row's most likely token can ever change; it is then skipped when all rows are greedy."""
        return False

    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:  # noqa: ARG002 - most force none
        """Returns the token ids that the processor will force in the slot after `output`, in order; empty for none.

        Speculative decoding drafts them. A wrong answer costs time and changes no output, nor may the call itself:
        it must not change what the processor does.

        Called between steps, only for a slot whose request had a row in an earlier `update_state` of this instance.
        `output` is the request's live list of output tokens; exactly one of them, the last, is newer than the latest of
        these `update_state`s. The first token returned is the one that the slot's next `apply` forces.

        An error counts as a fault of the processor, which is then not asked again; it ends no request.
        """
        return ()

    def use_actions(self, actions: Actions) -> None:
        """Sets `actions`; the chain calls it once. A class that uses this name for something else keeps its own."""
        give_actions(self, actions)

    @classmethod
    def rewind_for(cls, args: Mapping[str, Any]) -> int:  # noqa: ARG003 - for subclasses
        """Returns the most tokens that it takes back at once from a request with these arguments, up to `max_rewind`.

        Fewer tokens reach the client sooner. Called in the worker when the request takes a slot.
        """
        return cls.max_rewind

    @classmethod
    async def prepare(cls, request: PrepareRequest) -> Any:  # noqa: ARG003 - most need no value
        """Returns a value for a request, which reaches the processor as its argument `prepared`.

        Runs once for each prompt of a request that uses the processor, in a process beside the server, whose event loop
        all calls share: a call that blocks it for a second is ended, and fails. The request decodes once the value is
        there. The value is what msgpack can represent, of at most 128 KiB. An error counts as no value in time.
        """
        return None

    @classmethod  # noqa: B027 - most refuse nothing
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError for a request that this processor cannot serve; runs in a separate process.

        `sampling_params.extra_args` holds the arguments that this processor will see, None if there are none.
        """


def _no_edit(self: LogitsProcessor, logits: Tensor) -> Tensor:  # noqa: ARG001 - a method
    """Returns the logits unchanged: a processor that draws edits none."""
    return logits
