"""Processors written for FastDeploy, as source: they import its modules, for which a test installs the stand-ins."""

from __future__ import annotations

WRITTEN_FOR_FASTDEPLOY = '''
import paddle
from paddleformers.utils.log import logger

from fastdeploy.config import FDConfig
from fastdeploy.model_executor.logits_processor.base import LogitsProcessor
from fastdeploy.utils import get_logger, llm_logger


class CountsRows(LogitsProcessor):
    """Row r is the r-th slot that is not stopped, as FastDeploy's LogitBias has it."""

    def __init__(self, fd_config: FDConfig) -> None:
        self.dtype = fd_config.model_config.dtype
        self.edits = []

    def update_state(self, share_inputs: dict) -> None:
        args = [a for a, f in zip(share_inputs["logits_processors_args"], share_inputs["stop_flags"]) if not f]
        self.edits = [(row, a.get("wanted")) for row, a in enumerate(args) if a.get("wanted") is not None]

    def apply(self, logits: paddle.Tensor) -> paddle.Tensor:
        if not self.edits:
            return logits
        rows, tokens = zip(*self.edits)
        places = paddle.tensor(list(rows), dtype="int32"), paddle.tensor(list(tokens), dtype="int32")
        logits[places] += paddle.tensor([1000.0] * len(rows), dtype=self.dtype)
        return logits


class NumbersSlots(LogitsProcessor):
    """Row r is slot r, fields are read as FastDeploy's ThinkingBudget reads them; forces a token `after` so many"""

    def __init__(self, fd_config: FDConfig) -> None:
        self.start = getattr(fd_config.model_config, "think_start_id", -1)
        self.slots = fd_config.scheduler_config.max_num_seqs
        self.counts = {}
        self.forced = []
        logger.info("built")
        get_logger("mine", "mine.log").info("built")
        llm_logger.info("built")

    def update_state(self, share_inputs: dict) -> None:
        flags = share_inputs["stop_flags"].numpy().reshape(-1).tolist()
        lens = share_inputs.get("prompt_lens").numpy().reshape(-1)
        step_idx, next_tokens = share_inputs.get("step_idx"), share_inputs.get("next_tokens")
        assert share_inputs.get("no_such_field") is None
        self.forced = []
        slots = [slot for slot, args in enumerate(share_inputs["logits_processors_args"])
                 if not flags[slot] and args and args.get("after") is not None]
        here = {share_inputs["req_ids"][slot] for slot in slots}
        self.counts = {name: count for name, count in self.counts.items() if name in here}
        if not slots:
            return
        chosen = paddle.to_tensor(slots, dtype="int64", place=step_idx.place)
        steps = paddle.index_select(step_idx, chosen, axis=0).numpy().reshape(-1)
        tokens = paddle.index_select(next_tokens, chosen, axis=0).numpy().reshape(-1)
        for index, slot in enumerate(slots):
            name, args = share_inputs["req_ids"][slot], share_inputs["logits_processors_args"][slot]
            known = self.counts.setdefault(name, 0)
            assert steps[index] == known
            self.counts[name] += 1
            prompt = share_inputs["token_ids_all"][slot, : int(lens[slot])].numpy().tolist()
            assert prompt == share_inputs["prompt_ids"][slot, : int(lens[slot])].numpy().tolist()
            if known:
                written = share_inputs["pre_ids"][slot]
                assert int(written[int(steps[index]) - 1].item()) == tokens[index]
            else:
                assert tokens[index] == -1
            if known >= args["after"] or prompt[0] == self.start:
                self.forced.append((slot, args["token"]))

    def apply(self, logits: paddle.Tensor) -> paddle.Tensor:
        for slot, token in self.forced:
            logits[slot, :] = -float("inf")
            logits[slot, token] = 0.0
        return logits


class Asks(LogitsProcessor):
    """Tells what it was answered."""

    told = []

    def __init__(self, fd_config: FDConfig) -> None:
        config = fd_config.model_config
        self.config = (config.think_start_id, config.think_end_id, config.dtype, config.vocab_size, config.hidden_size,
                       fd_config.scheduler_config.max_num_seqs, getattr(config, "nothing", "absent"))

    def update_state(self, share_inputs: dict) -> None:
        flags = share_inputs["stop_flags"]
        self.told.append({
            "config": self.config,
            "not": paddle.logical_not(flags).numpy().tolist(),
            "equal": (flags == False).flatten().tolist(),
            "any": bool(paddle.any(flags)),
            "item": flags[0].item(),
            "truth": not flags[0],
            "loop": [(f.item(), bool(f), f.numpy().tolist()) for f in flags],
            "cast": flags.astype("int64").reshape([-1]).sum().item(),
            "shape": list(flags.shape),
            "dtype": str(flags.dtype),
            "on host": all(share_inputs[name].place.is_cpu_place() for name in share_inputs
                           if isinstance(share_inputs[name], paddle.Tensor)),
            "steps": (share_inputs["step_idx"] + 1).tolist(),
            "fields": sorted(share_inputs),
        })
        for write in (lambda: share_inputs.update(a=1), lambda: share_inputs.__setitem__("a", 1)):
            try:
                write()
            except (TypeError, AttributeError):
                continue
            raise AssertionError("it could be written to")
        flags.fill_(True)
        share_inputs["next_tokens"][:] = 7
        share_inputs["req_ids"][0] = "another"

    def apply(self, logits: paddle.Tensor) -> paddle.Tensor:
        return logits


class LogitBiasLogitsProcessor(CountsRows):
    """Of the name, and so with the arguments, of FastDeploy's own."""

    def update_state(self, share_inputs: dict) -> None:
        maps = [a.get("logit_bias") or {} for a in share_inputs["logits_processors_args"]]
        self.edits = [(row, token) for row, bias in enumerate(maps) for token in bias]


class ThinkingBudgetLogitsProcessor(NumbersSlots):
    """The same of the other: keeps the arguments that it saw."""

    seen = []

    def update_state(self, share_inputs: dict) -> None:
        self.seen += [dict(args) for args in share_inputs["logits_processors_args"]]
'''
