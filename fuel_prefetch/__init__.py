"""Reads ahead, so that training does not wait for its data."""
from __future__ import absolute_import, division, print_function

from fuel_prefetch import compat  # noqa: F401  (before anything of Fuel's)
from fuel_prefetch.exceptions import (
    PrefetchError, PrefetchTimeout, PrefetchWarning)
from fuel_prefetch.generators import BackgroundGenerator, background
from fuel_prefetch.transformers import BackgroundDataStream
from fuel_prefetch.version import version as __version__

__all__ = ['BackgroundDataStream', 'BackgroundGenerator', 'PrefetchError',
           'PrefetchTimeout', 'PrefetchWarning', 'background', '__version__']
