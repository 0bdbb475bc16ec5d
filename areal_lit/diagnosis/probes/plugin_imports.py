"""Every installed plugin can be imported: says which is next, and then what is wrong with it."""

from __future__ import annotations

import json

from areal_lit.plugins import PluginError, Plugins


def main() -> None:
    plugins = Plugins.discover()
    for plugin in plugins:
        what = {"kind": plugin.kind, "path": plugin.path}
        print(json.dumps(what), flush=True)
        try:
            plugins.load(plugin.kind, plugin.path)
        except PluginError as error:
            print(json.dumps({**what, "broken": str(error)}), flush=True)


if __name__ == "__main__":
    main()
