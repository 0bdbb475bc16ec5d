"""The transformers backend: client and server over a real socket, held to the conformance suite."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from areal_lit.contracts import Process, Receiver
from areal_lit.models import load_causal_lm
from areal_lit.testing.inference import check_inference
from areal_lit.testing.tiny import tiny_spec
from areal_lit.types import GenerateRequest, ModelSpec, Sampling, WeightSource
from areal_lit_inference.transformers import Transformers, messages
from areal_lit_inference.transformers.server import serve

PROMPT = np.asarray([11, 12, 13, 14, 15])
HERE = f"{__name__}:SeededReceiver"


def seeded_weights(spec: ModelSpec, version: int) -> list[tuple[str, Tensor]]:
    """Weights that differ by version, tied ones once."""
    model = load_causal_lm(spec)
    generator = torch.Generator().manual_seed(version)
    return [(n, p.detach() + 0.05 * torch.randn(p.shape, generator=generator)) for n, p in model.named_parameters()]


class SeededReceiver(Receiver):
    """Makes up a version's weights, times ``factor``; after ``breaks_after`` tensors it raises."""

    def receive(self, params: Any, index: int, timeout_s: float) -> Iterator[tuple[str, Tensor]]:
        spec = ModelSpec(path=params["path"], config=params["config"])
        for i, named in enumerate(seeded_weights(spec, params["version"])):
            if i == params.get("breaks_after"):
                raise TimeoutError("nothing came")
            name, tensor = named
            yield name, tensor * params.get("factor", 1.0)


def source(spec: ModelSpec, version: int, **params: Any) -> WeightSource:
    values = {"path": spec.path, "config": dict(spec.config or {}), "version": version, **params}
    return WeightSource(version=version, receiver=HERE, params=values)


class ThreadProcess(Process):
    """The server in a thread, as ``inline`` runs it."""

    def __init__(self, name: str, address: str, target: Any, kwargs: Any) -> None:
        self.name, self.ports, self.address = name, (), address
        self._thread = threading.Thread(target=self._run, args=(target, kwargs), name=name)
        self._thread.start()

    def _run(self, target: Any, kwargs: Any) -> None:
        try:
            target(self.address, **kwargs)
        except (ValueError, RuntimeError) as error:  # the client has been told
            print(error)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, grace_s: float = 5.0) -> None:
        self._thread.join(grace_s)


@asynccontextmanager
async def running(
    backend: Transformers, spec: ModelSpec, tmp_path: Path, *, deterministic: bool = False
) -> AsyncIterator[None]:
    """The backend, connected to a server that must return when its client disconnects."""
    (process_spec,) = backend.processes(spec, seed=0, deterministic=deterministic)
    process = ThreadProcess(process_spec.name, str(tmp_path / "s"), serve, process_spec.kwargs)
    try:
        await backend.connect([process])
        yield
    finally:
        await backend.close()
        await asyncio.to_thread(process.stop, 60)
    assert not process.is_alive(), "the server outlives its client"


