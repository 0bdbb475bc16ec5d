"""The mistakes: what is written on top of the quickstart, and what the answer must hold: value, rule, way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def component(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": name, "init_args": arguments}


def jsonl(file: str, **arguments: Any) -> dict[str, Any]:
    return {"data": component("jsonl", files=[file], **arguments)}


def model(**changes: Any) -> dict[str, Any]:
    return {"policy": {"model": changes}}


def sampling(**changes: Any) -> dict[str, Any]:
    return {"rollout": {"sampling": changes}}


ROLE = {"model": {"path": "package:areal_lit_recipes/quickstart_model"}, "strategy": "single"}
TINY = {"model_type": "qwen3", "vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1}

MISTAKES: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    # models
    "model path that does not exist": (
        model(path="./no/model"),
        ("'./no/model'", "does not exist", "give a directory"),
    ),
    "model path with too many parts": (
        model(path="models/qwen/small"),
        ("'models/qwen/small'", "no directory here and no hub id", "correct the path"),
    ),
    "model path that is a file": (model(path="./file.txt"), ("'./file.txt'", "is a file", "give its directory")),
    "quantised file that does not exist": (
        model(path="models/small.gguf"),
        ("'models/small.gguf'", "no directory here and no hub id", "correct the path"),
    ),
    "empty model directory": (model(path="./empty"), ("'./empty'", "is empty", "that save_pretrained wrote")),
    "run directory as model": (
        model(path="./old_run"),
        ("'./old_run'", "holds no config.json", "did you mean old_run/hf"),
    ),
    "adapter as model": (model(path="./adapter"), ("'./adapter'", "an adapter, not a model", "merge it")),
    "model without weights": (
        model(path="./no_weights"),
        ("'./no_weights'", "holds no weights", "give the whole model"),
    ),
    "hub model without network": (
        model(path="nobody/nothing"),
        ("'nobody/nothing'", "HF_HUB_OFFLINE forbids", "hf download nobody/nothing"),
    ),
    "package that is not installed": (
        model(path="package:no_such_package/model"),
        ("'no_such_package'", "which is not installed", "pip install"),
    ),
    "dtype": (model(dtype="float16"), ("got 'float16'", "policy.model.dtype must be one of", "'float32', 'bfloat16'")),
    "tokenizer larger than the model": (
        model(config=TINY),
        ("tokens, the model a vocabulary of 16", "give the tokenizer that belongs", "vocab_size"),
    ),
    # names
    "misspelt reward": (
        {"reward": "exact_macth"},
        ("'exact_macth'", "no reward is called", "did you mean exact_match?"),
    ),
    "misspelt algorithm": ({"algorithm": "gpro"}, ("'gpro'", "no algorithm is called", "did you mean grpo?")),
    "misspelt key": ({"max_step": 3}, ("max_step:", "Trainer has no such key", "did you mean max_steps?")),
    "misspelt key far down": (
        sampling(temprature=1.0),
        ("rollout.sampling.temprature", "no such key", "did you mean temperature?"),
    ),
    "misspelt argument": (
        {"policy": {"optimizer": component("adamw", lr=1e-4, warmup=3)}},
        ("policy.optimizer.init_args.warmup", "AdamW has no such key", "did you mean warmup_steps?"),
    ),
    "argument beside init_args": (
        {"policy": {"optimizer": {"class_path": "adamw", "lr": 1e-4}}},
        ("policy.optimizer.lr", "takes class_path and init_args", "did you mean policy.optimizer.init_args.lr?"),
    ),
    "module that does not exist": (
        {"reward": "my_rewards.Exact"},
        ("'my_rewards.Exact'", "there is no module 'my_rewards'", "is it installed?"),
    ),
    "class that does not exist": (
        {"reward": "areal_lit_rewards.math.Maths"},
        ("areal_lit_rewards.math has no 'Maths'", "did you mean Math?"),
    ),
    "class of another kind": (
        {"reward": "areal_lit_algorithms.grpo.GRPO"},
        ("is a GRPO", "not a subclass of", "name another reward:"),
    ),
    "plugin that fails to import": (
        {"reward": "catalogue_broken.Reward"},
        ("'catalogue_broken.Reward'", "failed to import", "ZeroDivisionError: division by zero"),
    ),
    "two plugins of one name": (
        {"reward": "catalogue_twice"},
        ("reward 'catalogue_twice' is claimed by", "catalogue-one 1.0", "catalogue-two 1.0", "give the dotted path"),
    ),
    "nothing where a part must be": ({"policy": None}, ("policy must be", "Role", "got None")),
    "missing part of a part": ({"data": "jsonl"}, ("data.init_args.files is required", "a list of text")),
    "scalar where a list must be": (
        {"filters": "equal_rewards"},
        ("got 'equal_rewards'", "filters must be a list", "write [equal_rewards]"),
    ),
    "list where a part must be": ({"reward": ["math"]}, ("got ['math']", "reward must be a name", "class_path")),
    "text where a number must be": ({"max_steps": "many"}, ("got 'many'", "max_steps must be", "an integer or null")),
    "number where text must be": ({"name": 7}, ("got 7", "name must be text")),
    "number where a switch must be": ({"deterministic": 1}, ("got 1", "deterministic must be", "true or false")),
    # numbers
    "no steps": ({"max_steps": 0}, ("got 0", "max_steps must be >= 1", "or null for open-ended")),
    "no groups": ({"rollout": {"groups_per_step": 0}}, ("got 0", "rollout.groups_per_step must be >= 1")),
    "negative learning rate": (
        {"policy": {"optimizer": component("adamw", lr=-1e-5)}},
        ("got -1e-05", "lr must be finite and >= 0"),
    ),
    "absurd learning rate": (
        {"policy": {"optimizer": component("adamw", lr=1e30)}},
        ("lr 1e+30", "must be <= 1", "1e-6 to 1e-3 are usual"),
    ),
    "uneven minibatches": (
        {"num_minibatches": 5},
        ("num_minibatches 5", "does not divide the 128 samples", "set it to 4"),
    ),
    "greedy groups": (sampling(temperature=0), ("temperature is 0", "greedy samples", "use e.g. 1.0")),
    "groups of one": (
        {"rollout": {"samples_per_group": 1}},
        ("samples_per_group is 1", "compared with the others", "at least 2"),
    ),
    "stale syncs": (
        {"sync": {"interval": 4}},
        ("rollout.max_staleness 2", "must be >= sync.interval - 1 = 3", "raise max_staleness"),
    ),
    "deterministic and stale": (
        {"deterministic": True},
        ("got 2", "deterministic needs rollout.max_staleness 0", "set it to 0"),
    ),
    "budget under the longest answer": (
        {"policy": {"strategy": component("single", max_tokens_per_microbatch=6)}},
        ("max_new_tokens 6", "do not fit policy.strategy.max_tokens_per_microbatch 6", "raise the latter"),
    ),
    "answers longer than the model": (
        sampling(max_new_tokens=4096),
        ("max_new_tokens 4096", "max_position_embeddings 1024", "lower the former"),
    ),
    # parts that do not fit
    "divergence without reference": (
        {"algorithm": component("grpo", kl_weight=0.1)},
        ("kl_weight 0.1", "reference is missing", "add the section below", "reference:\n  model:\n"),
    ),
    "reference without use": (
        {"reference": ROLE},
        ("reference is given", "GRPO", "does not use it", "remove the section"),
    ),
    "offline algorithm with an engine": (
        {"algorithm": "sft"},
        ("SFT learns from data alone", "no inference or transport", "remove them"),
    ),
    "online algorithm without an engine": (
        {"inference": None},
        ("inference is missing", "GRPO learns from rollouts", "add `inference:`"),
    ),
    "no reward": ({"reward": None}, ("reward is missing", "leaves scoring Arithmetic to it", "name one")),
    "transport within one process": (
        {"transport": "memory"},
        ("transport Memory", "launcher Local starts others", "use transport: file"),
    ),
    "transport the engine does not receive": (
        {"inference": "catalogue_parts.Deaf"},
        ("Deaf cannot load the receiver", "it loads none", "choose another transport"),
    ),
    "several ranks of a strategy with one": (
        {"policy": {"num_ranks": 2}},
        ("policy.num_ranks is 2", "Single runs on one rank", "set num_ranks to 1"),
    ),
    "more GPUs than there are": (
        {"policy": {"num_gpus": 1000}},
        ("policy wants 1000 GPUs", "are free", "ask for fewer"),
    ),
    # data
    "no such file": (jsonl("no.jsonl"), ("'no.jsonl'", "no file matches", "looked in")),
    "empty data file": (jsonl("empty.jsonl"), ("empty.jsonl", "holds no rows", "give")),
    "malformed line in a second file": (
        {"data": component("jsonl", files=["answered.jsonl", "malformed.jsonl"])},
        ("malformed.jsonl, line 2",),
    ),
    "malformed line": (jsonl("malformed.jsonl"), ("malformed.jsonl, line 2", "Expecting")),
    "missing column": (
        jsonl("sums.jsonl", prompt="quesion"),
        ("sums.jsonl, line 1", "no column 'quesion'", "did you mean question?"),
    ),
    "missing answers": (
        jsonl("sums.jsonl", prompt="question") | {"reward": component("exact_match", answer_field="anwser")},
        ("'anwser'", "none of its first 3 examples suits ExactMatch", "set answer_field"),
    ),
    "answers that never match": (
        jsonl("sums.jsonl", prompt="question", fields={"answer": "prose"}) | {"reward": "number"},
        ("the answer 'It is two.'", "suits Number", "is not one number; set answer_pattern, or use exact_match"),
    ),
    "answer that scores nothing": (
        jsonl("sums.jsonl", prompt="question")
        | {"reward": component("composite", parts={"right": component("math", answer_pattern="= (.+)")})},
        ("part right", "answer_pattern '= (.+)' does not occur in '2'"),
    ),
    "reward function of other fields": (
        jsonl("sums.jsonl", prompt="question") | {"reward": component("function", function="catalogue_parts.graded")},
        ("wants 'solution'", "there is only", "rename it or add a default"),
    ),
    "completions under another name": (
        jsonl("sums.jsonl", prompt="question")
        | {"algorithm": "sft", "inference": None, "transport": None, "workflow": None, "reward": None},
        ("got NoneType", "a string in field 'completion'", "name the right one"),
    ),
    "prompts longer than the model": (
        jsonl("long.jsonl"),
        ("a prompt of 1500 tokens", "max_position_embeddings 1024", "set max_prompt_tokens 1018"),
    ),
    "chat without a template": (
        jsonl("sums.jsonl", prompt="question", chat=True),
        ("quickstart_model'", "has no chat template", "chat: false"),
    ),
    "evaluation data that is not there": (
        {"evaluation": {"data": {"held_out": component("jsonl", files=["no.jsonl"])}}},
        ("evaluation.data.held_out", "'no.jsonl'", "no file matches"),
    ),
    "unknown evaluation set": (
        {"checkpoint": {"best": {"set": "arithmetc"}}, "evaluation": {"every_steps": 5}},
        ("'arithmetc'", "is no evaluation set", "there are: arithmetic"),
    ),
    "extra that is not installed": (
        {"data": component("huggingface", path="some/data")},
        ("datasets is not installed", "pip install 'areal-lit[datasets]'"),
    ),
    # places
    "name with a slash": ({"name": "a/b"}, ("got 'a/b'", "must not hold '/'")),
    "directory that is a file": ({"runs_dir": "file.txt"}, ("file.txt", "is a file", "--runs_dir DIR")),
}
