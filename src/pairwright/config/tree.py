"""The whole configuration of a run: one section a stage, in the order of the flow."""

from pydantic import Field, model_validator

from pairwright.config.backend import BackendConfig
from pairwright.config.collect import CollectConfig, TeachConfig
from pairwright.config.engine import EngineConfig
from pairwright.config.evaluate import EvaluateConfig
from pairwright.config.loop import LoopConfig
from pairwright.config.pairs import PairsConfig
from pairwright.config.policy import PolicyConfig
from pairwright.config.section import Section
from pairwright.config.sources import SourcesConfig
from pairwright.config.tokens import TokensConfig
from pairwright.config.train import TrainConfig


class Config(Section):
    """A run: one section a stage, each with its own options. `load_config` reads one from a file.

    >>> import pairwright as pw
    >>> pw.Config(name="first", train={"epochs": 2}).train.epochs
    2
    """

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; its files are in runs/<name>."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of everything that is drawn."""
    model: str | None = None
    """Folder of the model that is trained, and the policy's unless that has an endpoint; by default policy.model."""
    loop: LoopConfig = LoopConfig()
    sources: SourcesConfig = SourcesConfig()
    policy: PolicyConfig = PolicyConfig()
    collect: CollectConfig = CollectConfig()
    teach: TeachConfig = TeachConfig()
    pairs: PairsConfig = PairsConfig()
    tokens: TokensConfig = TokensConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    engine: EngineConfig = EngineConfig()
    backend: BackendConfig = BackendConfig()

    @model_validator(mode="after")
    def _follows_curriculum(self) -> "Config":
        """Our own trainer follows a curriculum; NeMo RL can keep the order of its file, but knows no stages."""
        pairs, trainer = self.pairs, self.backend.name
        key = "curriculum_start" if pairs.curriculum_start is not None else "curriculum"
        if pairs.curriculum == "none" or trainer in ("local", "ray") or (trainer, key) == ("nemo-rl", "curriculum"):
            return self
        raise ValueError(
            f"pairs.{key}: backend {trainer} would train the pairs in another order: leave it out, or set "
            "backend.name to local or ray"
        )