def request(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(request_id="r", token_ids=PROMPT, sampling=Sampling(**sampling), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
async def test_it_conforms(tmp_path: Path, deterministic: bool) -> None:
    spec = tiny_spec(tmp_path)
    models: dict[int, Any] = {}

    def reference(version: int, token_ids: Any, temperature: float) -> Any:
        if version not in models:
            models[version] = load_causal_lm(spec)
            models[version].load_state_dict(dict(seeded_weights(spec, version)), strict=False)
        with torch.no_grad():
            logits = models[version](torch.from_numpy(token_ids)[None]).logits[0, :-1] / temperature
        chosen = logits.log_softmax(-1).gather(1, torch.from_numpy(token_ids)[1:, None])[:, 0]
        return np.concatenate([np.zeros(1, np.float32), chosen.numpy()])

    backend = Transformers(max_slots=8)
    async with running(backend, spec, tmp_path, deterministic=deterministic):
        await check_inference(
            backend, publish=lambda v: source(spec, v), reference=reference, prompt=PROMPT, max_length=512
        )


async def test_a_torn_update_serves_nothing_until_one_succeeds(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    backend = Transformers(max_slots=4, trust_checkpoint=True)
    async with running(backend, spec, tmp_path):
        assert (await backend.generate(request(max_new_tokens=2))).versions.tolist() == [0, 0]
        with pytest.raises(TimeoutError, match="nothing came"):
            await backend.update_weights(source(spec, 1, breaks_after=0))
        assert (await backend.generate(request(max_new_tokens=1))).versions.tolist() == [0]
        with pytest.raises(TimeoutError, match="nothing came"):
            await backend.update_weights(source(spec, 1, breaks_after=3))
        with pytest.raises(RuntimeError, match="failed half-way"):
            await backend.generate(request(max_new_tokens=2))
        await backend.update_weights(source(spec, 1))
        assert (await backend.generate(request(max_new_tokens=1))).versions.tolist() == [1]


async def test_weights_that_are_no_numbers_are_told_to_the_trainer_and_to_who_starts_the_engine(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    backend = Transformers(max_slots=4, trust_checkpoint=True)
    async with running(backend, spec, tmp_path):
        with pytest.raises(ValueError, match=r"hold NaN or infinity, the first model\.embed_tokens\.weight"):
            await backend.update_weights(source(spec, 1, factor=float("nan")))
    model = load_causal_lm(spec)
    model.get_input_embeddings().weight.data.fill_(float("nan"))
    model.save_pretrained(tmp_path / "broken")
    shutil.copy(Path(spec.path) / "tokenizer.json", tmp_path / "broken")
    with pytest.raises(ConnectionError, match="of a model just loaded, look at its files"):
        async with running(Transformers(max_slots=4), ModelSpec(path=str(tmp_path / "broken")), tmp_path / "broken"):
            pass


async def test_a_stop_string_ends_a_completion(tmp_path: Path) -> None:
    from areal_lit.text import TextCodec

    spec = tiny_spec(tmp_path)
    backend = Transformers(max_slots=4, trust_checkpoint=True)
    async with running(backend, spec, tmp_path):
        free = await backend.generate(request(max_new_tokens=30, ignore_eos=True))
        texts = [TextCodec(spec).tokenizer.decode([int(t)]) for t in free.token_ids]
        stop = "".join(texts[6:9])
        stopped = await backend.generate(request(max_new_tokens=30, stop=(stop,)))
        assert stopped.stop_reason == "stop"
        assert len(stopped.token_ids) <= 9
        assert stopped.token_ids.tolist() == free.token_ids[: len(stopped.token_ids)].tolist()


async def test_an_engine_that_cannot_load_says_why(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, sliding_window=8, use_sliding_window=True, max_window_layers=0)
    with pytest.raises(ConnectionError, match="serves full causal attention only"):
        async with running(Transformers(), spec, tmp_path):
            pass


async def test_an_engine_of_another_version_refuses_to_serve(tmp_path: Path) -> None:
    class Other(Transformers):
        def processes(self, spec: ModelSpec, *, seed: int, deterministic: bool) -> Any:
            (process,) = super().processes(spec, seed=seed, deterministic=deterministic)
            (path,) = process.kwargs["fingerprint"]
            kwargs = {**process.kwargs, "fingerprint": {path: "areal-lit 0.0.1"}}
            return [replace(process, kwargs=kwargs)]

    with pytest.raises(ConnectionError, match=r"Other: areal-lit .* here, areal-lit 0\.0\.1 on the controller"):
        async with running(Other(), tiny_spec(tmp_path), tmp_path):
            pass


async def test_a_lost_engine_fails_what_waits(tmp_path: Path) -> None:
    backend = Transformers(max_slots=2, trust_checkpoint=True)
    async with running(backend, tiny_spec(tmp_path), tmp_path):
        pending = asyncio.create_task(backend.generate(request(max_new_tokens=500, ignore_eos=True)))
        await asyncio.sleep(0)
        await backend.close()
        with pytest.raises(ConnectionError):
            await pending


async def test_a_request_that_cannot_be_sent_fails_alone(tmp_path: Path) -> None:
    backend = Transformers(max_slots=2, trust_checkpoint=True)
    async with running(backend, tiny_spec(tmp_path), tmp_path):
        odd = request(max_new_tokens=4, stop_token_ids=(10**30,))
        fine = replace(request(max_new_tokens=4), request_id="fine")
        answers = await asyncio.gather(backend.generate(odd), backend.generate(fine), return_exceptions=True)
        assert isinstance(answers[0], ValueError)
        assert "cannot be sent" in str(answers[0])
        assert len(answers[1].token_ids) > 0


async def test_an_urgent_request_overtakes_a_full_engine(tmp_path: Path) -> None:
    backend = Transformers(max_slots=1, trust_checkpoint=True)
    async with running(backend, tiny_spec(tmp_path), tmp_path):
        crowd = [asyncio.create_task(backend.generate(request(max_new_tokens=400, ignore_eos=True))) for _ in range(6)]
        await asyncio.sleep(0)
        urgent = replace(request(max_new_tokens=4, ignore_eos=True), is_urgent=True)
        await asyncio.wait_for(backend.generate(urgent), 60)
        assert sum(task.done() for task in crowd) <= 1
        for task in crowd:
            task.cancel()


async def test_a_frame_that_cannot_be_read_fails_what_waits(tmp_path: Path) -> None:
    backend = Transformers(max_slots=2)
    process = ThreadProcess("engine-0", str(tmp_path / "s"), speaks_another_version, {})
    await backend.connect([process])
    pending = asyncio.create_task(backend.generate(request(max_new_tokens=4)))
    with pytest.raises(ConnectionError, match=r"engine-0 sent what cannot be read: \w+Error"):
        await asyncio.wait_for(pending, 60)
    with pytest.raises(ConnectionError, match="cannot be read"):
        await backend.resume()
    await backend.close()
    await asyncio.to_thread(process.stop, 60)
    assert not process.is_alive(), "the engine must see that its client is gone"


def speaks_another_version(address: str) -> None:
    """Ready, then a frame of messages that the client does not know."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(1)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(messages.frame([messages.Ready()]))
            connection.recv(1)
            connection.sendall(messages.frame([messages.Cancel(number=0)]))
            while connection.recv(4096):
                pass


def test_out_of_range_options_are_refused() -> None:
    with pytest.raises(ValueError, match="max_slots must be >= 1, got 0"):
        Transformers(max_slots=0)
