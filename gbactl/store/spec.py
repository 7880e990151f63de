"""Description of one shard's contents, sent to the server's process."""

from __future__ import annotations

from dataclasses import dataclass, field

from gbactl.errors import ConfigError
from gbactl.kernels.base import Floats
from gbactl.store.dense import DenseSpec
from gbactl.store.optim import OptimizerSpec

ROW_L2_SCOPES = ("touched", "all")
MOST_ROWS_FOR_ALL = 2_000_000


@dataclass(frozen=True)
class ShardSpec:
    """Contents of shard `shard` of `shards`: its share of a table of `rows` x `width` and of the dense vector.

    `row_weight_decay` alone decays rows; `row_optimizer.weight_decay` is for dense blocks. `dense_init` is
    the shard's slice f32[hi - lo] and is copied. The first `dense_shards` shards (None: all) hold a dense slice.
    """

    shard: int
    shards: int
    rows: int
    width: int
    seed: int = 0
    init_scale: float = 0.01
    row_optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    row_l2: str = "touched"
    row_weight_decay: float = 0.0
    dense: DenseSpec | None = None
    dense_optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    dense_init: Floats | None = None
    dense_shards: int | None = None
    sparse_divisor: str = "global"
    row_staleness: str = "token"

    @property
    def local_rows(self) -> int:
        """Number of table rows r with r % shards == shard."""
        return max(0, (self.rows - self.shard + self.shards - 1) // self.shards)

    @property
    def dense_holders(self) -> int:
        """Number of shards that hold a slice of the dense vector."""
        return self.shards if self.dense_shards is None else self.dense_shards

    def check(self) -> None:
        """Raise ConfigError on values out of range."""
        if not (0 <= self.shard < self.shards and self.rows >= 0 and self.width > 0):
            raise ConfigError(f"Shard {self.shard} of {self.shards} with {self.rows} x {self.width} rows cannot be.")
        if not 1 <= self.dense_holders <= self.shards:
            raise ConfigError(f"{self.dense_holders} of {self.shards} shards cannot hold the dense vector.")
        if self.row_l2 not in ROW_L2_SCOPES or self.sparse_divisor not in ("global", "contributors"):
            raise ConfigError("optim.row_l2 is touched or all; mode.sparse_divisor is global or contributors.")
        if self.row_staleness not in ("token", "row"):
            raise ConfigError("mode.row_staleness is token or row.")
        if self.row_l2 == "all" and self.local_rows > MOST_ROWS_FOR_ALL:
            raise ConfigError(
                f"optim.row_l2=all steps every row every time and a server would hold {self.local_rows:,}; "
                f"type optim.row_l2=touched, or use servers enough for {MOST_ROWS_FOR_ALL:,} rows each."
            )
