"""The only place that imports MLflow: recording a run, registering its release, finding it again.

`store` says where and whether it can be reached, `metrics` what may be logged, `record` writes a
run, `searches` a search, `register` a model, `registry` looks models up, `pyfunc` is what a loaded
model does.
Importing this package does not import MLflow, which takes seconds; calling into it does.
"""

from __future__ import annotations

from dpray.tracking.record import record
from dpray.tracking.searches import record_search
from dpray.tracking.store import check_reachable

__all__ = ["check_reachable", "record", "record_search"]
