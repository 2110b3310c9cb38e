"""Policy files, and models of PyTorch under them."""
import json
import os

from . import _native


def _parsed(text, where, quantizers):
    return Policy(_native.parse_policy(text, where), quantizers)


class Policy:
    """A policy file (docs/policy_files.md): which tensor of which layer gets which number format."""

    def __init__(self, file, quantizers=None):
        self._file = file
        self._quantizers = {each.name: each for each in _native.own_quantizers(file)} if quantizers is None else quantizers

    @classmethod
    def load(cls, path):
        """Reads a file and those that it extends. Raises FormatError or UsageError, with the place in the file."""
        return cls(_native.read_policy(os.fspath(path)))

    @classmethod
    def parse(cls, text, where="text"):
        """Reads a policy from text, or from an object that json.dumps() takes. It cannot extend files."""
        return cls(_native.parse_policy(text if isinstance(text, str) else json.dumps(text), where))

    @classmethod
    def named(cls, name):
        """Returns the policy of a strategy: "fp32", "amp-bf16", "amp-fp16", ..."""
        return cls(_native.named_policy(name))

    name = property(lambda self: self._file.name)
    about = property(lambda self: self._file.about)
    meant_for = property(lambda self: list(self._file.meant_for), doc='"for": models; empty: all')
    text = property(lambda self: self._file.text, doc="the whole policy as text, without `extends`")
    hash = property(lambda self: self._file.hash, doc="the hash that C++ computes")

    def quantizer(self, name):
        """Returns the Quantizer that the policy's rules call by this name, or a ready-made one of that name."""
        return self._quantizers.get(name) or _native.ready_beside(self._file, name)

    def __reduce__(self):
        return _parsed, (self.text, self.name, self._quantizers)

    def __repr__(self):
        return f"Policy('{self.name}', {self.hash})"

    def apply(self, model, example=None):
        """Returns a module that runs `model` under this policy, with the model's own parameters.

        example: an input, or a tuple of them. One pass with it checks the rules: raises UsageError for
        a rule that matches nothing. Raises UnsupportedError for policies that Python cannot emulate.
        """
        from .emulated import Emulated, survey

        if example is not None:
            survey(self._file, model, example)
        return Emulated(self._file, model)

    def resolve(self, model, example):
        """Returns the table of `halftone-lab show`: what each tensor of the model gets."""
        from .emulated import survey

        return survey(self._file, model, example).table()

    def resolved(self, model, example):
        """Returns the same as an object: what `halftone-lab show --json` prints."""
        from .emulated import survey

        return json.loads(survey(self._file, model, example).json())
