"""torch.utils.checkpoint under a policy: a segment that backward runs again has the policy of its first run."""
import sys
import threading

import torch.utils.checkpoint as checkpoint


class _Running(threading.local):
    def __init__(self):
        self.stack = []  # of (module under a policy, what it is bound to), innermost last


RUNNING = _Running()


class _Segment:
    """A checkpointed function. runs_first: its first call is forward's own."""

    def __init__(self, function, runs_first):
        emulated, bound = RUNNING.stack[-1]
        self.function, self.runs_first, self.again = function, runs_first, emulated._segment(bound)

    def __call__(self, *args, **kwargs):
        if self.runs_first:
            self.runs_first = False
            return self.function(*args, **kwargs)
        return self.again(lambda: self.function(*args, **kwargs))


def _follow_checkpoints():
    """Wraps the two functions that every checkpoint passes. Without a policy they work as before."""
    reentrant = checkpoint.CheckpointFunction.apply

    def apply(function, *args):
        return reentrant(_Segment(function, True) if RUNNING.stack else function, *args)

    checkpoint.CheckpointFunction.apply = staticmethod(apply)
    names = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    name = next(each for each in names if hasattr(checkpoint, each))
    generator = getattr(checkpoint, name)

    def wrapped(function, *args, **kwargs):
        return generator(_Segment(function, False) if RUNNING.stack else function, *args, **kwargs)

    for module in list(sys.modules.values()):  # also where torch.distributed imported it
        if vars(module).get(name) is generator:
            setattr(module, name, wrapped)


_follow_checkpoints()
