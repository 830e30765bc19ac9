"""What an iteration scheme tells of an epoch's length, from afar too."""
from __future__ import absolute_import, division, print_function

from fuel.schemes import IterationScheme
from six.moves import range

from fuel_prefetch.arguments import is_count


def length_of(scheme):
    """Return the examples of an epoch and those of a batch.

    Returns
    -------
    length : tuple of int and int or None, or None
        ``None`` in place of the second if examples come by themselves, and
        in place of both if the scheme doesn't tell.

    """
    try:
        if hasattr(scheme, 'indices'):
            examples = len(scheme.indices)
        else:
            examples = scheme.num_examples
            scheme.batch_size  # without it that is no number of examples
        batch_size = getattr(scheme, 'batch_size', None)
    except Exception:  # it has its own code, and this is only a hint
        return None
    known = is_count(examples) and (batch_size is None or is_count(batch_size))
    return (int(examples), batch_size and int(batch_size)) if known else None


class ServedScheme(IterationScheme):
    """The scheme of a stream that is read by a server, as far as its length.

    Parameters
    ----------
    examples : int
        Examples in an epoch.
    batch_size : int or None
        Examples in a batch; ``None`` if they come by themselves.

    Notes
    -----
    Its attributes are those of Fuel's schemes with the same meaning:
    `num_examples` and `batch_size`, or else `indices`, of which only the
    number counts.

    """
    def __init__(self, examples, batch_size):
        self.requests_examples = batch_size is None
        if self.requests_examples:
            self.indices = range(examples)
        else:
            self.num_examples, self.batch_size = examples, batch_size

    def get_request_iterator(self):
        raise ValueError('the requests are made where the stream is served')
