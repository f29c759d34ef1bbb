"""The processor of FastDeploy's document as printed, with a body; a server loads it with `--fastdeploy-compat`."""

from fastdeploy.config import FDConfig
from fastdeploy.openai.logits_processor import LogitsProcessor
from paddle import Tensor

FORCED_TOKEN = 345


class YourLogitsProcessor(LogitsProcessor):
    def __init__(self, fd_config: FDConfig) -> None:
        self.enabled = None
        return

    def update_state(self, share_inputs: dict) -> None:
        stop_flags = share_inputs["stop_flags"]
        logits_processors_args = share_inputs["logits_processors_args"]
        logits_processors_args = [a for a, f in zip(logits_processors_args, stop_flags) if not f]  # noqa: B905
        self.enabled = [a.enable_your_logits_processor for a in logits_processors_args]
        return

    def apply(self, logits: Tensor) -> Tensor:
        for i, e in enumerate(self.enabled):
            if e:
                logits[i] = -100.0
                logits[i, FORCED_TOKEN] = 0.0
        return logits
