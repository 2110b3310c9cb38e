"""The errors of halftone. Each has the text of the C++ error: [op] what is wrong: the values. What to do."""


class Error(Exception):
    """The base of all."""


class ShapeError(Error, ValueError):
    """Sizes, ranks, dimensions."""


class DTypeError(Error, TypeError):
    """Dtypes that do not fit or do not agree."""


class DeviceError(Error, RuntimeError):
    """Devices, memory, backend libraries."""


class UsageError(Error, ValueError):
    """Calls out of order, values out of range, unknown names."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but not implemented here."""


class FormatError(Error, ValueError):
    """Files that are missing or malformed."""
