"""What one fit or evaluation is made of.

``running`` checks and warms up, ``lifecycle`` starts and ends everything, ``run`` is what the loop asks in each phase;
the rest are their parts: processes, data, what stands between loop and engine (``online``) or rows (``offline``),
directory, what is saved (``state``) and when (``saving``), signals.
"""
