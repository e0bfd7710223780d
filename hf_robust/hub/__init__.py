"""What this project shares with the Hub, and what it registers on this machine so that the bare load lines work."""

from __future__ import annotations

from .modules import Registered, metric_module_folders, modules_cache, register_metric_modules, remove_metric_modules
from .network import HubError
from .spaces import Space, metric_space, publish_metric

__all__ = [
    "HubError",
    "Registered",
    "Space",
    "metric_module_folders",
    "metric_space",
    "modules_cache",
    "publish_metric",
    "register_metric_modules",
    "remove_metric_modules",
]
