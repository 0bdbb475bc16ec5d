"""Plugins: components found in entry-point metadata, and the hook manager of a run."""

from areal_lit.plugins.discovery import Plugin, PluginError, Plugins, import_named, kind_of, load_defaults
from areal_lit.plugins.distributions import check_fingerprint, fingerprint
from areal_lit.plugins.manager import HookError, create_plugin_manager, tell_all

__all__ = [
    "HookError", "Plugin", "PluginError", "Plugins", "check_fingerprint", "create_plugin_manager", "fingerprint",
    "import_named", "kind_of", "load_defaults", "tell_all",
]  # fmt: skip
