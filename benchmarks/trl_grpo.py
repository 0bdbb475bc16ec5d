"""TRL's GRPOTrainer on the sums task, for ``against_trl.py``; runs in an environment of its own (trl, datasets, torch).

Prints one JSON line.
"""

import argparse
import itertools
import json
import os
import random
import resource
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name in ("steps", "prompts", "samples", "longest", "threads"):
    parser.add_argument(name, type=int)
STEPS, PROMPTS, SAMPLES, LONGEST, THREADS = vars(parser.parse_args()).values()
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

torch.set_num_threads(THREADS)
torch.manual_seed(0)
vocabulary = ["<pad>", "<bos>", "<eos>", *"0123456789+-*=? ,.abcdefghijklmnopqrstuvwxyz"]
vocabulary += [f"<x{i}>" for i in range(64 - len(vocabulary))]
core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<pad>"))
core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
core.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
)
model = Qwen3ForCausalLM(
    Qwen3Config(
        vocab_size=64, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True,
    )
)  # fmt: skip
model.generation_config.eos_token_id = 2
model.generation_config.pad_token_id = 0
draw = random.Random(0)
sums = [(a, b) for a, b in ((draw.randint(10, 99), draw.randint(10, 99)) for _ in range(4096))]
rows = Dataset.from_list([{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in sums])


def reward(completions, answer, **_):
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


settings = GRPOConfig(
    output_dir="trl_out", per_device_train_batch_size=PROMPTS * SAMPLES, num_generations=SAMPLES,
    max_completion_length=LONGEST, learning_rate=1e-4, max_steps=STEPS, logging_steps=10, report_to="none",
    save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, beta=0.0, temperature=1.0, seed=0,
    disable_tqdm=True,
)  # fmt: skip
trainer = GRPOTrainer(model=model, reward_funcs=reward, args=settings, train_dataset=rows, processing_class=tokenizer)
ends = []


class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        ends.append(time.time())


trainer.add_callback(Clock())
trainer.train()
durations = sorted(b - a for a, b in itertools.pairwise(ends))
median = durations[len(durations) // 2]
print(
    json.dumps(
        {
            "samples_per_s": PROMPTS * SAMPLES / median,
            "first_step_at": ends[0],
            "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        }
    )
)
