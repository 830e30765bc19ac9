"""Sphinx configuration. The build needs no network."""
from fuel_prefetch.version import version

project = 'fuel_prefetch'
author = 'The authors of fuel_prefetch'
copyright = author
release = version

extensions = ['sphinx.ext.autodoc', 'numpydoc']
exclude_patterns = ['_build']
html_theme = 'sphinx_rtd_theme'
default_role = 'emphasis'  # `name` in a docstring is a parameter's name

autodoc_member_order = 'bysource'
autodoc_mock_imports = ['blocks']
numpydoc_show_class_members = False

# Fuel's and Python's own documentation isn't looked up, since that would need
# a network.
nitpick_ignore_regex = [
    ('py:.*', r'(fuel|numpy|argparse|multiprocessing)(\..*)?'),
    ('py:class', r'(AbstractDataStream|tuple|object)'),
    ('py:exc', r'[A-Z]\w*(Error|Warning)|StopIteration'),
]
