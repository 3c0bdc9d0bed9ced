"""DeepSpeedEngine and PipelineEngine as attach() asks for them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from trainer_shim.interfaces import Saver
from trainer_shim.meter import StepMeter

from . import deepspeed_engine, pipeline_engine


class DeepSpeedKind:
    """A DeepSpeedEngine or PipelineEngine."""

    def __init__(self, engine: Any, is_pipeline: bool) -> None:
        self._engine = engine
        self._is_pipeline = is_pipeline

    def checkpoint_dir(self) -> Optional[str]:
        """DeepSpeed's configuration names none: the script passes it to save_checkpoint."""
        return None

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        return deepspeed_engine.DeepSpeedSaver(self._engine, meter, directory)

    def hello_fields(self) -> Dict[str, Any]:
        fields = deepspeed_engine.hello_fields(self._engine)
        if self._is_pipeline:
            fields["framework"] = "pipeline"
            del fields["parameters"]  # This stage's share only.
        return fields

    def token_replicas(self) -> int:
        return deepspeed_engine.token_replicas(self._engine)

    def step(self) -> int:
        return int(self._engine.global_steps)

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        if self._is_pipeline:
            return pipeline_engine.instrument(self._engine, meter, meter.boundary)
        return deepspeed_engine.instrument(self._engine, meter, meter.boundary)
