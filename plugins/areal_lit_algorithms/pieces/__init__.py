"""What policy-gradient algorithms are put together from, each piece usable by itself.

| from | to | module |
|---|---|---|
| rewards | shaped rewards: length penalty, bias, scale, bounds | ``shaping`` |
| rewards or advantages | the same centred and scaled over groups or the batch | ``normalisation`` |
| rewards and values | advantages per token or per turn, along a conversation's tree | ``gae``, ``branches`` |
| log-probs of two policies | ratios, per token or sequence | ``ratios`` |
| behaviour and current policy | the policy between them that a step starts from | ``proximal`` |
| proximal against behaviour | the off-policy weight, truncated or rejected | ``rejection``, ``second_moment`` |
| policy against reference | divergence, in the reward or in the loss; its weight | ``kl`` |
| policy against teacher | divergence of their distributions | ``divergences`` |
| ratios and advantages | losses per token | ``policy_losses`` |
| values and returns | the critic's loss | ``value_loss`` |
| loss mask | weights per token: the aggregation | ``aggregation`` |
| all of these | the numbers that say what happened | ``diagnostics`` |

``PolicyGradient`` (one folder up) joins them; a plugin may as well take one.
"""
