"""Weight sync: when weights go to the engine, how, and whether the right ones arrived."""

from areal_lit.weight_sync.manifest import as_announced
from areal_lit.weight_sync.mismatch import MismatchAlarm, MismatchError
from areal_lit.weight_sync.settings import WeightSync
from areal_lit.weight_sync.syncer import WeightSyncer, WeightSyncError

__all__ = ["MismatchAlarm", "MismatchError", "WeightSync", "WeightSyncError", "WeightSyncer", "as_announced"]
