"""An engine of another virtualenv, reduced to taking weights: JSON orders over a Unix socket. No areal_lit here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import socket

import torch


def serve(address, *, out):
    receivers = {}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        while True:
            client, _ = server.accept()
            with client, client.makefile("rw") as stream:
                order = json.loads(stream.readline())
                module, _, name = order["receiver"].partition(":")
                if order["receiver"] not in receivers:
                    receivers[order["receiver"]] = getattr(importlib.import_module(module), name)()
                torch.save(dict(receivers[order["receiver"]].receive(order["params"], 0, 60.0)), out)
                packages = ("areal_lit", "transformers", "numpy", "safetensors")
                answer = {
                    "version": order["version"],
                    "has": [package for package in packages if importlib.util.find_spec(package)],
                }
                stream.write(json.dumps(answer) + "\n")
                stream.flush()
