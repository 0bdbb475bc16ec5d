"""Log-probs and entropies in blocks against all logits at once: time and peak extra memory.

    python benchmarks/logprobs.py --repeats 3

Both sides alternate in fresh processes (peak memory is a process's high-water mark). Each computes the log-probs of
``--rows`` tokens, a gradient to hidden states and, with ``--head-gradient``, to the head, whose [vocabulary, hidden]
gradient is not counted as extra memory. ``--entropy`` adds the entropy and its gradient.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    import torch

    from areal_lit_single.logprobs import token_logprobs

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows, hidden, vocabulary = arguments.rows, arguments.hidden, arguments.vocabulary
    hidden_RD = torch.randn(rows, hidden, requires_grad=True)
    weight_VD = torch.nn.init.normal_(torch.empty(vocabulary, hidden), 0.0, 0.02)
    if arguments.head_gradient:
        weight_VD.requires_grad_()
    target_R = torch.randint(vocabulary, (rows,))
    scale_R = torch.ones(rows)

    def step() -> torch.Tensor:
        entropy_R = None
        if side == "blocks":
            inputs = (hidden_RD, weight_VD, None, target_R, scale_R)
            logprob_R, entropy_R = token_logprobs(*inputs, entropy=arguments.entropy)
        else:
            logp_RV = (torch.nn.functional.linear(hidden_RD, weight_VD) * scale_R[:, None]).log_softmax(-1)
            logprob_R = logp_RV.gather(1, target_R[:, None])[:, 0]
            if arguments.entropy:
                entropy_R = -(logp_RV.exp() * logp_RV).sum(-1)
        loss = -logprob_R.mean() if entropy_R is None else -(logprob_R + 0.01 * entropy_R).mean()
        loss.backward()
        return loss.detach()

    (hidden_RD.detach()[:8] @ weight_VD.detach()[:64].T).log_softmax(-1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    loss = step()
    seconds = time.process_time() - start
    peak_gb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e9
    if arguments.head_gradient:
        peak_gb -= weight_VD.nbytes / 1e9
    return {"cpu_s": seconds, "peak_gb": peak_gb, "loss": float(loss)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--head-gradient", action="store_true")
    parser.add_argument("--entropy", action="store_true")
    parser.add_argument("--side", choices=["blocks", "plain"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure(arguments.side, arguments)))
        return
    results: dict[str, list[dict[str, float]]] = {"blocks": [], "plain": []}
    for _ in range(arguments.repeats):
        for side, measured in results.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
            measured.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    medians = {
        side: {key: statistics.median(m[key] for m in measured) for key in ("cpu_s", "peak_gb", "loss")}
        for side, measured in results.items()
    }
    print("| side | CPU seconds | peak extra GB | loss |\n|---|---|---|---|")
    for side, median in medians.items():
        print(f"| {side} | {median['cpu_s']:.2f} | {median['peak_gb']:.3f} | {median['loss']:.6f} |")
    print(f"time ratio blocks / plain: {medians['blocks']['cpu_s'] / medians['plain']['cpu_s']:.3f}")


if __name__ == "__main__":
    main()
