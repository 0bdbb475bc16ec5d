"""Finding and loading models and tokenizers; the tiny model and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.utils import logging

from areal_lit.models import (
    end_token_ids,
    load_causal_lm,
    load_config,
    load_tokenizer,
    resolve,
    without_progress_bars,
)
from areal_lit.testing.tiny import tiny_spec, tiny_tokenizer
from areal_lit.text import TextCodec
from areal_lit.types import ModelSpec


def test_paths_are_resolved_or_refused(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == str(tmp_path)
    assert resolve("org/model") == "org/model"
    assert Path(resolve("package:areal_lit/py.typed")).is_file()
    for path, message in (
        (str(tmp_path / "absent"), "does not exist"),
        ("package:no_such_package/x", "'no_such_package', which is not installed"),
        ("package:areal_lit/absent", "has no file 'absent'"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve(path)


def test_a_bare_configuration_gives_the_same_random_weights_each_time(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    state = torch.random.get_rng_state()
    first, second, other = (load_causal_lm(s) for s in (spec, spec, replace(spec, init_seed=1)))
    assert torch.equal(state, torch.random.get_rng_state())
    assert not first.training
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert load_causal_lm(spec, dtype="bfloat16").dtype == torch.bfloat16


def test_a_bare_configuration_needs_a_model_type() -> None:
    with pytest.raises(ValueError, match='needs "model_type"'):
        load_config(ModelSpec(path="x", config={"hidden_size": 8}))


@pytest.mark.parametrize("load", [load_config, load_tokenizer, load_causal_lm])
def test_a_model_that_is_nowhere_is_named_with_its_key_in_the_recipe(load: Callable[[ModelSpec], object]) -> None:
    with pytest.raises(OSError, match=r"the model 'nobody/no-such-model' cannot be loaded(.|\n)*policy\.model\.path"):
        load(ModelSpec(path="nobody/no-such-model"))


@pytest.mark.parametrize("load", [load_config, load_causal_lm, load_tokenizer])
def test_code_that_a_model_brings_is_not_run_and_the_way_to_trust_it_is_named(
    tmp_path: Path, load: Callable[[ModelSpec], object]
) -> None:
    own = {"AutoConfig": "wild.Config", "AutoModelForCausalLM": "wild.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "wild", "auto_map": own}))
    own_tokenizer = {"tokenizer_class": "Wild", "auto_map": {"AutoTokenizer": ["wild.Tokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own_tokenizer))
    (tmp_path / "wild.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match=rf"the model '{tmp_path}' needs Python code .* set trust_remote_code: true"):
        load(ModelSpec(path=str(tmp_path)))
    assert not (tmp_path / "ran").exists()


def test_a_saved_model_loads_as_it_was(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path / "tokenizer")
    model = load_causal_lm(spec)
    model.save_pretrained(tmp_path / "model")
    load_tokenizer(spec).save_pretrained(tmp_path / "model")
    saved = ModelSpec(path=str(tmp_path / "model"))
    again = load_causal_lm(saved, attn_implementation="eager")
    assert again.config._attn_implementation == "eager"
    assert all(torch.equal(p, again.get_parameter(name)) for name, p in model.named_parameters())
    assert load_config(saved).hidden_size == 32


def test_loading_and_saving_draw_no_progress_bars(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = tiny_spec(tmp_path)
    model = load_causal_lm(spec)
    was_enabled = logging.is_progress_bar_enabled()
    with without_progress_bars():
        model.save_pretrained(tmp_path)
    load_causal_lm(replace(spec, config=None))
    assert logging.is_progress_bar_enabled() == was_enabled
    assert capfd.readouterr().err == ""


def test_end_tokens_come_from_tokenizer_and_generation_configuration(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    assert end_token_ids(spec, load_tokenizer(spec)) == (1,)
    model = load_causal_lm(spec)
    model.generation_config.eos_token_id = [1, 4]
    model.save_pretrained(tmp_path)
    assert end_token_ids(replace(spec, config=None), load_tokenizer(spec)) == (1, 4)
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="has no end token"):
        end_token_ids(spec, tokenizer)


def test_decoding_and_encoding_again_changes_ids(tmp_path: Path) -> None:
    codec = TextCodec(tiny_spec(tmp_path))
    one = codec.encode("1")
    twice = np.concatenate([one, one])
    assert codec.decode(twice) == "11"
    assert codec.encode("11").tolist() != twice.tolist()
    assert codec.decode(codec.encode("AB ~")) == "ab ?"
    assert codec.tokenizer.pad_token_id != codec.tokenizer.eos_token_id


def test_the_template_drops_earlier_thinking_so_it_is_not_append_only(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    codec, plain = TextCodec(spec), TextCodec(spec, template_kwargs={"enable_thinking": False})
    asked = [{"role": "user", "content": "1+1="}]
    answered = [*asked, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n2"}]
    longer = [*answered, {"role": "user", "content": "and?"}]
    first = codec.tokenizer.decode(codec.encode_messages(answered, add_generation_prompt=False))
    second = codec.tokenizer.decode(codec.encode_messages(longer))
    assert "hm" in first
    assert "hm" not in second
    assert codec.tokenizer.decode(plain.encode_messages(asked)).endswith("<|assistant|><think>\n\n</think>\n\n")


def test_threads_that_load_models_at_once_get_whole_ones() -> None:
    spec = ModelSpec(path="package:areal_lit_recipes/quickstart_model")
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(lambda _: load_causal_lm(spec), range(16)))
    first, *others = [torch.cat([p.flatten() for p in model.parameters()]) for model in loaded]
    assert all(torch.equal(first, other) for other in others)
