"""torch.utils.checkpoint under a policy: a segment that backward runs again has the policy of its first run."""
import sys
import threading

import torch
import torch.utils.checkpoint as checkpoint


class _Running(threading.local):
    def __init__(self):
        self.stack = []  # of (module under a policy, what it is bound to), innermost last
        self.calls = None  # of the innermost checkpointed segment


RUNNING = _Running()


class _Calls:
    """The calls of modules under policies in a segment. records: the first run counts as training without recording."""

    def __init__(self, records):
        self.records, self.passes, self.at = records, [], None

    def next(self):
        """Returns the function that runs a call as in the first run; None in the first run."""
        if self.at is None:
            return None
        self.at += 1
        return self.passes[self.at - 1]


class _Segment:
    """A checkpointed function. runs_first: its first call is forward's own."""

    def __init__(self, function, runs_first):
        self.function, self.runs_first = function, runs_first
        self.calls = _Calls(runs_first and torch.is_grad_enabled())
        self.again = None
        if RUNNING.stack:
            emulated, bound = RUNNING.stack[-1]
            self.again = emulated._segment(bound)

    def __call__(self, *args, **kwargs):
        first, self.runs_first = self.runs_first, False
        before, RUNNING.calls = RUNNING.calls, self.calls
        self.calls.at = None if first else 0
        try:
            if first or not self.again:
                return self.function(*args, **kwargs)
            return self.again(lambda: self.function(*args, **kwargs))
        finally:
            RUNNING.calls = before


def _follow_checkpoints():
    """Wraps the two functions that every checkpoint passes. Without a policy they work as before."""
    reentrant = checkpoint.CheckpointFunction.apply

    def apply(function, *args):
        return reentrant(_Segment(function, True), *args)

    checkpoint.CheckpointFunction.apply = staticmethod(apply)
    names = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    name = next(each for each in names if hasattr(checkpoint, each))
    generator = getattr(checkpoint, name)

    def wrapped(function, *args, **kwargs):
        segment = _Segment(function, False)
        before, RUNNING.calls = RUNNING.calls, segment.calls
        try:
            yield from generator(segment, *args, **kwargs)  # the first run is between its two steps
        finally:
            if RUNNING.calls is segment.calls:
                RUNNING.calls = before

    for module in list(sys.modules.values()):  # also where torch.distributed imported it
        if getattr(module, "__dict__", {}).get(name) is generator:
            setattr(module, name, wrapped)


_follow_checkpoints()
